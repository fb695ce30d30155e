package packages

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

// TestCheck: a wrong address and a login page are not taken for an index.
func TestCheck(t *testing.T) {
	f := newFakeIndex(t)
	cfg := f.config(t)
	private := Index{URL: f.URL + "/private", Names: []string{"acme-*"}}
	cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: f.URL + "/simple"}, private}}}
	m := start(t, cfg)
	check := func(want string) {
		t.Helper()
		err := m.Check(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "private")) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := m.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "/private/: it lists no files of pip, and answers /private/ with 404 Not Found") {
		t.Errorf("%v", err)
	}
	f.serve("/private/", "text/html", []byte(`<a href="acme-tool/">acme-tool</a>`))
	check("it lists no files of pip, and answers /simple/ with 404 Not Found")
	f.serve("/simple/pip/", "text/html", []byte(`<html><a href="/login">Log in</a></html>`))
	check("it lists no files of pip")
	f.on("/simple/pip/", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	check("status 401")
	f.serve("/simple/pip/", "text/html", []byte(`<a href="pip-1.0-py3-none-any.whl#sha256=`+strings.Repeat("a", 64)+`">pip</a>`))
	check("does not say when pip 1.0 was released")
	f.project("pip", f.add("pip-1.0-py3-none-any.whl", "1.0"))
	check("")
}

// TestCheckRoot: an index without the package is known by its own address, and no other page is
// taken for one.
func TestCheckRoot(t *testing.T) {
	for _, test := range []struct {
		name, contentType, root, want string
		names                         []string
	}{
		{"a list", "text/html", `<a href="/simple/acme-tool/">acme-tool</a>`, "", nil},
		{"a relative list", "text/html", `<p>x<br/><a href="#">up</a><a href="Acme_Tool">Acme_Tool</a>`, "", nil},
		{"a private list", "text/html; charset=utf-8", `<a href="acme-tool/">acme-tool</a>`, "", []string{"acme-*"}},
		{"an empty list", "text/html", `<meta name="pypi:repository-version" content="1.0">`, "", nil},
		{"an empty list in JSON", simpleJSON, `{"projects":[]}`, "", []string{"acme-*"}},
		{"a login page", "text/html", `<form action="/login"></form><a href="/forgot">Forgot?</a><a href="..">Up</a>`, "answers /simple/ with a page that is not that of an index", nil},
		{"a private login page", "text/html", `<script src="app.js"></script>`, "add one of its packages to names", []string{"acme-*"}},
		{"links elsewhere", "text/html", `<a href="https://example.com/simple/x/">x</a><a href="a/b/">y</a>`, "not that of an index", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFakeIndex(t)
			f.serve("/simple/", test.contentType, []byte(test.root))
			cfg := f.config(t)
			cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: f.URL + "/simple", Names: test.names}}}}
			m := start(t, cfg)
			wantCheck(t, m, test.want)
			f.serve("/simple/pip/", simpleJSON, []byte(`{"files":[]}`)) // as some answer for any name
			wantCheck(t, m, test.want)
		})
	}
}

// TestCheckLogin: a redirect to a login is not taken for an index.
func TestCheckLogin(t *testing.T) {
	f, login := newFakeIndex(t), newFakeIndex(t)
	login.serve("/", "text/html", []byte(`<a href="simple/">Log in</a>`))
	to := "/login"
	redirect := func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) }
	f.serve("/login", "text/html", []byte(`<form></form>`))
	for _, path := range []string{"/simple/pip/", "/simple/", "/npm/semver", "/npm/-/ping"} {
		f.on(path, redirect)
	}
	m := start(t, f.config(t))
	wantCheck(t, m, "the index's page cannot be read: it is a page to fill in")
	wantCheck(t, m, "the index's page cannot be read: it is a web page")
	to = login.URL
	wantCheck(t, m, "it redirects to "+strings.TrimPrefix(login.URL, "http://"))

	secure := httptest.NewTLSServer(login.Config.Handler)
	defer secure.Close()
	cfg := f.config(t)
	cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: f.URL + "/simple", CAFile: certificateOf(t, secure), AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}}}
	to = secure.URL
	wantCheck(t, start(t, cfg), "answers /simple/ with a page of "+strings.TrimPrefix(secure.URL, "https://")+", to which it redirects")
}

// TestCheckNPM: a registry without the package answers a ping.
func TestCheckNPM(t *testing.T) {
	f := newFakeIndex(t)
	cfg := f.config(t)
	delete(cfg.Kinds, PyPI)
	m := start(t, cfg)
	wantCheck(t, m, "it lists no files of semver, and answers /npm/-/ping with 404 Not Found")
	f.serve("/npm/-/ping", "text/html", []byte("<html>Log in</html>"))
	wantCheck(t, m, "not that of an index")
	f.serve("/npm/-/ping", "application/json; charset=utf-8", []byte("{}"))
	wantCheck(t, m, "")
}

