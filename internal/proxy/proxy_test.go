package proxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
)

// Every path of the table, as bytes, through a real server to a service that records bytes.
func TestHTTPProxyPathsOnTheWire(t *testing.T) {
	up := serveWire(t, plainAnswer)
	var services []Service
	for i, tc := range pathCases {
		s := datadog(t, up.url+"/base%20path")
		s.Name, s.Defaults, s.AllowEncodedSlash = fmt.Sprint("s", i), []string{tc.pattern}, tc.encodedSlash
		services = append(services, s)
	}
	f := setup(t, up.url, func(c *Config) { c.Services = services })
	for i, tc := range pathCases {
		name := services[i].Name
		tok := f.issue(func(r *GrantRequest) { r.Service = name })
		before := len(up.requests())
		answer := raw(t, f.addr, "GET /proxy/"+name+tc.wire+" HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer "+tok.Token+"\r\nConnection: close\r\n\r\n")
		if want := fmt.Sprintf("HTTP/1.1 %d ", tc.status); !strings.HasPrefix(answer, want) {
			t.Errorf("%s, %q: %.80q, want %q", tc.pattern, tc.wire, answer, want)
		}
		got := up.requests()[before:]
		if tc.status != 200 {
			if len(got) > 0 {
				t.Errorf("%s, %q: the service saw %q", tc.pattern, tc.wire, got)
			}
			continue
		}
		if want := "GET /base%20path" + tc.forwarded + " HTTP/1.1\r\n"; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s, %q: the service saw %q, want %q", tc.pattern, tc.wire, got, want)
		}
	}
}

// Of all that code in a sandbox may send, the service sees only what is allowed, and one
// credential.
func TestHTTPProxyRequestOnTheWire(t *testing.T) {
	up := serveWire(t, plainAnswer)
	host := strings.TrimPrefix(up.url, "http://")
	f := setup(t, up.url, func(c *Config) { c.Services[0].Headers = []string{"x-team"} })
	tok := f.issue(nil)
	head := "POST /proxy/datadog/api/v1/q?a=1&b=%20x HTTP/1.1\r\nHost: evil.example\r\nAuthorization: Bearer " + tok.Token + "\r\n"
	hostile := "Cookie: a=b\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Host: evil\r\nX-Real-IP: 1.2.3.4\r\nX-HTTP-Method-Override: DELETE\r\n" +
		"Range: bytes=0-10\r\nIf-Range: x\r\nAccept-Encoding: gzip, br, zstd\r\nAccept-Charset: utf-16\r\nProxy-Authorization: Basic eDp5\r\nTE: trailers\r\nX-Api-Key: mine\r\nX-Original-URL: /admin\r\nOrigin: http://x\r\nReferer: http://x\r\n"
	answer := raw(t, f.addr, head+hostile+"Connection: close, Authorization, Content-Type, X-Team\r\nContent-Type: text/plain\r\nX-Team: dropped\r\nContent-Length: 5\r\n\r\nhello")
	if !strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Fatal(answer)
	}
	answer = raw(t, f.addr, head+hostile+"Connection: close\r\nContent-Type: text/plain\r\nX-Team: red\r\nX-GitHub-Api-Version: 2022\r\nUser-Agent: u\r\nTransfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n5\r\nhello\r\n0\r\nAuthorization: Bearer forged\r\n\r\n")
	if !strings.HasPrefix(answer, "HTTP/1.1 200") {
		t.Fatal(answer)
	}
	line := "POST /api/v1/q?a=1&b=%20x HTTP/1.1\r\nHost: " + host + "\r\n"
	want := []string{
		line + "Content-Length: 5\r\nAccept-Encoding: identity\r\nAuthorization: Bearer " + realToken + "\r\n\r\nhello",
		line + "User-Agent: u\r\nTransfer-Encoding: chunked\r\nAccept-Encoding: identity\r\nAuthorization: Bearer " + realToken +
			"\r\nContent-Type: text/plain\r\nX-Github-Api-Version: 2022\r\nX-Team: red\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	}
	if got := up.requests(); !slices.Equal(got, want) {
		t.Errorf("the service saw\n%q\nwant\n%q", got, want)
	}
}

