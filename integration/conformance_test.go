//go:build linux

package integration

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

// conformanceMust lists the scenarios that need no fixture of the suite. They must pass, whatever
// conformance/ lists.
var conformanceMust = map[string][]string{
	"2025-11-25": {"server-initialize", "ping", "logging-set-level", "tools-list", "resources-list", "prompts-list",
		"server-session-lifecycle", "server-sse-multiple-streams", "dns-rebinding-protection"},
	"2026-07-28": {"tools-list", "resources-list", "prompts-list", "sep-2164-resource-not-found", "caching", "dns-rebinding-protection",
		"server-sse-multiple-streams", "http-header-validation", "input-required-result-unsupported-methods"},
}

// TestConformance runs the official suite. It fails when an unlisted scenario fails, and when a
// scenario listed in conformance/ passes.
func TestConformance(t *testing.T) {
	interpreter := node(t)
	suite := filepath.Join(clientsDir(t), "node_modules", ".bin", "conformance")
	s := serve(t)
	proxy := httptest.NewServer(authenticating(t, s))
	t.Cleanup(proxy.Close)
	for revision, must := range conformanceMust {
		t.Run(revision, func(t *testing.T) {
			expected, err := filepath.Abs(filepath.Join("conformance", "expected-"+revision+".yml"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, interpreter, suite, "server", "--url", proxy.URL+"/mcp",
				"--requirements", revision, "--expected-failures", expected)
			cmd.Dir = t.TempDir() // it may write its results there
			cmd.Env = baseEnv()
			cmd.WaitDelay = 5 * time.Second
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			// The suite itself accepts a listed scenario that passes with a warning.
			for _, scenario := range listed(t, expected) {
				if regexp.MustCompile(`✓ ` + scenario + `: `).Match(out) {
					t.Errorf("%s passes; take it out of %s", scenario, expected)
				}
			}
			for _, scenario := range must {
				if !regexp.MustCompile(`✓ ` + scenario + `: [1-9]\d* passed, 0 failed`).Match(out) {
					t.Errorf("%s did not pass:\n%s", scenario, out)
				}
			}
		})
	}
}

// listed returns the whole scenarios of a list of expected failures.
func listed(t *testing.T, file string) (scenarios []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ +- ([a-z0-9-]+)$`).FindAllStringSubmatch(string(text), -1) {
		scenarios = append(scenarios, m[1])
	}
	if len(scenarios) == 0 {
		t.Fatalf("%s lists nothing", file)
	}
	return scenarios
}

// authenticating is a proxy that adds the token, which the suite cannot send, and changes nothing
// else. It reads the whole body first: an earlier answer would make the transport cut the
// connection.
func authenticating(t *testing.T, s *server) http.Handler {
	t.Helper()
	target, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
			if body, err := io.ReadAll(r.In.Body); err == nil && len(body) > 0 {
				r.Out.Body = io.NopCloser(bytes.NewReader(body))
			}
			r.Out.Header.Set("Authorization", "Bearer "+s.Token)
		},
	}
}
