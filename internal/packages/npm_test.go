package packages

import (
	"encoding/json"
	"strings"
	"testing"
)

// described returns a packument as the mirror serves it.
func described(t testing.TB, m *Mirror, path string) (p packument, body string) {
	t.Helper()
	a := get(m, "/packages/npm/"+path, "Accept", npmInstall)
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != 200 || a.header.Get("Content-Type") != npmInstall {
		t.Fatalf("%s: %d %s %v", path, a.status, a.body, err)
	}
	return p, a.body
}

// TestNPM: scoped and plain names, tarballs by hash and as lock files have them.
func TestNPM(t *testing.T) {
	f := newFakeIndex(t)
	f.packument("is-x", "1.1.0", release{version: "1.1.0", content: "tar", uploaded: oldRelease,
		fields: map[string]any{"scripts": map[string]string{"postinstall": "evil"}, "hasInstallScript": true, "dependencies": map[string]string{"y": "^1", "z": "npm:@a/z@>=2 <3"}}})
	f.packument("@acme/y", "1.0.0", release{version: "1.0.0", content: "scoped", uploaded: oldRelease})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	p, body := described(t, m, "is-x")
	if strings.Contains(body, "evil") || strings.Contains(body, "hasInstallScript") || !strings.Contains(body, `"y":"^1"`) || p.DistTags["latest"] != "1.1.0" {
		t.Error(body)
	}
	var v struct{ Dist npmDist }
	if err := json.Unmarshal(p.Versions["1.1.0"], &v); err != nil || v.Dist.Integrity != integrity("tar") {
		t.Fatal(err, v)
	}
	path, ok := strings.CutPrefix(v.Dist.Tarball, "http://127.0.0.1:8099")
	if !ok || get(m, path).body != "tar" || get(m, "/packages/npm/is-x/-/is-x-1.1.0.tgz").body != "tar" {
		t.Error(v.Dist.Tarball)
	}
	for _, path := range []string{"@acme/y", "@acme/y raw /packages/npm/@acme%2fy", "@acme/y raw /packages/npm/@acme%2Fy"} {
		if p, _ := described(t, m, path); p.Name != "@acme/y" {
			t.Errorf("%s: %+v", path, p)
		}
	}
	if a := get(m, "/packages/npm/@acme/y/-/y-1.0.0.tgz"); a.body != "scoped" {
		t.Errorf("%+v", a)
	}
	for _, path := range []string{"-/v1/search", "-/npm/v1/security/audits", "-/whoami", "", "is-x/1.1.0", "is-x/-/../x"} {
		wantCode(t, get(m, "/packages/npm/"+path), codeNotFound)
	}
	if list := m.Release("run"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
}

// TestNPMPolicy: each version that must not be installed is dropped, and the run learns why.
func TestNPMPolicy(t *testing.T) {
	dependency := func(field, spec string) release {
		return release{version: "2.0.0", content: "2", uploaded: oldRelease, fields: map[string]any{field: map[string]string{"evil": spec}}}
	}
	for name, test := range map[string]struct {
		code string
		release
	}{
		"an hour old":        {CodeTooNew, release{version: "2.0.0", content: "2", uploaded: anHourAgo}},
		"no time":            {CodeAgeUnknown, release{version: "2.0.0", content: "2"}},
		"sha1 only":          {CodeNotAllowed, release{version: "2.0.0", uploaded: oldRelease, dist: map[string]any{"tarball": "https://e.example/x.tgz", "shasum": "abcd"}}},
		"a short sha512":     {CodeNotAllowed, release{version: "2.0.0", uploaded: oldRelease, dist: map[string]any{"tarball": "https://e.example/x.tgz", "integrity": "sha512-AAAA"}}},
		"an address of http": {CodeNotAllowed, release{version: "2.0.0", uploaded: oldRelease, dist: map[string]any{"tarball": "http://e.example/x.tgz", "integrity": integrity("2")}}},
		"no tarball":         {CodeNotAllowed, release{version: "2.0.0", uploaded: oldRelease, dist: map[string]any{"integrity": integrity("2")}}},
		"git":                {CodeNotAllowed, dependency("dependencies", "git+ssh://git@example.com/evil.git")},
		"a repository":       {CodeNotAllowed, dependency("optionalDependencies", "user/evil")},
		"a URL":              {CodeNotAllowed, dependency("dependencies", "https://example.com/evil.tgz")},
		"a directory":        {CodeNotAllowed, dependency("peerDependencies", "file:../evil")},
		"an alias":           {CodeNotAllowed, dependency("dependencies", "npm:../evil@1")},
		"the parent":         {CodeNotAllowed, dependency("dependencies", "..")},
		"a hidden directory": {CodeNotAllowed, dependency("dependencies", " .x")},
		"an alias of a path": {CodeNotAllowed, dependency("dependencies", "npm:evil@.")},
		"an archive":         {CodeNotAllowed, dependency("optionalDependencies", "a.TGZ")},
		"a packed archive":   {CodeNotAllowed, dependency("peerDependencies", "a.tar.gz ")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeIndex(t)
			f.packument("x", "2.0.0", test.release, release{version: "1.9.0", content: "1.9", uploaded: oldRelease}, release{version: "1.10.0", content: "1.10", uploaded: oldRelease})
			m := start(t, f.config(t))
			m.Grant("caller", "run", "box")
			if p, body := described(t, m, "x"); len(p.Versions) != 2 || p.DistTags["latest"] != "1.10.0" {
				t.Error(body)
			}
			wantCode(t, get(m, "/packages/npm/x/-/x-2.0.0.tgz"), test.code)
			list := m.Release("run")
			if len(list) == 0 || list[0].Code != test.code || !strings.Contains(list[0].Message, "newest allowed version is 1.10.0") {
				t.Errorf("%+v", list)
			}
		})
	}
}

// FuzzPackument: no packument makes the parser panic, and every file that passes is checkable.
func FuzzPackument(f *testing.F) {
	f.Add(`{"versions":{"1.0.0":{"dist":{"tarball":"https://e.example/x","integrity":"` + integrity("x") + `"},"dependencies":{"a":"npm:b@1"}}},"time":{"1.0.0":"2020-01-01T00:00:00Z"},"dist-tags":{"latest":"1.0.0"}}`)
	m, x, base := forParsers(f)
	f.Fuzz(func(t *testing.T, page string) {
		p, err := m.parseNPM(x, "@a/b", base, "", []byte(page))
		if err != nil {
			return
		}
		for key, file := range p.files {
			if len(file.hash) != 128 || strings.Contains(file.name, "/") || x.checkAddress(file.url) != nil {
				t.Errorf("%s: %+v", key, file)
			}
		}
		if !json.Valid(p.body) {
			t.Errorf("%s", p.body)
		}
	})
}