func TestHTTPProxyRefusals(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, func(c *Config) {
		linear := datadog(t, up.url)
		linear.Name = "linear"
		off := Service{Name: "off", Disabled: true}
		none := datadog(t, up.url)
		none.Name, none.Credential = "none", source{"bob": {Header: "Authorization", Value: "Bearer " + realToken, Secrets: []string{realToken}}}
		c.Services = append(c.Services, linear, off, none)
	})
	tok := f.issue(func(r *GrantRequest) { r.Paths, r.Methods = []string{"/api/v1/**"}, []string{"GET", "POST"} }).Token
	other := executiontoken.NewKeys(make([]byte, 32), "execution token")
	claims, err := f.cfg.Keys.Verify(tok, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	unknown := claims
	unknown.JTI = newJTI()
	wider := claims // the stored row wins even if an attacker has the signing key
	wider.Pth = []string{"/**"}
	inSandbox := claims
	inSandbox.Bnd = "sbx:s1"
	bobs, err := f.p.Issue(t.Context(), "bob", GrantRequest{Service: "none", ExecutionID: "e"})
	if err != nil {
		t.Fatal(err)
	}
	delete(f.cfg.Services[3].Credential.(source), "bob") // has disconnected since

	const invalid = "401 Unauthorized: invalid execution token"
	for _, tc := range []struct {
		name, method, target, auth string
		status                     int
		text                       string
	}{
		{"no token", "GET", "/proxy/datadog/api/v1/m", "", 401, invalid},
		{"the API token", "GET", "/proxy/datadog/api/v1/m", "Bearer some-api-token", 401, invalid},
		{"basic", "GET", "/proxy/datadog/api/v1/m", "Basic " + tok, 401, invalid},
		{"another key", "GET", "/proxy/datadog/api/v1/m", "Bearer " + other.Sign(claims), 401, invalid},
		{"another purpose", "GET", "/proxy/datadog/api/v1/m", "Bearer " + executiontoken.NewKeys([]byte(strings.Repeat("\x01", 32)), "access").Sign(claims), 401, invalid},
		{"no row", "GET", "/proxy/datadog/api/v1/m", "Bearer " + f.cfg.Keys.Sign(unknown), 401, invalid},
		{"of a sandbox", "GET", "/proxy/datadog/api/v1/m", "Bearer " + f.cfg.Keys.Sign(inSandbox), 401, invalid},
		{"another service", "GET", "/proxy/linear/api/v1/m", "Bearer " + tok, 401, invalid},
		{"another case", "GET", "/proxy/Datadog/api/v1/m", "Bearer " + tok, 404, "service Datadog not configured"},
		{"an escaped name", "GET", "/proxy/%64atadog/api/v1/m", "Bearer " + tok, 404, "not configured"},
		{"no service, no token", "GET", "/proxy/nope/x", "", 401, invalid},
		{"not enabled", "GET", "/proxy/off/x", "Bearer " + tok, 400, "proxy not enabled for service off"},
		{"not connected", "GET", "/proxy/none/x", "Bearer " + bobs.Token, 401, "401 Unauthorized: user credentials not found for service none"},
		{"path", "GET", "/proxy/datadog/api/v3/metrics", "Bearer " + tok, 403, "403 Forbidden: path /api/v3/metrics not allowed for this execution"},
		{"wider claims", "GET", "/proxy/datadog/api/v3/metrics", "Bearer " + f.cfg.Keys.Sign(wider), 401, invalid},
		{"method", "DELETE", "/proxy/datadog/api/v1/m", "Bearer " + tok, 403, "method DELETE not allowed for this execution"},
		{"TRACE", "TRACE", "/proxy/datadog/api/v1/m", "Bearer " + tok, 403, "method TRACE"},
		{"method in small letters", "get", "/proxy/datadog/api/v1/m", "Bearer " + tok, 403, "method get"},
		{"absolute form", "GET", up.url + "/proxy/datadog/api/v1/m", "Bearer " + tok, 400, "absolute"},
		{"CONNECT", "CONNECT", "127.0.0.1:80", "Bearer " + tok, 400, ""},
		{"asterisk", "OPTIONS", "*", "Bearer " + tok, 400, ""},
		{"semicolons in the query", "GET", "/proxy/datadog/api/v1/m?a=1;b=2", "Bearer " + tok, 400, "query refused"},
		{"a bad escape in the query", "GET", "/proxy/datadog/api/v1/m?a=%zz", "Bearer " + tok, 400, "query refused"},
		{"bytes in the query", "GET", "/proxy/datadog/api/v1/m?a=\xff", "Bearer " + tok, 400, ""},
		{"a fragment", "GET", "/proxy/datadog/api/v1/m#x", "Bearer " + tok, 400, ""},
		{"outside", "GET", "/files/x", "Bearer " + tok, 404, ""},
		{"two tokens", "GET", "/proxy/datadog/api/v1/m", "Bearer " + tok + "\r\nAuthorization: Bearer " + tok, 401, invalid},
		{"WebSocket", "GET", "/proxy/datadog/api/v1/m", "Bearer " + tok + "\r\nUpgrade: websocket\r\nConnection: Upgrade", 400, "upgrades"},
	} {
		auth := ""
		if tc.auth != "" {
			auth = "Authorization: " + tc.auth + "\r\n"
		}
		answer := raw(t, f.addr, tc.method+" "+tc.target+" HTTP/1.1\r\nHost: h\r\n"+auth+"Connection: close\r\n\r\n")
		if !strings.HasPrefix(answer, fmt.Sprintf("HTTP/1.1 %d ", tc.status)) || !strings.Contains(answer, tc.text) {
			t.Errorf("%s: %q, want %d and %q", tc.name, answer, tc.status, tc.text)
		}
	}
	if got := up.requests(); len(got) > 0 {
		t.Errorf("the service saw %q", got)
	}
	for _, r := range f.records() {
		if r.Event == audit.EventIntent {
			t.Errorf("noted as intended: %+v", r)
		}
	}
	// The token itself is valid.
	if res, text := f.get("/proxy/datadog/api/v1/m", tok); res.StatusCode != 200 || text != "ok" {
		t.Errorf("%s %q", res.Status, text)
	}
}

