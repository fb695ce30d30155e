package packages

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestPyPI: a file passes unchanged, under an address of the mirror.
func TestPyPI(t *testing.T) {
	f := newFakeIndex(t)
	good := f.add("six-1.0-py3-none-any.whl", "wheel 1.0")
	good.metadata = "Name: six\nRequires-Dist: idna (>=2)\n\nsee foo @ https://example.com"
	f.project("six", good)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	p := listing(t, m, "Six")
	if len(p.Files) != 1 || p.Files[0].RequiresPython != ">=3.6" || p.Files[0].UploadTime != oldRelease {
		t.Fatalf("%+v", p)
	}
	if a := get(m, fileOf(p.Files[0])); a.status != 200 || a.body != "wheel 1.0" {
		t.Errorf("%+v", a)
	}
	if a := get(m, fileOf(p.Files[0]), "Range", "bytes=6-"); a.status != http.StatusPartialContent || a.body != "1.0" {
		t.Errorf("%+v", a)
	}
	if a := get(m, fileOf(p.Files[0])+".metadata"); a.status != 200 || a.body != good.metadata {
		t.Errorf("%+v", a)
	}
	page := get(m, "/packages/pypi/simple/six/")
	if !strings.Contains(page.body, `href="../../files/six/`+good.hash) || strings.Contains(page.body, f.URL) {
		t.Errorf("%s", page.body)
	}
	if h := f.headers["/f/six-1.0-py3-none-any.whl"]; h.Get("Authorization") == "" {
		t.Error("the index's own host got no credential")
	}
	if strings.Contains(page.body+fmt.Sprint(m.Environment(), page.header), "index-secret") {
		t.Error("the credential entered the sandbox")
	}
	if list := m.Release("run"); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if _, bad := get(m, "/packages/pypi/simple/six/"), f.total(); bad != 3 {
		t.Errorf("%d requests reached the index, want 3", bad)
	}
	wantCode(t, get(m, "/packages/pypi/simple/six/"), codeNoRun)
}

// TestPyPIPolicy: each file that must not be installed is dropped, and the run learns why.
func TestPyPIPolicy(t *testing.T) {
	for _, test := range []struct {
		name, code, message string
		change              func(*wheel)
		config              func(*Config)
	}{
		{"an hour old", CodeTooNew, "was released on 2026-06-15 11:00 UTC; a release must be 3 days old", func(w *wheel) { w.uploaded = anHourAgo }, nil},
		{"no upload-time", CodeAgeUnknown, "packages.minAge", func(w *wheel) { w.uploaded = "" }, nil},
		{"a strange upload-time", CodeAgeUnknown, "packages.minAge", func(w *wheel) { w.uploaded = "yesterday" }, nil},
		{"a source distribution", CodeNoWheel, "wheelsOnly", func(w *wheel) { w.name = "six-2.0.tar.gz" }, nil},
		{"no hash", CodeNotAllowed, "no sha256 hash", func(w *wheel) { w.hash = "" }, nil},
		{"a short hash", CodeNotAllowed, "no sha256 hash", func(w *wheel) { w.hash = "abcd" }, nil},
		{"plain http elsewhere", CodeNotAllowed, "an address", func(w *wheel) { w.url = "http://files.example.com/six-2.0-py3-none-any.whl" }, nil},
		{"a file address", CodeNotAllowed, "an address", func(w *wheel) { w.url = "file:///etc/passwd" }, nil},
		{"an address with a login", CodeNotAllowed, "an address", func(w *wheel) { w.url = "https://user:secret@files.example.com/x" }, nil},
		{"denied", CodeNotAllowed, "does not allow", func(*wheel) {}, func(c *Config) { c.Kinds[PyPI] = Kind{Indexes: c.Kinds[PyPI].Indexes, Deny: []string{"S*"}} }},
		{"not on the list", CodeNotAllowed, "does not allow", func(*wheel) {}, func(c *Config) { c.Kinds[PyPI] = Kind{Indexes: c.Kinds[PyPI].Indexes, Allow: []string{"idna"}} }},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFakeIndex(t)
			w := f.add("six-2.0-py3-none-any.whl", "2.0")
			test.change(&w)
			f.project("six", w)
			cfg := f.config(t)
			if test.config != nil {
				test.config(&cfg)
			}
			m := start(t, cfg)
			m.Grant("caller", "run", "box")
			a := get(m, "/packages/pypi/simple/six/")
			wantCode(t, a, test.code)
			wantCode(t, get(m, "/packages/pypi/files/six/"+sum("2.0")+"/six-2.0-py3-none-any.whl"), test.code)
			if p := problem(t, m); p.Code != test.code || p.Package != "six" || !strings.Contains(p.Message, test.message) {
				t.Errorf("%+v", p)
			}
			if f.hit("/f/six-2.0-py3-none-any.whl") != 0 {
				t.Error("the file was downloaded")
			}
		})
	}
}

