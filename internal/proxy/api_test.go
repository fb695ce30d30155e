package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/store"
)

// ask calls the API as a caller, or without one if caller is "".
func ask(t *testing.T, p *Proxy, caller, method, path, body string) (int, map[string]any) {
	t.Helper()
	h := p.API()
	if caller != "" {
		h = auth.RequireBearerToken(func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
			return &auth.TokenInfo{UserID: caller}, nil
		}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h)
	}
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer x")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	var v map[string]any
	if w.Body.Len() > 0 && w.Header().Get("Content-Type") == "application/json" {
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
	}
	return w.Code, v
}

func TestAPI(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, func(c *Config) {
		c.Services[0].Ceiling, c.Services[0].Defaults = []string{"/api/**"}, []string{"/api/v1/**"}
	})
	before := time.Now()
	code, v := ask(t, f.p, "ann", "POST", "/api/execution-token",
		`{"execution_id":"exec-abc123","target_service":"datadog","ttl_seconds":300,"allowed_paths":["/api/v1/metrics","/api/v2/logs"],"max_requests":1000}`)
	expires, err := time.Parse(time.RFC3339, fmt.Sprint(v["expires_at"]))
	if code != 200 || v["proxy_url"] != "https://sandbox.example/proxy/datadog" || err != nil ||
		expires.Before(before.Add(298*time.Second)) || expires.After(time.Now().Add(300*time.Second)) || !strings.HasSuffix(fmt.Sprint(v["expires_at"]), "Z") {
		t.Fatalf("%d %v", code, v)
	}
	token, jti := v["token"].(string), v["jti"].(string)
	for path, want := range map[string]int{"/api/v1/metrics": 200, "/api/v2/logs": 200, "/api/v1/x": 403} {
		if res, text := f.get("/proxy/datadog"+path, token); res.StatusCode != want {
			t.Errorf("%s: %s %s", path, res.Status, text)
		}
	}
	code, v = ask(t, f.p, "ann", "GET", "/api/execution-tokens", "")
	list, _ := json.Marshal(v["tokens"])
	if code != 200 || !strings.Contains(string(list), `"used_requests":2`) || !strings.Contains(string(list), jti) || strings.Contains(string(list), token) {
		t.Errorf("%d %s", code, list)
	}
	if code, v := ask(t, f.p, "bob", "GET", "/api/execution-tokens", ""); code != 200 || len(v["tokens"].([]any)) != 0 {
		t.Errorf("bob sees %v", v)
	}
	if code, _ := ask(t, f.p, "bob", "DELETE", "/api/execution-token/"+jti, ""); code != 404 {
		t.Errorf("bob revokes: %d", code)
	}
	if code, _ := ask(t, f.p, "ann", "DELETE", "/api/execution-token/"+jti, ""); code != 204 {
		t.Errorf("ann revokes: %d", code)
	}
	if code, _ := ask(t, f.p, "ann", "DELETE", "/api/execution-token/"+jti, ""); code != 404 {
		t.Errorf("ann revokes again: %d", code)
	}
	if res, text := f.get("/proxy/datadog/api/v1/metrics", token); res.StatusCode != 401 {
		t.Errorf("revoked: %s %s", res.Status, text)
	}

	// The smallest request gets the service's defaults: its paths, five minutes, no limit.
	code, v = ask(t, f.p, "ann", "POST", "/api/execution-token", `{"execution_id":"e","target_service":"datadog"}`)
	if code != 200 {
		t.Fatalf("%d %v", code, v)
	}
	claims, err := f.cfg.Keys.Verify(v["token"].(string), time.Now())
	if err != nil || claims.Exp-claims.Iat != 300 || fmt.Sprint(claims.Pth) != "[/api/v1/**]" || claims.Max != 0 || claims.Bnd != "net" || claims.Sub != "ann" || claims.RID != "e" {
		t.Errorf("%+v, %v", claims, err)
	}
	for path, want := range map[string]int{"/api/v1": 200, "/api/v2": 403} {
		if res, text := f.get("/proxy/datadog"+path, v["token"].(string)); res.StatusCode != want {
			t.Errorf("%s: %s %s", path, res.Status, text)
		}
	}
}

