package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/ratelimit"
)

// endedUsers knows one token, which was valid once, and one that it cannot check.
type endedUsers struct{}

func (endedUsers) Verify(_ context.Context, token string) (string, time.Time, error) {
	switch token {
	case "ended":
		return "", time.Time{}, httpapi.ErrTokenEnded
	case "unchecked":
		return "", time.Time{}, fmt.Errorf("%w: no database", httpapi.ErrUnchecked)
	}
	return "", time.Time{}, http.ErrNoCookie
}

func (endedUsers) Challenge() string { return "" }

// TestWrongTokensAreThrottled: an attacker tries tokens as fast as the server answers.
func TestWrongTokensAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := httpapi.New(config(func(c *httpapi.Config) { c.Users = endedUsers{} }))
		try := func(from, path, token string) int {
			r := request("GET", path)
			if token != "" {
				r.Header.Set("Authorization", "Bearer "+token)
			}
			r.RemoteAddr = from
			w := do(h, r)
			if w.Code == 429 && (w.Header().Get("Retry-After") == "" || w.Header().Get("Connection") != "close" || w.Header().Get("WWW-Authenticate") != "") {
				t.Errorf("429 with %v", w.Header())
			}
			return w.Code
		}
		guesses := func(from, path string) (answered int) {
			for range 1400 {
				if try(from, path, "guess") == 401 {
					answered++
				}
			}
			return answered
		}
		const attacker, other = "192.0.2.1:1000", "198.51.100.7:1000"
		if n := guesses(attacker, "/mcp"); n != 30 {
			t.Errorf("%d of 1400 wrong tokens were answered", n)
		}
		if n := guesses("192.0.2.1:2000", "/metrics"); n != 0 {
			t.Errorf("%d more by another port and address of the server", n)
		}
		for what, got := range map[string][2]int{
			"the right token from there":     {try(attacker, "/mcp", token), 200},
			"a token that has expired":       {try(attacker, "/mcp", "ended"), 401},
			"a token that nobody can check":  {try(attacker, "/mcp", "unchecked"), 503},
			"no token":                       {try(attacker, "/mcp", ""), 401},
			"a wrong token from elsewhere":   {try(other, "/mcp", "x"), 401},
			"the right token from elsewhere": {try(other, "/metrics", token), 200},
		} {
			if got[0] != got[1] {
				t.Errorf("%s: %d, want %d", what, got[0], got[1])
			}
		}
		time.Sleep(10 * time.Second) // of synctest's clock
		if n := guesses(attacker, "/mcp"); n != 10 {
			t.Errorf("%d wrong tokens were answered ten seconds later", n)
		}
	})
}

// TestLoginsCannotBeChecked: clients whose logins cannot be checked, however often they try, are
// asked to try again. They are not told that their token is wrong.
func TestLoginsCannotBeChecked(t *testing.T) {
	var logged bytes.Buffer
	h := httpapi.New(config(func(c *httpapi.Config) {
		c.Users, c.Logger = endedUsers{}, slog.New(slog.NewTextHandler(&logged, nil))
	}))
	for range 100 {
		w := do(h, request("POST", "/mcp", "Authorization", "Bearer unchecked"))
		if w.Code != 503 || w.Header().Get("Retry-After") != "10" || w.Header().Get("WWW-Authenticate") != "" || !json.Valid(w.Body.Bytes()) ||
			!strings.Contains(w.Body.String(), "logins cannot be checked now; try again in 10 seconds") || strings.Contains(w.Body.String(), "database") {
			t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
		}
	}
	if !strings.Contains(logged.String(), "no database") {
		t.Errorf("the log does not say why:\n%s", logged.String())
	}
	if w := do(h, request("GET", "/mcp", "Authorization", "Bearer guess")); w.Code != 401 {
		t.Errorf("a wrong token after that: %d", w.Code)
	}
}