// Of two hundred concurrent calls with a limit of five, five arrive.
func TestHTTPProxyMaxRequests(t *testing.T) {
	var arrived atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	defer up.Close()
	f := setup(t, up.URL, nil)
	tok := f.issue(func(r *GrantRequest) { r.MaxRequests = 5 })
	var codes sync.Map
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			req, _ := http.NewRequest("GET", "http://"+f.addr+"/proxy/datadog/x", nil)
			req.Header.Set("Authorization", "Bearer "+tok.Token)
			res, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
			n, _ := codes.LoadOrStore(res.StatusCode, new(atomic.Int64))
			n.(*atomic.Int64).Add(1)
		})
	}
	wg.Wait()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	count := func(code int) int64 {
		n, ok := codes.Load(code)
		if !ok {
			return 0
		}
		return n.(*atomic.Int64).Load()
	}
	if arrived.Load() != 5 || count(200) != 5 || count(429) != 195 {
		t.Errorf("%d arrived; %d were answered 200, %d 429", arrived.Load(), count(200), count(429))
	}
	if list, err := f.p.List(t.Context(), "ann"); err != nil || len(list) != 1 || list[0].Used != 5 || list[0].Max != 5 || list[0].Token != "" {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestHTTPProxyRateLimits(t *testing.T) {
	up := serveWire(t, plainAnswer)
	f := setup(t, up.url, func(c *Config) {
		c.Services[0].TokenRate = Rate{PerSecond: 0.001, Burst: 2}
		slow := datadog(t, up.url)
		slow.Name, slow.RateLimit = "slow", Rate{PerSecond: 0.001, Burst: 1}
		c.Services = append(c.Services, slow)
	})
	statuses := func(service string, tokens ...string) (got []int) {
		for _, tok := range tokens {
			res, text := f.get("/proxy/"+service+"/x", tok)
			if res.StatusCode == 429 && (res.Header.Get("Retry-After") == "" || !strings.Contains(text, CodeRateLimited)) {
				t.Errorf("%v %s", res.Header, text)
			}
			got = append(got, res.StatusCode)
		}
		return got
	}
	a, b := f.issue(nil).Token, f.issue(nil).Token
	if got := statuses("datadog", a, a, a, b); !slices.Equal(got, []int{200, 200, 429, 200}) {
		t.Errorf("per token: %v", got)
	}
	slow := func(r *GrantRequest) { r.Service = "slow" }
	if got := statuses("slow", f.issue(slow).Token, f.issue(slow).Token); !slices.Equal(got, []int{200, 429}) {
		t.Errorf("per service: %v", got)
	}
}

// TestServiceRateIsShared: a user with a token for each of many runs tries to take a service's
// whole rate. Another user's requests go through, and a lone user gets the whole rate again later.
func TestServiceRateIsShared(t *testing.T) {
	total := Rate{PerSecond: 10, Burst: 20}
	s := newSharedRate(total)
	now := time.Now()
	greedy := 0
	for range 100 {
		if ok, _ := s.take("greedy", now); ok {
			greedy++
		}
	}
	if greedy < total.Burst || greedy > total.Burst+5 {
		t.Errorf("a lone caller got %d of a burst of %d", greedy, total.Burst)
	}
	for i := range total.Burst / 2 {
		if ok, retry := s.take("other", now); !ok {
			t.Fatalf("request %d of another caller: wait %v", i+1, retry)
		}
		if ok, _ := s.take("greedy", now); ok && i > 5 {
			t.Errorf("the greedy caller takes the other's part")
		}
	}
	if ok, retry := s.take("other", now); ok || retry > 300*time.Millisecond {
		t.Errorf("beyond its part: %t, wait %v, want that of 5 a second", ok, retry)
	}
	now = now.Add(activeFor + time.Second)
	s.take("other", now)
	if part := s.callers["other"].limiter; len(s.callers) != 1 || part.Limit() != 10 || part.Burst() != 20 {
		t.Errorf("alone again: %d callers, %v a second, burst %d", len(s.callers), part.Limit(), part.Burst())
	}
}

// The operator sees contract 3's log lines, metrics and audit trail, and no secret in any of them.
func TestHTTPProxyLeavesTraces(t *testing.T) {
	var auditPath string
	var atDial []byte
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		atDial, _ = os.ReadFile(auditPath)
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprint(w, r.Header)
	}))
	defer up.Close()
	f := setup(t, up.URL, nil)
	auditPath = f.audit
	tok := f.issue(func(r *GrantRequest) { r.ExecutionID, r.TTL = "exec-123", 300*time.Second })
	res, text := f.do("POST", "/proxy/datadog/api/v1/metrics?query=s3cr3t-value&from=1", tok.Token, map[string]string{"X-Request-Id": "rid-in-header"}, strings.NewReader("body-text"))
	if res.StatusCode != 200 {
		t.Fatal(res.Status, text)
	}
	eventually(t, "the completion", func() bool { return len(f.records()) == 3 }) // the client gets the answer first
	f.get("/proxy/datadog/api/v1/metrics", tok.Token+"x")
	if err := f.p.Revoke(t.Context(), "ann", tok.JTI); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(atDial), `"event":"request"`) {
		t.Errorf("when the service was called, the trail was %s", atDial)
	}
	rs := f.records()
	var events []string
	for _, r := range rs {
		events = append(events, r.Event+" "+r.Decision)
	}
	if want := []string{"token_issued allow", "request allow", "response ", "denied deny", "token_revoked "}; !slices.Equal(events, want) {
		t.Fatalf("events %q, want %q", events, want)
	}
	if r := rs[2]; r.Caller != "ann" || r.User != "ann@example.com" || r.Execution != "exec-123" || r.JTI != tok.JTI || r.Service != "datadog" || r.Method != "POST" ||
		r.Path != "/api/v1/metrics" || !slices.Equal(r.Query, []string{"from", "query"}) || r.Status != 200 || r.Sent != 9 || r.Received != int64(len(text)) || r.Duration <= 0 || r.Reason != "" {
		t.Errorf("completion %+v", r)
	}
	logged := f.log.String()
	for _, want := range []string{
		`msg="execution_proxy: Execution token issued" user=ann@example.com execution_id=exec-123 target_service=datadog ttl_seconds=300`,
		`msg="execution_proxy: Request proxied successfully" execution_id=exec-123 user=ann@example.com service=datadog method=POST path=/api/v1/metrics status=200 duration_ms=`,
		`msg="execution_proxy: Request denied"`,
	} {
		if !strings.Contains(logged, want) {
			t.Errorf("not logged: %s\n%s", want, logged)
		}
	}
	trail, _ := os.ReadFile(f.audit)
	everything := logged + string(trail) + text + fmt.Sprint(res.Header)
	for _, secret := range []string{realToken, realToken[:16], "s3cr3t-value", "body-text", "rid-in-header"} {
		in := everything
		if secret == "body-text" || secret == "s3cr3t-value" || secret == "rid-in-header" {
			in = logged + string(trail) // the service may repeat it
		}
		if strings.Contains(in, secret) {
			t.Errorf("%q shows in %s", secret, in)
		}
	}
	if strings.Contains(logged+string(trail), tok.Token) {
		t.Error("the execution token shows")
	}
	got := metricsText(t, f.reg)
	for _, want := range []string{
		`execution_tokens_issued_total{service="datadog"} 1`,
		`execution_proxy_requests_total{service="datadog",status="200"} 1`,
		`execution_proxy_requests_total{service="unknown",status="401"} 1`,
		`execution_proxy_duration_seconds_count{service="datadog"} 1`,
		`execution_token_validations_total{result="valid"} 1`,
		`execution_token_validations_total{result="malformed"} 1`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("metrics lack %s:\n%s", want, got)
		}
	}
}