func TestAPIRefuses(t *testing.T) {
	f := setup(t, "http://127.0.0.1:1", func(c *Config) {
		c.Services[0].Ceiling, c.Services[0].Defaults, c.Services[0].Methods = []string{"/api/*/x", "/api/v1/**"}, []string{"/api/v1/**"}, []string{"GET"}
		bare := datadog(t, "http://127.0.0.1:1")
		bare.Name, bare.Defaults = "bare", nil
		far := datadog(t, "http://127.0.0.1:1")
		far.Name, far.Credential, far.ConnectURL = "far", source{}, "https://sandbox.example/connections"
		broken := datadog(t, "http://127.0.0.1:1")
		broken.Name, broken.Credential = "broken", source{"ann": credential.Credential{}}
		c.Services = append(c.Services, bare, far, broken, Service{Name: "off", Disabled: true})
	})
	with := func(fields string) string { return `{"execution_id":"e","target_service":"datadog"` + fields + `}` }
	for _, tc := range []struct {
		name, caller, body string
		status             int
		text               string
	}{
		{"nobody", "", with(""), 401, ""},
		{"not JSON", "ann", "x", 400, "JSON"},
		{"empty", "ann", "", 400, "JSON"},
		{"an array", "ann", "[]", 400, "JSON"},
		{"two values", "ann", with("") + with(""), 400, "more than one"},
		{"an unknown field", "ann", with(`,"allowed_path":["/api/v1/m"]`), 400, "allowed_path"},
		{"too much", "ann", with(`,"allowed_paths":["/` + strings.Repeat("a", maxRequestBody) + `"]`), 400, "JSON"},
		{"no execution", "ann", `{"target_service":"datadog"}`, 400, "execution_id is required"},
		{"no service", "ann", `{"execution_id":"e"}`, 400, "target_service is required"},
		{"a line break", "ann", `{"execution_id":"e\nINFO forged","target_service":"datadog"}`, 400, "printable"},
		{"an unknown service", "ann", `{"execution_id":"e","target_service":"Datadog"}`, 404, "404 Not Found: service Datadog not configured"},
		{"not enabled", "ann", `{"execution_id":"e","target_service":"off"}`, 400, "400 Bad Request: proxy not enabled for service off"},
		{"not connected", "ann", `{"execution_id":"e","target_service":"far"}`, 403, "403 Forbidden: user has not connected to service far"},
		{"an empty credential", "ann", `{"execution_id":"e","target_service":"broken"}`, 500, "internal"},
		{"TTL 0", "ann", with(`,"ttl_seconds":0`), 400, "ttl_seconds must be between 1 and 900"},
		{"TTL -1", "ann", with(`,"ttl_seconds":-1`), 400, "ttl_seconds"},
		{"TTL 901", "ann", with(`,"ttl_seconds":901`), 400, "ttl_seconds"},
		{"TTL that wraps", "ann", with(`,"ttl_seconds":18446744075`), 400, "ttl_seconds"},
		{"TTL of a half", "ann", with(`,"ttl_seconds":0.5`), 400, "JSON"},
		{"no requests", "ann", with(`,"max_requests":0`), 400, "max_requests must be positive"},
		{"beyond the ceiling", "ann", with(`,"allowed_paths":["/**"]`), 400, "allowed_paths: /** goes beyond"},
		{"beside the ceiling", "ann", with(`,"allowed_paths":["/api/v1/m","/api/*/*"]`), 400, "/api/*/* goes beyond"},
		{"dots", "ann", with(`,"allowed_paths":["/api/v1/../admin"]`), 400, "allowed_paths"},
		{"stars inside", "ann", with(`,"allowed_paths":["/api/v1/**/x"]`), 400, "last segment"},
		{"many paths", "ann", with(`,"allowed_paths":["/api/v1/m"` + strings.Repeat(`,"/api/v1/m"`, maxPatterns) + `]`), 400, "more than"},
		{"long paths", "ann", with(`,"allowed_paths":["/api/v1/m"` + strings.Repeat(`,"/api/v1/`+strings.Repeat("m", 400)+`"`, 12) + `]`), 400, "4096 bytes"},
		{"a method", "ann", with(`,"allowed_methods":["DELETE"]`), 400, "allowed_methods: DELETE"},
	} {
		code, v := ask(t, f.p, tc.caller, "POST", "/api/execution-token", tc.body)
		if code != tc.status || !strings.Contains(fmt.Sprint(v["message"]), tc.text) {
			t.Errorf("%s: %d %v, want %d %q", tc.name, code, v, tc.status, tc.text)
		}
		if tc.name == "not connected" && (v["connect_url"] != "https://sandbox.example/connections" || v["error"] != CodeNotConnected) {
			t.Errorf("%v", v)
		}
	}
	if list, err := f.p.List(t.Context(), "ann"); err != nil || len(list) != 0 {
		t.Errorf("tokens were made: %v, %v", list, err)
	}
	// A token without paths is valid but useless.
	for _, body := range []string{`{"execution_id":"e","target_service":"bare"}`, `{"execution_id":"e","target_service":"bare","allowed_paths":[]}`} {
		code, v := ask(t, f.p, "ann", "POST", "/api/execution-token", body)
		if code != 200 {
			t.Fatalf("%d %v", code, v)
		}
		if res, text := f.get("/proxy/bare/x", v["token"].(string)); res.StatusCode != 403 {
			t.Errorf("%s %s", res.Status, text)
		}
	}
}

