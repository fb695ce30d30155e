package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/secret"
)

const token = "a-token-for-tests"

// whoami answers with the caller that the handler got, and reads the body.
func whoami(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	info := auth.TokenInfoFromContext(r.Context())
	if info == nil {
		fmt.Fprint(w, "nobody")
		return
	}
	fmt.Fprint(w, info.UserID)
}

func config(change func(*httpapi.Config)) httpapi.Config {
	cfg := httpapi.Config{
		MCP: http.HandlerFunc(whoami), Metrics: http.HandlerFunc(whoami), Token: secret.New(token),
		AllowedHosts: []string{"sandbox.example.com", "other.example.com:8443", "*.wild.example.com"}, AllowedOrigins: []string{"https://app.example.com"},
		MaxUploadBytes: 1000, Page: testPage(),
	}
	if change != nil {
		change(&cfg)
	}
	return cfg
}

func request(method, target string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.Host = "127.0.0.1:8080"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

func do(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestAuthentication(t *testing.T) {
	open := httpapi.New(config(nil))
	for _, tc := range []struct {
		name    string
		path    string
		headers []string
		status  int
		errorIn string // in the challenge
	}{
		{"right", "/mcp", []string{"Authorization", "Bearer " + token}, 200, ""},
		{"scheme in any case", "/mcp/events", []string{"Authorization", "bearer " + token}, 200, ""},
		{"metrics", "/metrics", []string{"Authorization", "Bearer " + token}, 200, ""},
		{"none", "/mcp", nil, 401, ""},
		{"none for events", "/mcp/events", nil, 401, ""},
		{"none for metrics", "/metrics", nil, 401, ""},
		{"none below", "/mcp/anything", nil, 401, ""},
		{"wrong", "/mcp", []string{"Authorization", "Bearer x"}, 401, "invalid_token"},
		{"prefix", "/mcp", []string{"Authorization", "Bearer " + token[:len(token)-1]}, 401, "invalid_token"},
		{"longer", "/mcp", []string{"Authorization", "Bearer " + token + "x"}, 401, "invalid_token"},
		{"empty", "/mcp", []string{"Authorization", "Bearer "}, 401, "invalid_token"},
		{"basic", "/mcp", []string{"Authorization", "Basic " + token}, 401, "invalid_token"},
		{"bare", "/mcp", []string{"Authorization", token}, 401, "invalid_token"},
		{"twice", "/mcp", []string{"Authorization", "Bearer x", "Authorization", "Bearer " + token}, 401, "invalid_token"},
		{"in the query", "/mcp?token=" + token, nil, 401, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := do(open, request("GET", tc.path, tc.headers...))
			if w.Code != tc.status {
				t.Fatalf("status = %d, want %d: %s", w.Code, tc.status, w.Body)
			}
			if tc.status == 200 {
				if w.Body.String() != "local" {
					t.Errorf("the caller is %q, want local", w.Body)
				}
				return
			}
			challenge := w.Header().Get("WWW-Authenticate")
			if !strings.HasPrefix(challenge, "Bearer ") || strings.Contains(challenge, "error=") != (tc.errorIn != "") || !strings.Contains(challenge, tc.errorIn) {
				t.Errorf("challenge = %q", challenge)
			}
			if strings.HasPrefix(tc.path, "/mcp") {
				var body struct {
					JSONRPC string
					Error   struct {
						Code    int
						Message string
					}
				}
				if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.JSONRPC != "2.0" || body.Error.Code == 0 || !strings.Contains(body.Error.Message, "MCP_API_TOKEN") {
					t.Errorf("body = %s (%v)", w.Body, err)
				}
			}
		})
	}
	t.Run("a server without a token lets nobody in", func(t *testing.T) {
		h := httpapi.New(config(func(c *httpapi.Config) { c.Token = secret.Value{} }))
		for _, header := range []string{"Bearer ", "Bearer", "Bearer x"} {
			if w := do(h, request("POST", "/mcp", "Authorization", header)); w.Code != 401 {
				t.Errorf("%q: status = %d", header, w.Code)
			}
		}
	})
}

// TestNoLogins: a client that tries to log in without a login server gets an OAuth error that asks
// for the token.
func TestNoLogins(t *testing.T) {
	h := httpapi.New(config(nil))
	connectionsOnly := httpapi.New(config(func(c *httpapi.Config) { c.Login = http.NotFoundHandler() }))
	for _, ask := range []string{
		"POST /register", "POST /oauth/register", "GET /authorize", "POST /token", "GET /.well-known/oauth-protected-resource", "GET /.well-known/oauth-protected-resource/mcp",
		"GET /.well-known/oauth-authorization-server", "GET /.well-known/oauth-authorization-server/mcp", "GET /.well-known/openid-configuration",
	} {
		method, path, _ := strings.Cut(ask, " ")
		for _, h := range []http.Handler{h, connectionsOnly} {
			w := do(h, request(method, path))
			var body struct {
				Error       string
				Description string `json:"error_description"`
			}
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != 404 || w.Header().Get("Content-Type") != "application/json" ||
				body.Error != "invalid_request" || !strings.Contains(body.Description, "no logins") || !strings.Contains(body.Description, "Authorization: Bearer") {
				t.Errorf("%s: %d %s (%v)", ask, w.Code, w.Body, err)
			}
		}
	}
	if w := do(h, request("POST", "/mcp")); w.Code != 401 || !strings.Contains(w.Body.String(), "no logins") {
		t.Errorf("/mcp: %d %s", w.Code, w.Body)
	}
	// With a login server, the authorization server answers.
	withUsers := httpapi.New(config(func(c *httpapi.Config) {
		c.Users, c.Login = people{}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	}))
	for _, path := range []string{"/oauth/register", "/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"} {
		if w := do(withUsers, request("GET", path)); w.Code != 200 {
			t.Errorf("%s with logins: %d", path, w.Code)
		}
	}
}

func TestHostAndOrigin(t *testing.T) {
	h := httpapi.New(config(nil))
	for _, tc := range []struct {
		name   string
		path   string
		host   string
		origin string
		status int
		says   string
	}{
		{"loopback", "/", "127.0.0.1:8080", "", 200, ""},
		{"loopback by name", "/", "LOCALHOST:1", "", 200, ""},
		{"loopback IPv6", "/", "[::1]:8080", "", 200, ""},
		{"loopback IPv6 without port", "/", "[::1]", "", 200, ""},
		{"another loopback address", "/", "127.1.2.3", "", 200, ""},
		{"configured", "/", "Sandbox.Example.com.", "", 200, ""},
		{"configured with its port", "/", "other.example.com:8443", "", 200, ""},
		{"configured with another port", "/", "other.example.com:80", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"wildcard", "/", "a.b.wild.example.com:8080", "", 200, ""},
		{"wildcard's own suffix", "/", "notwild.example.com", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"rebinding", "/", "evil.example.net:8080", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"loopback as a label", "/", "127.0.0.1.evil.example.net", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"localhost as a label", "/", "localhost.evil.example.net", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"empty", "/", "", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"rebinding of MCP", "/mcp", "evil.example.net", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"rebinding of files", "/files/a/b?sig=1", "evil.example.net", "", 403, "SANDBOX_ALLOWED_HOSTS"},
		{"health is exempt", "/healthz", "10.0.0.1", "https://evil.example.net", 200, ""},
		{"readiness is exempt", "/readyz", "10.0.0.1", "", 200, ""},

		{"origin of loopback", "/", "127.0.0.1:8080", "http://localhost:6274", 200, ""},
		{"own origin", "/", "sandbox.example.com", "https://sandbox.example.com", 200, ""},
		{"configured origin", "/", "127.0.0.1:8080", "https://APP.example.com", 200, ""},
		{"configured origin's other scheme", "/", "127.0.0.1:8080", "http://app.example.com", 403, "SANDBOX_ALLOWED_ORIGINS"},
		{"foreign origin", "/", "127.0.0.1:8080", "https://evil.example.net", 403, "SANDBOX_ALLOWED_ORIGINS"},
		{"opaque origin", "/", "127.0.0.1:8080", "null", 403, "SANDBOX_ALLOWED_ORIGINS"},
		{"user name that looks like loopback", "/", "127.0.0.1:8080", "http://localhost@evil.example.net", 403, "SANDBOX_ALLOWED_ORIGINS"},
		{"scheme of an app", "/", "127.0.0.1:8080", "file://localhost", 403, "SANDBOX_ALLOWED_ORIGINS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := request("GET", tc.path, "Host", tc.host)
			if tc.origin != "" {
				r.Header.Set("Origin", tc.origin)
			}
			w := do(h, r)
			if w.Code != tc.status || !strings.Contains(w.Body.String(), tc.says) {
				t.Fatalf("status = %d, want %d; body %s", w.Code, tc.status, w.Body)
			}
		})
	}
}

