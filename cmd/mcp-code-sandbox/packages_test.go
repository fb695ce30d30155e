package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

// TestDoctorFindsWrongIndex: doctor says of each index what is wrong, and what to do.
func TestDoctorFindsWrongIndex(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/login/") {
			fmt.Fprint(w, "<!DOCTYPE html><form></form>")
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	name := filepath.Join(t.TempDir(), "config.json")
	const section = `{"packages": {"npm": {"index": "%[1]s/gone", "allowPrivateAddresses": ["127.0.0.0/8"]}, "pypi": {"index": "%[1]s/login", "allowPrivateAddresses": ["127.0.0.0/8"]}}}`
	if err := os.WriteFile(name, fmt.Appendf(nil, section, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	checks := checkPackages(t.Context(), &invocation{settings: &settings{Root: t.TempDir(), Config: name}}, nil)
	if len(checks) != 1 || checks[0].Status != sandbox.Warn || !strings.HasPrefix(checks[0].Fix, "correct the address") {
		t.Fatalf("%+v", checks)
	}
	for _, want := range []string{"answers /gone/-/ping with 404 Not Found", "; pypi, " + server.URL + "/login/: "} {
		if !strings.Contains(checks[0].Detail, want) {
			t.Errorf("%s lacks %q", checks[0].Detail, want)
		}
	}
}

// serveIndex starts an index that lists one project, without upload times.
func serveIndex(t *testing.T) *httptest.Server {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/":
			fmt.Fprint(w, `<a href="simple/">simple</a>`)
		case "/simple/":
			fmt.Fprint(w, `<a href="acme-lib/">acme-lib</a>`)
		case "/all/":
			fmt.Fprint(w, `<meta name="pypi:repository-version" content="1.0">`)
		case "/simple/acme-lib/":
			fmt.Fprintf(w, `<a href="acme_lib-1.0-py3-none-any.whl#sha256=%064d">acme-lib</a>`, 0)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// configured returns an invocation with a configuration file.
func configured(t *testing.T, text string, env map[string]string) *invocation {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "config.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	return &invocation{settings: &settings{Root: root, Config: name}, env: env, stderr: io.Discard}
}

// installer is a runner for which code can install Python packages.
var installer = runner.Runner{Definition: runner.Definition{Name: "python", Environments: []string{"python"}, Env: map[string]string{"PATH": "/opt/runners/python/bin"}}}

// TestDoctorOfPackages: doctor does not say that code can install what it cannot, and makes nothing
// in the data directory.
func TestDoctorOfPackages(t *testing.T) {
	server := serveIndex(t)
	index := `"index": "` + server.URL + `/simple", "allowPrivateAddresses": ["127.0.0.0/8"]`
	private := `"private": [{"names": ["acme-*"], ` + index + `}]`
	all := strings.Replace(index, "/simple", "/all", 1)
	for _, test := range []struct {
		name, section string
		env           map[string]string
		status        sandbox.Status
		says          bool // that code can install them
		want          []string
	}{
		{"any age", `{"minAge": 0, "pypi": {` + index + `}}`, nil, sandbox.OK, true, []string{"from pypi"}},
		{"no upload times", `{"pypi": {` + index + `}}`, nil, sandbox.Warn, false, []string{"package_age_unknown", `or in the section packages for all`}},
		{"no upload times of a private index", `{"pypi": {` + all + `, ` + private + `}}`, nil, sandbox.Warn, false, []string{"package_age_unknown", `"minAge": 0 in the entry of a private index`}},
		{"any age of a private index", `{"pypi": {` + all + `, ` + strings.Replace(private, "{", `{"minAge": 0, `, 1) + `}}`, nil, sandbox.OK, true, []string{"from pypi"}},
		{"another page with links", `{"pypi": {` + strings.Replace(index, "/simple", "", 1) + `}}`, nil, sandbox.Warn, false, []string{"nor of simple", "is probably not that of an index"}},
		{"an empty list", `{"minAge": 0, "pypi": {"allow": [], ` + index + `}}`, nil, sandbox.Warn, false, []string{"packages.pypi.allow is empty, so code can install nothing from pypi"}},
		{"a list without private names", `{"minAge": 0, "pypi": {"allow": ["shapely"], ` + index + `, ` + private + `}}`, nil, sandbox.Warn, true,
			[]string{"packages.pypi.allow leaves out every name of the private index " + server.URL + "/simple: add acme-* to packages.pypi.allow"}},
		{"a file that pip cannot read", `{"pypi": {}}`, map[string]string{"PIP_CONFIG_FILE": "GARBAGE"}, sandbox.Fail, false, []string{"pip cannot read its configuration file", "no section headers"}},
		{"no index", `{"minAge": 0, "pypi": {}}`, map[string]string{"PIP_NO_INDEX": "1", "PIP_INDEX_URL": server.URL + "/simple"}, sandbox.Warn, true, []string{"PIP_NO_INDEX", "from pypi"}},
		{"plain http", `{"pypi": {}}`, map[string]string{"PIP_INDEX_URL": "http://example.invalid/simple"}, sandbox.Fail, false, []string{"packages of pypi: PIP_INDEX_URL names example.invalid, which must start with https://"}},
		{"not an address", `{"pypi": {}}`, map[string]string{"PIP_INDEX_URL": "garbage"}, sandbox.Fail, false, []string{"packages of pypi: PIP_INDEX_URL is not the address of an index"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inv := configured(t, `{"packages": `+test.section+`}`, test.env)
			if test.env["PIP_CONFIG_FILE"] != "" {
				inv.env["PIP_CONFIG_FILE"] = filepath.Join(filepath.Dir(inv.settings.Root), "pip.conf")
				if err := os.WriteFile(inv.env["PIP_CONFIG_FILE"], []byte("garbage"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			checks := checkPackages(t.Context(), inv, runner.Set{installer})
			worst, text := sandbox.OK, ""
			for _, c := range checks {
				worst, text = max(worst, c.Status), text+c.Detail+" "+c.Fix+"\n"
			}
			if worst != test.status || worst == sandbox.OK && len(checks) != 1 {
				t.Errorf("%+v", checks)
			}
			if test.says != strings.Contains(text, "code can install them") {
				t.Errorf("says %q", text)
			}
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if entries, err := os.ReadDir(inv.settings.Root); err != nil || len(entries) > 0 {
				t.Errorf("made %v %v", entries, err)
			}
		})
	}
}

// TestInstallIsAudited: the audit trail has what the installation of the operator's own runners
// asks an index for.
func TestInstallIsAudited(t *testing.T) {
	server := serveIndex(t)
	inv := configured(t, `{"packages": {"minAge": 0, "pypi": {"index": "`+server.URL+`/simple", "allowPrivateAddresses": ["127.0.0.0/8"]}}}`, nil)
	own := filepath.Join(inv.settings.Root, "runners.d")
	if err := os.MkdirAll(filepath.Join(own, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "mine", "runner.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	src, stop, err := throughMirror(t.Context(), inv, runner.Sources{Env: map[string]string{}, Own: own})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(src.Env["PIP_INDEX_URL"] + "acme-lib/")
	stop(func(string, ...any) {})
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", resp, err)
	}
	resp.Body.Close()
	name := filepath.Join(inv.settings.Root, auditFile)
	v, err := audit.VerifyFile(name)
	trail, _ := os.ReadFile(name)
	if err != nil || v.Last < 2 {
		t.Fatalf("%+v %v:\n%s", v, err, trail)
	}
	for _, want := range []string{`"caller":"operator"`, `"execution_id":"runners install"`, `"path":"/simple/acme-lib/"`} {
		if !strings.Contains(string(trail), want) {
			t.Errorf("no %s in\n%s", want, trail)
		}
	}
}

// TestOnlyOwnFixes: the fix of a failed installation repeats its flag.
func TestOnlyOwnFixes(t *testing.T) {
	got := onlyOwn([]runner.Problem{{Runner: "a", Fix: "check the file, then mcp-code-sandbox runners install"}, {Runner: "b", Fix: "mcp-code-sandbox runners install"}})
	if got[0].Fix != "check the file, then mcp-code-sandbox runners install --own" || got[1].Fix != "mcp-code-sandbox runners install" {
		t.Errorf("%+v", got)
	}
}

// TestPackagesLine: the banner does not offer packages that no environment can install.
func TestPackagesLine(t *testing.T) {
	for _, test := range []struct {
		set  runner.Set
		want string
	}{
		{runner.Set{installer}, "pypi (npm: run mcp-code-sandbox runners install first)"},
		{nil, "(npm, pypi: run mcp-code-sandbox runners install first)"},
	} {
		if got := packagesLine([]string{"npm", "pypi"}, test.set); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
	if got := packagesLine([]string{"pypi"}, runner.Set{installer}); got != "pypi" {
		t.Errorf("%q", got)
	}
}

// TestCacheDenied: the error of a cache that cannot be made says what to do.
func TestCacheDenied(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write anywhere")
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "cache"), 0o500); err != nil {
		t.Fatal(err)
	}
	_, err := newMirror(packages.Config{CacheDir: packageCache(&settings{Root: root})})
	if err == nil || !strings.Contains(err.Error(), "make "+filepath.Join(root, "cache")+" writable for the server's user") {
		t.Errorf("%v", err)
	}
}