// TestCheckAsks: an index is asked for a package that it has, and for no name of another index.
func TestCheckAsks(t *testing.T) {
	f := newFakeIndex(t)
	f.project("six", f.add("six-1.0-py3-none-any.whl", "1.0"))
	f.serve("/private/acme-tool/", "text/html", []byte(`<a href="acme_tool-1.0-py3-none-any.whl#sha256=`+sum("1")+`">`))
	cfg := f.config(t)
	cfg.MinAge = 0
	private := Index{URL: f.URL + "/private", Names: []string{"acme-*", "acme-tool"}}
	cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: f.URL + "/simple"}, private}, Allow: []string{"acme-*", "acme-tool", "six"}}}
	wantCheck(t, start(t, cfg), "")
	if f.total() != 2 || f.hit("/simple/six/") != 1 || f.hit("/private/acme-tool/") != 1 {
		t.Errorf("asked for %v", f.hits)
	}
}

// TestCheckAge: an index whose names are patterns is asked for a project that it lists, and an
// index without upload times is no use unless any age is allowed.
func TestCheckAge(t *testing.T) {
	const hash = "#sha256=0000000000000000000000000000000000000000000000000000000000000000"
	for name, list := range map[string]struct{ contentType, text string }{
		"HTML": {"text/html", `<a href="other/">other</a><a href="acme-gone/">acme-gone</a><a href="Acme_Lib/">Acme_Lib</a>`},
		"JSON": {simpleJSON, `{"meta": {"x": [1]}, "projects": [{"name": "other"}, {"name": "acme-gone"}, {"name": "Acme_Lib"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeIndex(t)
			f.serve("/simple/", list.contentType, []byte(list.text))
			f.serve("/simple/acme-lib/", "text/html", []byte(`<a href="acme_lib-1.0-py3-none-any.whl`+hash+`">`))
			cfg := f.config(t)
			cfg.Kinds = map[string]Kind{PyPI: {Indexes: []Index{{URL: f.URL + "/simple", Names: []string{"acme-*"}}}}}
			wantCheck(t, start(t, cfg), "package_age_unknown: The index does not say when acme-lib 1.0 was released")
			if f.hit("/simple/other/") != 0 || f.hit("/simple/acme-gone/") != 1 {
				t.Errorf("asked for %v", f.hits)
			}
			cfg.MinAge = 0
			wantCheck(t, start(t, cfg), "")
		})
	}
}

// TestKindWarnings: a list that shuts out a private index, or everything, is worth a warning.
func TestKindWarnings(t *testing.T) {
	private := func(names ...string) []Index {
		return []Index{{URL: "https://p.example/simple", Names: names}, {URL: "https://q.example"}}
	}
	for _, test := range []struct {
		kind Kind
		want string
	}{
		{Kind{Indexes: private("acme-lib")}, ""},
		{Kind{Indexes: private("acme-lib"), Allow: []string{"shapely", "Acme_Lib"}}, ""},
		{Kind{Indexes: private("acme-*"), Allow: []string{"shapely", "*-lib"}}, ""},
		{Kind{Indexes: private("acme-lib", "acme-x"), Allow: []string{"shapely", "acme-x"}}, ""},
		{Kind{Indexes: private("acme-lib"), Allow: []string{"shapely"}},
			"packages.pypi.allow leaves out every name of the private index https://p.example/simple: add acme-lib to packages.pypi.allow"},
		{Kind{Indexes: private("acme-*", "x"), Allow: []string{"shapely"}}, "add acme-*, x to packages.pypi.allow"},
		{Kind{Allow: []string{}}, "packages.pypi.allow is empty, so code can install nothing from pypi"},
		{Kind{Deny: []string{"*"}}, "packages.pypi.allow and deny leave no name, so code can install nothing from pypi"},
		{Kind{Indexes: private("acme-lib"), Deny: []string{"acme-*"}}, "packages.pypi.deny has every name of the private index https://p.example/simple (acme-lib)"},
		{Kind{Indexes: private("acme-*"), Deny: []string{"acme-*"}}, "packages.pypi.deny has every name of the private index"},
		{Kind{Indexes: private("acme-*"), Deny: []string{"acme-lib"}}, ""},
	} {
		list := test.kind.Warnings(PyPI)
		if got := strings.Join(list, "\n"); !strings.Contains(got, test.want) || (test.want == "") != (got == "") {
			t.Errorf("%+v: %q, want %q", test.kind, got, test.want)
		}
	}
}

// wantCheck compares the error of the check with a part of it; "" means none.
func wantCheck(t *testing.T, m *Mirror, want string) {
	t.Helper()
	err := m.Check(t.Context())
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%v, want %q", err, want)
	}
}