// TestPyPINewest: the newest release is too new, so the one before it is installed. Only a run that
// gets neither hears of it.
func TestPyPINewest(t *testing.T) {
	f := newFakeIndex(t)
	fresh := f.add("six-10.0-py3-none-any.whl", "10.0")
	fresh.uploaded = anHourAgo
	yanked := f.add("six-9.1-py3-none-any.whl", "9.1")
	yanked.yanked = "a <bad> release"
	f.project("six", f.add("six-2.0-py3-none-any.whl", "2.0"), fresh, yanked, f.add("six-9.0-py3-none-any.whl", "9.0"), f.add("evil-9.0-py3-none-any.whl", "e"))
	cfg := f.config(t)
	clock := now
	cfg.Now = func() time.Time { return clock }
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	p := listing(t, m, "six")
	if len(p.Files) != 3 || string(p.Files[1].Yanked) != `"a \u003cbad\u003e release"` && string(p.Files[1].Yanked) != `"a <bad> release"` {
		t.Fatalf("%+v", p.Files)
	}
	if a := get(m, "/packages/pypi/simple/six/"); !strings.Contains(a.body, `data-yanked="a &lt;bad&gt; release"`) {
		t.Error(a.body)
	}
	if p := problem(t, m); p.Code != CodeTooNew || !strings.Contains(p.Message, "six 10.0") || !strings.Contains(p.Message, "newest allowed version is 9.1") {
		t.Errorf("%+v", p)
	}
	m.Grant("caller", "run", "box")
	if a := get(m, fileOf(listing(t, m, "six").Files[0])); a.body != "2.0" {
		t.Errorf("%+v", a)
	}
	if list := m.Release("run"); len(list) != 0 {
		t.Errorf("a run that installed another version is told %+v", list)
	}
	clock = now.Add(73 * time.Hour)
	m.Grant("caller", "run", "box")
	if p := listing(t, m, "six"); len(p.Files) != 4 {
		t.Errorf("three days later: %+v", p.Files)
	}
}

