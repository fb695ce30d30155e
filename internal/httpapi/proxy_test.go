package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/httpapi"
)

// people is a login server that knows alice.
type people struct{}

func (people) Verify(_ context.Context, token string) (string, time.Time, error) {
	switch token {
	case "alice-token":
		return "user:alice", time.Now().Add(time.Minute), nil
	case "expired-token":
		return "user:alice", time.Now().Add(-time.Minute), nil
	case "impostor": // an upstream that calls somebody "local"
		return "local", time.Now().Add(time.Minute), nil
	}
	return "", time.Time{}, errors.New("invalid")
}

func (people) Challenge() string {
	return `resource_metadata="https://here/.well-known/oauth-protected-resource"`
}

func show(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, name+" "+r.URL.EscapedPath()) })
}

func withPeople(c *httpapi.Config) {
	c.Users, c.Proxy, c.API, c.Login = people{}, show("proxy"), http.HandlerFunc(whoami), show("login")
}

func TestUsers(t *testing.T) {
	h := httpapi.New(config(withPeople))
	for _, tc := range []struct {
		path, token string
		status      int
		body        string
	}{
		{"/mcp", "alice-token", 200, "user:alice"},
		{"/mcp", token, 200, "local"},
		{"/api/execution-tokens", "alice-token", 200, "user:alice"},
		{"/api/execution-tokens", token, 200, "local"},
		{"/metrics", token, 200, "local"},
		{"/metrics", "alice-token", 401, ""}, // the operator's alone
		{"/mcp", "expired-token", 401, ""},
		{"/mcp", "impostor", 401, ""},
		{"/mcp", "nobody", 401, ""},
		{"/api/execution-token", "nobody", 401, ""},
		{"/api/execution-token", "", 401, ""},
	} {
		var headers []string
		if tc.token != "" {
			headers = []string{"Authorization", "Bearer " + tc.token}
		}
		w := do(h, request("GET", tc.path, headers...))
		if w.Code != tc.status || tc.status == 200 && w.Body.String() != tc.body {
			t.Errorf("%s with %q: %d %s", tc.path, tc.token, w.Code, w.Body)
		}
		challenge := w.Header().Get("WWW-Authenticate")
		if leads := strings.Contains(challenge, "resource_metadata="); tc.status == 401 && leads != (tc.path != "/metrics") {
			t.Errorf("%s with %q: challenge %q", tc.path, tc.token, challenge)
		}
	}
}

// TestProxyPaths: the proxy sees every path as it was sent, neither cleaned nor redirected.
func TestProxyPaths(t *testing.T) {
	with, without := httpapi.New(config(withPeople)), httpapi.New(config(nil))
	for path, want := range map[string]string{
		"/proxy/datadog/api/../admin":               "proxy",
		"/proxy/datadog//x":                         "proxy",
		"/proxy/datadog/%2e%2e/x":                   "proxy",
		"/proxy/../mcp":                             "proxy",
		"/oauth/token":                              "login",
		"/connections":                              "login",
		"/connections/callback/datadog":             "login",
		"/.well-known/oauth-protected-resource/mcp": "login",
	} {
		r := request("GET", "/", "Host", "127.0.0.1")
		r.URL.Path, r.URL.RawPath = strings.ReplaceAll(path, "%2e", "."), path
		if w := do(with, r); w.Code != 200 || w.Body.String() != want+" "+path {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		r = request("GET", "/", "Host", "127.0.0.1")
		r.URL.Path, r.URL.RawPath = strings.ReplaceAll(path, "%2e", "."), path
		if w := do(without, r); w.Code == 200 {
			t.Errorf("%s where there is no proxy: %d %s", path, w.Code, w.Body)
		}
	}
	if w := do(with, request("GET", "/proxy/datadog/x", "Host", "evil.example.com")); w.Code != 403 {
		t.Errorf("another host: %d", w.Code)
	}
}