func metricsText(t *testing.T, reg *prometheus.Registry) string {
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if h := m.GetHistogram(); h != nil {
				fmt.Fprintf(&b, "%s_count{%s} %d\n", f.GetName(), strings.Join(labels, ","), h.GetSampleCount())
				continue
			}
			fmt.Fprintf(&b, "%s{%s} %v\n", f.GetName(), strings.Join(labels, ","), m.GetCounter().GetValue())
		}
	}
	return b.String()
}

func TestNewRefusesBadServices(t *testing.T) {
	f := setup(t, "http://127.0.0.1:1", nil)
	for name, tc := range map[string]struct {
		change func(*Service)
		want   string
	}{
		"name":           {func(s *Service) { s.Name = "a/b" }, "name"},
		"no credential":  {func(s *Service) { s.Credential = nil }, "mcpServers.datadog.userAuthentication"},
		"scheme":         {func(s *Service) { s.BaseURL.Scheme = "ftp" }, "mcpServers.datadog.proxy.baseURL"},
		"query":          {func(s *Service) { s.BaseURL.RawQuery = "a=b" }, "mcpServers.datadog.proxy.baseURL"},
		"private host":   {func(s *Service) { s.AllowPrivate = nil }, "allowPrivateAddresses"},
		"ceiling":        {func(s *Service) { s.Ceiling = []string{"/a/**/b"} }, "mcpServers.datadog.proxy.allowedPaths"},
		"defaults":       {func(s *Service) { s.Defaults = []string{"x"} }, "mcpServers.datadog.proxy.defaultAllowedPaths"},
		"beyond ceiling": {func(s *Service) { s.Ceiling = []string{"/a/**"} }, "goes beyond allowedPaths"},
		"TRACE":          {func(s *Service) { s.Methods = []string{"TRACE"} }, "mcpServers.datadog.proxy.allowedMethods"},
		"cookies":        {func(s *Service) { s.Headers = []string{"cookie"} }, "mcpServers.datadog.proxy.allowedHeaders"},
	} {
		s := datadog(t, "http://127.0.0.1:1")
		tc.change(&s)
		cfg := f.cfg
		cfg.Services, cfg.Registerer = []Service{s}, nil
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := f.cfg
	cfg.Registerer, cfg.Services = nil, append(cfg.Services, cfg.Services[0])
	if _, err := New(cfg); err == nil {
		t.Error("two services of one name were taken")
	}
}

func TestServices(t *testing.T) {
	f := setup(t, "http://127.0.0.1:1", func(c *Config) {
		oauth := c.Services[0]
		oauth.Name, oauth.DisplayName, oauth.ConnectURL = "linear", "", "https://sandbox.example/connections"
		oauth.Credential = source{"ann": credential.Credential{Header: "Authorization", Value: "Bearer x"}}
		c.Services = append(c.Services, oauth, Service{Name: "off", Disabled: true})
	})
	for caller, want := range map[string]string{
		"ann": "[{datadog Datadog true } {linear linear true https://sandbox.example/connections}]",
		"bob": "[{datadog Datadog true } {linear linear false https://sandbox.example/connections}]",
	} {
		if got := fmt.Sprint(f.p.Services(t.Context(), caller)); got != want {
			t.Errorf("%s: %s, want %s", caller, got, want)
		}
	}
}