// TestUnmet: a run learns why it did not get the version that it asked for, or that there is none.
func TestUnmet(t *testing.T) {
	f := newFakeIndex(t)
	hide := func(name string) wheel {
		w := f.add(name, name)
		w.uploaded = anHourAgo
		return w
	}
	plain := hide("my_lib-3.1-py3-none-any.whl")
	plain.uploaded, plain.hash = oldRelease, ""
	f.project("my-lib", f.add("my_lib-2.0-py3-none-any.whl", "2.0"), plain, hide("my_lib-3.2-py3-none-any.whl"), hide("my_lib-4.0-py3-none-any.whl"))
	f.project("other-python", f.add("other_python-1.0-py2-none-any.whl", "1.0"), hide("other_python-2.0-py3-none-any.whl"))
	f.project("fresh", hide("fresh-1.0-py3-none-any.whl"))
	f.project("source", f.add("source-1.0-py3-none-any.whl", "1.0"), f.add("source-0.9.tar.gz", "0.9"), f.add("source-2.0.tar.gz", "2.0"))
	f.packument("@acme/lib", "4.0.0", release{version: "2.0.0", uploaded: oldRelease}, release{version: "4.0.0", uploaded: anHourAgo})
	m := start(t, f.config(t))
	for _, test := range []struct{ path, unmet, code, message string }{
		{"pypi/simple/my-lib/", "", CodeTooNew, "my-lib 4.0 was released"},
		{"pypi/simple/my-lib/", "other==99", CodeTooNew, "my-lib 4.0 was released"},
		{"pypi/simple/my-lib/", "My_Lib==99", CodeUnknown, "There is no version of my-lib that fits My_Lib==99. The newest allowed version is 2.0."},
		{"pypi/simple/my-lib/", "my-lib[x,y]>=4.1", CodeUnknown, "There is no version"},
		{"pypi/simple/my-lib/", "my-lib[x]==4.*", CodeTooNew, "my-lib 4.0 was released"},
		{"pypi/simple/my-lib/", "my-lib<4,>=3", CodeTooNew, "my-lib 3.2 was released"},
		{"pypi/simple/my-lib/", "my-lib==3.1", CodeNotAllowed, "no sha256 hash for my-lib 3.1"},
		{"pypi/simple/other-python/", "other-python==1.0", "", ""}, // pip says it
		{"pypi/simple/other-python/", "other-python>=1.0", CodeTooNew, "other-python 2.0 was released"},
		{"pypi/simple/fresh/", "fresh==99", CodeUnknown, "There is no version of fresh that fits fresh==99."},
		{"pypi/simple/fresh/", "fresh", CodeTooNew, "fresh 1.0 was released"},
		{"pypi/simple/source/", "source==2.0", CodeNoWheel, "source 2.0 has no wheel"},
		{"pypi/simple/source/", "source<1", CodeNoWheel, "source 0.9 has no wheel, only source, and this server installs wheels only"},
		{"pypi/simple/source/", "source==99", CodeUnknown, "There is no version of source that fits source==99. The newest allowed version is 1.0."},
		{"pypi/simple/source/", "source>=1", "", ""}, // a wheel fits
		{"pypi/simple/source/", "other", "", ""},
		{"pypi/simple/source/", "", "", ""},
		{"npm/@acme/lib", "@acme/lib@99", CodeUnknown, "There is no version of @acme/lib that fits @acme/lib@99. The newest allowed version is 2.0.0."},
		{"npm/@acme/lib", "@acme/lib@^4", CodeTooNew, "@acme/lib 4.0.0 was released"},
		{"npm/@acme/lib", "@acme/lib@<=4", CodeTooNew, "@acme/lib 4.0.0 was released"},
	} {
		m.Grant("caller", "run", "box")
		get(m, "/packages/"+test.path)
		list := m.Release("run", test.unmet)
		if test.code == "" && len(list) == 0 {
			continue
		}
		if len(list) != 1 || list[0].Code != test.code || !strings.Contains(list[0].Message, test.message) {
			t.Errorf("%s: %+v, want %s %s", test.unmet, list, test.code, test.message)
		}
	}
}

// TestMetadataIsNoFile: a run that has only read metadata still learns why it did not get the
// newest version.
func TestMetadataIsNoFile(t *testing.T) {
	f := newFakeIndex(t)
	old, fresh := f.add("six-1.0-py3-none-any.whl", "1.0"), f.add("six-2.0-py3-none-any.whl", "2.0")
	old.metadata, fresh.uploaded = "Name: six\n\n", anHourAgo
	f.project("six", old, fresh)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	if a := get(m, fileOf(listing(t, m, "six").Files[0])+".metadata"); a.body != old.metadata {
		t.Errorf("%+v", a)
	}
	if list := m.Release("run", "six>=2"); len(list) != 1 || list[0].Code != CodeTooNew {
		t.Errorf("%+v", list)
	}
}

