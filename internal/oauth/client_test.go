package oauth

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestMetadata(t *testing.T) {
	s := newSite(t)
	var server struct {
		Issuer        string
		Authorization string   `json:"authorization_endpoint"`
		Token         string   `json:"token_endpoint"`
		Challenges    []string `json:"code_challenge_methods_supported"`
		AuthMethods   []string `json:"token_endpoint_auth_methods_supported"`
		Iss           bool     `json:"authorization_response_iss_parameter_supported"`
		Documents     bool     `json:"client_id_metadata_document_supported"`
	}
	r := s.send("GET", "/.well-known/oauth-authorization-server", "", "")
	if err := json.Unmarshal([]byte(r.Body), &server); err != nil || server.Issuer != s.srv.cfg.Issuer || fmt.Sprint(server.Challenges, server.AuthMethods) != "[S256] [none]" || !server.Iss || !server.Documents {
		t.Errorf("%s, %v", r.Body, err)
	}
	challenge := s.srv.Challenge()
	for _, path := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
		var resource struct {
			Resource string
			Servers  []string `json:"authorization_servers"`
		}
		r := s.send("GET", path, "", "")
		if err := json.Unmarshal([]byte(r.Body), &resource); err != nil || resource.Resource != s.url("/mcp") || len(resource.Servers) != 1 || resource.Servers[0] != server.Issuer {
			t.Errorf("%s: %s, %v", path, r.Body, err)
		}
		if r.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%s: a page in a browser cannot read it: %v", path, r.Header)
		}
	}
	if want := fmt.Sprintf(`resource_metadata="%s/.well-known/oauth-protected-resource/mcp", scope="mcp"`, s.srv.cfg.Issuer); challenge != want {
		t.Errorf("challenge %s", challenge)
	}
	if r := s.send("OPTIONS", "/oauth/token", "", ""); r.Status != 204 || r.Header.Get("Access-Control-Allow-Methods") != "POST" || r.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("preflight: %d %v", r.Status, r.Header)
	}
	if r := s.send("GET", "/oauth/authorize", "", ""); r.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("a page of any origin can read the authorization endpoint")
	}
	if r := s.send("GET", "/oauth/token", "", ""); r.Status != 405 {
		t.Errorf("GET of the token endpoint: %d", r.Status)
	}
}

// With a path, the well-known URL ends with it (RFC 8414, 3.1).
func TestMetadataBehindAPath(t *testing.T) {
	s := newSite(t, func(c *Config) { c.Issuer += "/sandbox/"; c.Resource = c.Issuer + "mcp" })
	if got := s.srv.cfg.Issuer; strings.HasSuffix(got, "/") {
		t.Errorf("issuer %s", got)
	}
	base := strings.TrimSuffix(s.srv.cfg.Issuer, "/sandbox")
	for _, path := range []string{"/.well-known/oauth-authorization-server/sandbox", "/.well-known/oauth-protected-resource/sandbox/mcp"} {
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
}

func TestRegistrationRefuses(t *testing.T) {
	s := newSite(t)
	many := make([]string, maxRedirects+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"https://client.example/%d"`, i)
	}
	for name, body := range map[string]string{
		"no JSON":          `redirect_uris=https://client.example/`,
		"no address":       `{"client_name": "x"}`,
		"empty list":       `{"redirect_uris": []}`,
		"too many":         `{"redirect_uris": [` + strings.Join(many, ",") + `]}`,
		"plain http":       `{"redirect_uris": ["http://client.example/cb"]}`,
		"script":           `{"redirect_uris": ["javascript:alert(1)"]}`,
		"one bad of two":   `{"redirect_uris": ["https://client.example/cb", "data:text/html,x"]}`,
		"another grant":    `{"redirect_uris": ["https://client.example/cb"], "grant_types": ["client_credentials"]}`,
		"another response": `{"redirect_uris": ["https://client.example/cb"], "response_types": ["token"]}`,
		"too large":        `{"redirect_uris": ["https://client.example/cb"], "client_uri": "` + strings.Repeat("x", maxRegistration) + `"}`,
	} {
		if r := s.send("POST", "/oauth/register", "application/json", body); r.Status != 400 || !strings.HasPrefix(r.Error, "invalid_") {
			t.Errorf("%s: %d %s", name, r.Status, r.Body)
		}
	}
}

func TestRegistrationIsBounded(t *testing.T) {
	s := newSite(t)
	const body = `{"redirect_uris": ["https://client.example/cb"], "token_endpoint_auth_method": "client_secret_basic", "client_secret": "mine"}`
	var r reply
	for range 20 {
		if r = s.send("POST", "/oauth/register", "application/json", body); r.Status != 201 || r.AuthMethod != "none" || strings.Contains(r.Body, "secret") {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
	}
	if r = s.send("POST", "/oauth/register", "application/json", body); r.Status != 429 || r.Header.Get("Retry-After") == "" {
		t.Errorf("the 21st at once: %d %s", r.Status, r.Body)
	}
	s.clock.advance(time.Minute)
	old := s.register()
	if p := s.browser().Get(s.authorizeURL(s.ask(old, loopbackRedirect))); p.Status != 200 {
		t.Errorf("%d %s", p.Status, p.Body)
	}
	s.clock.advance(unusedTTL + time.Second)
	s.register() // removes old clients
	wantPage(t, s.browser().Get(s.authorizeURL(s.ask(old, loopbackRedirect))), 400, "add it again")
}

// Guesses are limited: each reads the database that runs and callers share.
func TestGuessesAreBounded(t *testing.T) {
	s, _, _ := connectSite(t)
	for name, guess := range map[string]func() int{
		"codes": func() int {
			return s.post("/oauth/token", url.Values{"grant_type": {"authorization_code"}, "client_id": {"x"}, "code": {"y"}}).Status
		},
		"refresh tokens": func() int { return s.post("/oauth/revoke", url.Values{"client_id": {"x"}, "token": {"y"}}).Status },
		"logins":         func() int { return s.browser().Get(s.url("/oauth/callback?state=x&code=y")).Status },
		"connections":    func() int { return s.browser().Get(s.url("/connections/callback/datadog?state=x&code=y")).Status },
	} {
		refused := false
		for n := 0; n < 500 && !refused; n++ {
			refused = guess() == http.StatusTooManyRequests
		}
		if !refused {
			t.Errorf("%s may be guessed for ever", name)
		}
		s.clock.advance(time.Minute)
		if guess() == http.StatusTooManyRequests {
			t.Errorf("%s: refused for good", name)
		}
	}
}

func TestCleanName(t *testing.T) {
	for in, want := range map[string]string{
		"Claude Code":            "Claude Code",
		"  two\nlines\t ":        "two lines",
		"safe\u202egnp.exe":      "safe gnp.exe",
		"zero\u200bwidth":        "zero width",
		"<b>bold</b>":            "<b>bold</b>", // the page escapes it
		strings.Repeat("é", 100): strings.Repeat("é", 80) + "…",
		"\x00\x1b[31m":           "[31m",
		"invalid \xff bytes":     "invalid \uFFFD bytes",
	} {
		if got := cleanName(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	s := newSite(t)
	r := s.send("POST", "/oauth/register", "application/json", `{"client_name": "<script>alert(1)</script>", "redirect_uris": ["https://client.example/callback"]}`)
	p := s.browser().Get(s.authorizeURL(s.ask(r.ClientID, webRedirect)))
	if strings.Contains(p.Body, "<script") || !strings.Contains(p.Body, "&lt;script&gt;") {
		t.Errorf("a client's name is taken for HTML:\n%s", p.Body)
	}
}