func TestBodyLimit(t *testing.T) {
	limit := httpapi.MCPBodyLimit(1000)
	h := httpapi.New(config(nil))
	for _, tc := range []struct {
		name    string
		size    int64
		chunked bool
		status  int
	}{
		{"at the limit", limit, false, 200},
		{"over it, and says so", limit + 1, false, 413},
		{"over it, without saying so", limit + 1, true, 413},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body := &countingReader{r: io.LimitReader(zeros{}, tc.size)}
			r := httptest.NewRequest("POST", "/mcp", body)
			r.Host = "localhost"
			r.Header.Set("Authorization", "Bearer "+token)
			r.ContentLength = tc.size
			if tc.chunked {
				r.ContentLength = -1
			}
			w := do(h, r)
			if w.Code != tc.status {
				t.Fatalf("status = %d, want %d", w.Code, tc.status)
			}
			if tc.status == 413 && !tc.chunked && body.n > 0 {
				t.Errorf("%d bytes were read of a body that was refused", body.n)
			}
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func TestPanicIsAnsweredAndLogged(t *testing.T) {
	var logged bytes.Buffer
	h := httpapi.New(config(func(c *httpapi.Config) {
		c.MCP = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom") })
		c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	}))
	w := do(h, request("POST", "/mcp?sig=query-secret", "Authorization", "Bearer "+token))
	if w.Code != 500 || strings.Contains(w.Body.String(), "boom") || !json.Valid(w.Body.Bytes()) {
		t.Errorf("answer = %d %s", w.Code, w.Body)
	}
	for _, want := range []string{"boom", "[HTTP]", "status=500"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, logged.String())
		}
	}
	for _, secret := range []string{"query-secret", token} {
		if strings.Contains(logged.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, logged.String())
		}
	}
}

func TestReadinessIsTriedOncePerTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		var result error
		h := httpapi.New(config(func(c *httpapi.Config) {
			c.Ready = func(ctx context.Context) error {
				tries++
				if ctx.Err() != nil {
					t.Error("the probe was given a client's dead context")
				}
				return result
			}
		}))
		get := func(want int) {
			t.Helper()
			r := request("GET", "/readyz")
			ctx, cancel := context.WithCancel(r.Context())
			cancel() // a client that has gone
			if w := do(h, r.WithContext(ctx)); w.Code != want || strings.Contains(w.Body.String(), "/secret/path") {
				t.Errorf("status = %d, want %d: %s", w.Code, want, w.Body)
			}
		}
		get(200)
		result = errors.New("bwrap: /secret/path")
		get(200)
		if tries != 1 {
			t.Errorf("tried %d times within ten seconds", tries)
		}
		time.Sleep(11 * time.Second) // of the bubble's clock
		get(503)
		get(503)
		if tries != 2 {
			t.Errorf("tried %d times, want 2", tries)
		}
	})
}

// A stream must reach the client as it is written, through all wrappers.
func TestStreamsAreFlushed(t *testing.T) {
	release := make(chan struct{})
	h := httpapi.New(config(func(c *httpapi.Config) {
		c.MCP = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "first")
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
			<-release
		})
	}))
	srv := httptest.NewServer(h)
	defer srv.Close()
	defer close(release)
	req, err := http.NewRequestWithContext(t.Context(), "GET", srv.URL+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "first" {
		t.Fatalf("got %q, %v", got, err)
	}
}