// TestMissingFile: a file that is not listed gets the reason of its own version, not of another.
func TestMissingFile(t *testing.T) {
	f := newFakeIndex(t)
	fresh, unchecked := f.add("six-3.0-py3-none-any.whl", "3.0"), f.add("six-1.0-py3-none-any.whl", "1.0")
	fresh.uploaded, unchecked.hash = anHourAgo, ""
	f.project("six", unchecked, f.add("six-2.0-py3-none-any.whl", "2.0"), fresh)
	f.packument("x", "2.0.0", release{version: "1.0.0", uploaded: oldRelease, dist: map[string]any{"tarball": "https://e.example/x.tgz"}},
		release{version: "2.0.0", content: "2", uploaded: oldRelease}, release{version: "3.0.0", content: "3", uploaded: anHourAgo})
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	for version, code := range map[string]string{"0.9": codeNotFound, "1.0": CodeNotAllowed, "3.0": CodeTooNew} {
		for _, path := range []string{"pypi/files/six/" + sum("gone") + "/six-" + version + "-py3-none-any.whl", "pypi/files/six/" + sum("gone") + "/six-" + version + "-py3-none-any.whl.metadata",
			"npm/x/-/x-" + version + ".0.tgz", "npm/files/x/" + sum("gone") + "/x-" + version + ".0.tgz"} {
			a := get(m, "/packages/"+path)
			if wantCode(t, a, code); !strings.Contains(a.body, version) && code != codeNotFound {
				t.Errorf("%s: %s", path, a.body)
			}
		}
	}
}

// TestRedirect: a name in another form leads to the page below any base.
func TestRedirect(t *testing.T) {
	cfg := newFakeIndex(t).config(t)
	cfg.Base = "http://packages.example.com/mirror/packages"
	m := start(t, cfg)
	m.Grant("caller", "run", "box")
	a := get(m, "/packages/pypi/simple/Zope.Interface")
	base, err := url.Parse(m.Environment()["PIP_INDEX_URL"])
	if err != nil {
		t.Fatal(err)
	}
	to, err := base.Parse(a.header.Get("Location"))
	if want := cfg.Base + "/pypi/simple/zope-interface/"; a.status != http.StatusMovedPermanently || err != nil || to.String() != want {
		t.Errorf("%d to %s, want %s, %v", a.status, to, want, err)
	}
}