// TestForwardedClients: only a trusted proxy may name the client.
func TestForwardedClients(t *testing.T) {
	var seen string
	h := httpapi.New(config(func(c *httpapi.Config) {
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
		c.MCP = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.RemoteAddr })
	}))
	for _, tt := range []struct {
		name, peer string
		headers    []string
		want       string
	}{
		{"through the proxy", "127.0.0.1:5", []string{"192.0.2.1"}, "192.0.2.1:0"},
		{"mapped peer", "[::ffff:127.0.0.1]:5", []string{"192.0.2.1"}, "192.0.2.1:0"},
		{"two proxies", "127.0.0.1:5", []string{"192.0.2.1, 10.1.2.3"}, "192.0.2.1:0"},
		{"two headers", "127.0.0.1:5", []string{"192.0.2.1", "10.1.2.3"}, "192.0.2.1:0"},
		{"IPv6", "[fd00::1]:5", []string{"2001:db8::1"}, "[2001:db8::1]:0"},
		{"IPv6 with a port", "127.0.0.1:5", []string{"[2001:db8::1]:443"}, "[2001:db8::1]:0"},
		{"IPv4 with a port", "127.0.0.1:5", []string{"192.0.2.1:443"}, "192.0.2.1:0"},
		{"no header", "127.0.0.1:5", nil, "127.0.0.1:5"},
		{"all are proxies", "127.0.0.1:5", []string{"10.0.0.9, 10.0.0.8"}, "10.0.0.9:0"},

		{"a client's own claim", "192.0.2.9:5", []string{"198.51.100.1"}, "192.0.2.9:5"},
		{"a client's claim through the proxy", "127.0.0.1:5", []string{"198.51.100.1, 192.0.2.9"}, "192.0.2.9:0"},
		{"a client that says it is a proxy", "127.0.0.1:5", []string{"198.51.100.1, 10.0.0.1, 192.0.2.9"}, "192.0.2.9:0"},
		{"nonsense before the client", "127.0.0.1:5", []string{"<script>, 192.0.2.9"}, "192.0.2.9:0"},
		{"nonsense behind a proxy", "127.0.0.1:5", []string{"192.0.2.9, unknown, 10.0.0.1"}, "10.0.0.1:0"},
		{"nothing but nonsense", "127.0.0.1:5", []string{"unknown"}, "127.0.0.1:5"},
		{"empty", "127.0.0.1:5", []string{""}, "127.0.0.1:5"},
	} {
		r := request("GET", "/mcp", "Authorization", "Bearer "+token)
		r.RemoteAddr = tt.peer
		for _, value := range tt.headers {
			r.Header.Add("X-Forwarded-For", value)
		}
		if w := do(h, r); w.Code != 200 || seen != tt.want {
			t.Errorf("%s: %d, %s, want %s", tt.name, w.Code, seen, tt.want)
		}
	}
	// Each client has its own budget, of wrong tokens here, and of logins in the same way.
	login := ratelimit.New(rate.Every(time.Hour), 5, rate.Every(time.Millisecond), 1000, nil)
	h = httpapi.New(config(func(c *httpapi.Config) {
		c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
		c.Login = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !login.Allow(r) {
				w.WriteHeader(429)
			}
		})
	}))
	try := func(client, path string) int {
		r := request("GET", path, "Authorization", "Bearer guess", "X-Forwarded-For", client)
		r.RemoteAddr = "127.0.0.1:5"
		return do(h, r).Code
	}
	for range 100 {
		try("192.0.2.1", "/mcp")
		try("192.0.2.1", "/oauth/login")
	}
	for path, want := range map[string]int{"/mcp": 401, "/oauth/login": 200} {
		if got, others := try("192.0.2.1", path), try("198.51.100.7", path); got != 429 || others != want {
			t.Errorf("%s: %d to the one who used up the budget, %d to another", path, got, others)
		}
	}

	// Without the setting, the header is ignored.
	plain := httpapi.New(config(func(c *httpapi.Config) {
		c.MCP = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.RemoteAddr })
	}))
	r := request("GET", "/mcp", "Authorization", "Bearer "+token, "X-Forwarded-For", "198.51.100.1")
	r.RemoteAddr = "127.0.0.1:5"
	if do(plain, r); seen != "127.0.0.1:5" {
		t.Errorf("without the setting: %s", seen)
	}
}
