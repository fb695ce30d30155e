//go:build linux

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// fakeServer makes TestKinds in another process answer as a server does.
const fakeServer = "BENCH_TEST_FAKE_SERVER"

// TestKinds checks that a bench goes on without an ordinary user's server that does not start, and
// says why. Without its own kind of server it cannot go on.
func TestKinds(t *testing.T) {
	if os.Getenv(fakeServer) != "" {
		t.Fatal(http.ListenAndServe(os.Getenv("MCP_HTTP_ADDR"), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	}
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "needs root: an ordinary user beside it")
	}
	t.Setenv(fakeServer, "1")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	serve := "exec " + self + " -test.run='^TestKinds$'"
	for name, test := range map[string]struct {
		script  string
		kinds   []string
		missing string
		fails   string
	}{
		"no ordinary user's": {`[ "$(id -u)" = 0 ] || { echo "no user namespaces" >&2; exit 1; }; ` + serve, []string{rootKind},
			"The ordinary user's server was left out: the shared server: it has ended\nno user namespaces", ""},
		"none": {`echo "no bubblewrap" >&2; exit 1`, nil, "", "the shared server: it has ended\nno bubblewrap"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b := &bench{dir: dir, runners: filepath.Join(dir, "runners"), binary: filepath.Join(dir, "server")}
			if err := os.Mkdir(b.runners, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(b.binary, []byte("#!/bin/sh\n"+test.script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := b.close(); err != nil {
					t.Error(err)
				}
			}()
			kinds, err := b.kinds(t.Context())
			var names []string
			for _, k := range kinds {
				names = append(names, k.name)
			}
			if got, want := strings.Join(names, " "), strings.Join(test.kinds, " "); got != want {
				t.Errorf("kinds %q, want %q", got, want)
			}
			for _, e := range []struct {
				got  error
				want string
			}{{b.missing, test.missing}, {err, test.fails}} {
				if (e.got != nil) != (e.want != "") || e.got != nil && !strings.Contains(e.got.Error(), e.want) {
					t.Errorf("%v, want %q", e.got, e.want)
				}
			}
			if _, ok, err := b.kindNamed(t.Context(), ordinaryKind); ok || (err != nil) != (test.fails != "") {
				t.Errorf("kindNamed = %v, %v", ok, err)
			}
		})
	}
}