// TestEncodedAddress: a file is requested under the address that the index gives.
func TestEncodedAddress(t *testing.T) {
	f := newFakeIndex(t)
	w := f.add("torch-2.0%2Bcpu-py3-none-any.whl", "2.0")
	w.name, w.metadata = "torch-2.0+cpu-py3-none-any.whl", "Name: torch\n\n"
	f.project("torch", w)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	path := fileOf(listing(t, m, "torch").Files[0])
	if a, b := get(m, path), get(m, path+".metadata"); a.body != "2.0" || b.body != w.metadata {
		t.Errorf("%+v %+v %v", a, b, f.hits)
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		30 * time.Minute: "30m", 10 * time.Minute: "10m", time.Hour: "1h", 10 * time.Hour: "10h", 90 * time.Minute: "1h30m", 20 * time.Second: "20s",
		24 * time.Hour: "24h", DefaultMinAge: "3 days", 36 * time.Hour: "36h", time.Hour + time.Second: "1h0m1s",
	} {
		if got := Age(d); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}

// TestPyPIHTML: an index that speaks HTML only.
func TestPyPIHTML(t *testing.T) {
	f := newFakeIndex(t)
	f.add("six-1.0-py3-none-any.whl", "1.0")
	page := `<html><base href="/f/"><a href="six-1.0-py3-none-any.whl#sha256=` + sum("1.0") + `" data-requires-python=">=3.8" data-yanked data-upload-time="` +
		oldRelease + `">six</a><a href="%zz">x</a><a>no address</a>`
	f.serve("/simple/six/", "text/html", []byte(page))
	f.serve("/simple/old/", "text/html", []byte(`<a href="/f/old-1.0-py3-none-any.whl#sha256=`+sum("1.0")+`">`))
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	p := listing(t, m, "six")
	if len(p.Files) != 1 || string(p.Files[0].Yanked) != "true" || p.Files[0].RequiresPython != ">=3.8" {
		t.Fatalf("%+v", p)
	}
	if a := get(m, fileOf(p.Files[0])); a.body != "1.0" {
		t.Errorf("%+v", a)
	}
	wantCode(t, get(m, "/packages/pypi/simple/old/"), CodeAgeUnknown)
	cfg := f.config(t)
	cfg.MinAge = 0
	m = start(t, cfg)
	m.Grant("caller", "run", "box")
	if p := listing(t, m, "old"); len(p.Files) != 1 {
		t.Errorf("with minAge 0: %+v", p)
	}
	cfg, anyAge := f.config(t), time.Duration(0)
	cfg.Kinds[PyPI].Indexes[0].MinAge = &anyAge
	m = start(t, cfg)
	m.Grant("caller", "run", "box")
	if p := listing(t, m, "old"); len(p.Files) != 1 {
		t.Errorf("with minAge 0 of the index: %+v", p)
	}
}

// TestDependencyByAddress: a wheel that depends on a URL is refused where the index has metadata.
func TestDependencyByAddress(t *testing.T) {
	f := newFakeIndex(t)
	w := f.add("six-1.0-py3-none-any.whl", "1.0")
	w.metadata = "Name: six\nRequires-Dist: evil @ git+https://example.com/evil\n\n"
	f.project("six", w)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	wantCode(t, get(m, fileOf(listing(t, m, "six").Files[0])+".metadata"), CodeNotAllowed)
	if p := problem(t, m); !strings.Contains(p.Message, "(evil @ git+https://example.com)") {
		t.Errorf("%+v", p)
	}
}

// TestMetadataOnce: metadata is read once, and one file at a time. A request that waits for that
// ends with the run.
func TestMetadataOnce(t *testing.T) {
	f := newFakeIndex(t)
	good, evil := f.add("six-1.0-py3-none-any.whl", "1.0"), f.add("six-2.0-py3-none-any.whl", "2.0")
	good.metadata, evil.metadata = "Name: six\n\n", "Name: six\nRequires-Dist: evil\n @ http://example.com\n\n"
	f.project("six", good, evil)
	other := f.add("idna-1.0-py3-none-any.whl", "1.0")
	other.metadata = "Name: idna\n\n"
	f.project("idna", other)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	files := listing(t, m, "six").Files
	idna := fileOf(listing(t, m, "idna").Files[0]) + ".metadata"
	for range 2 {
		if a := get(m, fileOf(files[0])+".metadata"); a.body != good.metadata {
			t.Errorf("%+v", a)
		}
		a := get(m, fileOf(files[1])+".metadata")
		if wantCode(t, a, CodeNotAllowed); !strings.Contains(a.body, "(evil @ http://example.com)") {
			t.Error(a.body)
		}
	}
	m.verdicts.reading <- struct{}{} // somebody reads other metadata
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for text, foreign := range map[string]string{good.metadata: "", evil.metadata: "evil @ http://example.com"} {
		c, err := m.files.cached(t.Context(), sum(text))
		if c == nil || err != nil {
			t.Fatal(err)
		}
		if v, err := m.verdicts.get(ended, c); v.foreign != foreign || !v.readable || err != nil {
			t.Errorf("%+v %v", v, err)
		}
		_ = c.Close()
	}
	done := make(chan answer)
	go func() { done <- getIn(m, "box", http.MethodHead, idna) }()
	r := m.runs["run"]
	await(&m.mu, func() bool { return r.requests == 7 })
	m.Release("run")
	if a := <-done; a.status != http.StatusForbidden {
		t.Errorf("%+v", a)
	}
	<-m.verdicts.reading
	m.Grant("caller", "run", "box")
	if a := getIn(m, "box", http.MethodHead, idna); a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}
}

// TestMetadataMemory: metadata with millions of lines is checked without a copy.
func TestMetadataMemory(t *testing.T) {
	for _, text := range []string{strings.Repeat("a\n", 1<<22), strings.Repeat("a\r\n", 1<<21), "Requires-Dist: a" + strings.Repeat("\n b", 1<<21), strings.Repeat("a", 8<<20)} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		found, ok := foreignRequirement(text)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 || !ok || found != "" {
			t.Errorf("%.10q: %q %t, %d bytes", text, found, ok, n)
		}
	}
}

// TestLargeMetadata: metadata that is in the cache already, as a wheel, is not checked in part.
func TestLargeMetadata(t *testing.T) {
	f := newFakeIndex(t)
	text := "Name: big\nSummary: " + strings.Repeat("x", maxMetadata) + "\nRequires-Dist: evil @ http://example.com\n\n"
	w := f.add("big-2.0-py3-none-any.whl", "2.0")
	w.metadata = text
	f.project("big", f.add("big-1.0-py3-none-any.whl", text), w)
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	files := listing(t, m, "big").Files
	if a := get(m, fileOf(files[0])); a.body != text {
		t.Errorf("%d", a.status)
	}
	a := get(m, fileOf(files[1])+".metadata")
	if wantCode(t, a, CodeQuota); !strings.Contains(a.body, "more than 8 MB") {
		t.Errorf("%.1000s", a.body)
	}
}