// The number of a caller's tokens is limited.
func TestAPIBoundsLiveTokens(t *testing.T) {
	f := setup(t, "http://127.0.0.1:1", nil)
	var rows []store.ExecutionToken
	for range maxLive - 1 {
		rows = append(rows, store.ExecutionToken{JTI: newJTI(), Caller: "ann", Issued: time.Now(), Expires: time.Now().Add(time.Minute)})
	}
	if err := f.cfg.Store.AddExecutionTokens(t.Context(), rows...); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		caller string
		status int
	}{{"ann", 200}, {"ann", 429}, {"bob", 200}} {
		if code, v := ask(t, f.p, tc.caller, "POST", "/api/execution-token", `{"execution_id":"e","target_service":"datadog"}`); code != tc.status {
			t.Errorf("%s: %d %v, want %d", tc.caller, code, v, tc.status)
		}
	}
}

func TestDialGuard(t *testing.T) {
	for text, want := range map[string]bool{
		"1.1.1.1": true, "93.184.216.34": true, "2606:4700::1111": true, "2a00:1450:4001::1": true,
		"127.0.0.1": false, "127.8.8.8": false, "::1": false, "0.0.0.0": false, "::": false, "0.1.2.3": false,
		"10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "fd00::1": false, "fec0::1": false,
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "100.64.0.1": false, "100.100.100.200": false,
		"::ffff:127.0.0.1": false, "::ffff:1.1.1.1": false, "::127.0.0.1": false, "64:ff9b::7f00:1": false, "64:ff9b:1::1": false, "2002:7f00:1::": false, "2001::1": false,
		"224.0.0.1": false, "ff02::1": false, "255.255.255.255": false, "240.0.0.1": false, "198.18.0.1": false, "192.0.2.1": false, "192.0.0.192": false, "2001:db8::1": false, "168.63.129.16": false,
	} {
		if err := (*closednet.List)(nil).Check(netip.MustParseAddr(text), nil); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	// A service's exceptions open the networks they list, even denied ones and this server's, and
	// no others.
	closed := closednet.New(t.Context(), closednet.Config{
		Deny: []netip.Prefix{netip.MustParsePrefix("8.8.8.0/24"), netip.MustParsePrefix("2606:4700::/32")}, PublicHost: "9.9.9.9", Allow: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")},
	})
	allowed := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("8.8.8.8/32")}
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false, "127.0.0.1": false, "8.8.8.8": true, "8.8.8.9": false, "8.8.9.1": true,
		"9.9.9.9": false, "2606:4700::1111": false, "64:ff9b::808:808": false,
	} {
		if err := closed.Check(netip.MustParseAddr(text), allowed); (err == nil) != want {
			t.Errorf("%s with 10.1.0.0/16 allowed: %v", text, err)
		}
	}
	// The check sees the address that is dialed, not the name.
	up := httptest.NewServer(nil)
	defer up.Close()
	port := up.URL[strings.LastIndex(up.URL, ":"):]
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "0"} {
		if conn, err := (*closednet.List)(nil).Dialer(dialTimeout, nil).DialContext(t.Context(), "tcp", host+port); err == nil {
			t.Errorf("%s was dialled", host)
			conn.Close()
		}
	}
	conn, err := (*closednet.List)(nil).Dialer(dialTimeout, loopback).DialContext(t.Context(), "tcp", "localhost"+port)
	if err != nil {
		t.Fatalf("allowed, and not dialled: %v", err)
	}
	conn.Close()
}