// TestSourceAllowed: with wheelsOnly off, source distributions pass; they are built in the sandbox.
func TestSourceAllowed(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0.tar.gz", "source"), f.add("six-1.0.exe", "x"))
	cfg := f.config(t)
	cfg.WheelsOnly = false
	m := start(t, cfg)
	env := m.Grant("caller", "run", "box")
	if p := listing(t, m, "six"); len(p.Files) != 1 || env["PIP_ONLY_BINARY"] != "" || env["UV_NO_BUILD"] != "" {
		t.Errorf("%+v %v", p, env)
	}
	if env := start(t, f.config(t)).Environment(); env["PIP_ONLY_BINARY"] != ":all:" || env["UV_NO_BUILD"] != "1" || env["npm_config_ignore_scripts"] != "true" ||
		env["npm_config_omit_lockfile_registry_resolved"] != "true" {
		t.Errorf("%v", env)
	}
}

func TestNewer(t *testing.T) {
	ordered := []string{"1.0rc1", "2.0a1", "0.9", "0.10", "1.0", "1.0.1", "1.0.post1", "2.0", "10.0"}
	for i, a := range ordered {
		for j, b := range ordered {
			if a == "1.0.post1" && b == "1.0.1" || b == "1.0.post1" && a == "1.0.1" {
				continue // which is newer does not matter here
			}
			if newer(a, b) != (i > j) {
				t.Errorf("newer(%s, %s) = %t", a, b, newer(a, b))
			}
		}
	}
}

// FuzzSimple: no page makes the parsers panic, and every file that passes is checkable.
func FuzzSimple(f *testing.F) {
	f.Add(`{"files":[{"filename":"six-1.0-py3-none-any.whl","url":"https://e.example/x","hashes":{"sha256":"`+sum("x")+`"},"upload-time":"2020-01-01T00:00:00Z"}]}`, true)
	f.Add(`<base href="//x"><a href="six-1.0-py3-none-any.whl#sha256=`+sum("x")+`" data-yanked data-upload-time="2020-01-01T00:00:00Z">`, false)
	m, x, base := forParsers(f)
	f.Fuzz(func(t *testing.T, page string, asJSON bool) {
		contentType := "text/html"
		if asJSON {
			contentType = simpleJSON
		}
		p, err := m.parsePyPI(x, "six", base, contentType, []byte(page))
		if err != nil {
			return
		}
		p.html()
		for key, file := range p.files {
			if len(file.hash) != 64 || !hexHash.MatchString(file.hash) || strings.Contains(file.name, "/") || x.checkAddress(file.url) != nil {
				t.Errorf("%s: %+v", key, file)
			}
		}
	})
}

// forParsers returns what the parsers need.
func forParsers(f testing.TB) (*Mirror, *index, *url.URL) {
	m := start(f, Config{Kinds: map[string]Kind{PyPI: {Indexes: []Index{{URL: "https://index.example.com/simple"}}}}, CacheDir: f.TempDir(), MinAge: time.Hour,
		Now: func() time.Time { return now }})
	x := m.kinds[PyPI].indexes[0]
	return m, x, x.url
}

func TestIndexes(t *testing.T) {
	f := newFakeIndex(t)
	if got := start(t, f.config(t)).Indexes(); !slices.Equal(got, []string{NPM, PyPI}) {
		t.Errorf("%q", got)
	}
}

// TestLoginPage: a page to log in, which an index sends instead of an error, is an error.
func TestLoginPage(t *testing.T) {
	f := newFakeIndex(t)
	f.serve("/simple/behind/", "text/html", []byte(`<html><title>Sign in</title><form method=post><input name=user></form></html>`))
	m := start(t, f.config(t))
	m.Grant("caller", "run", "box")
	wantCode(t, get(m, "/packages/pypi/simple/behind/"), CodeUnreachable)
}
