//go:build linux

package integration

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/oauth/oauthtest"
)

// staticKey is an operator's key. It must appear only in requests to its service.
const staticKey = "op-key-0123456789abcdef-real"

// pretendAPI imitates Datadog's API and a service with an operator's key. It repeats the credential
// that it got.
type pretendAPI struct {
	*httptest.Server
	accounts *oauthtest.Service

	mu   sync.Mutex
	seen []*http.Request
	slow chan error // what ended a call of /api/v1/slow
}

func newPretendAPI(t *testing.T, accounts *oauthtest.Service) *pretendAPI {
	p := &pretendAPI{accounts: accounts, slow: make(chan error, 10)}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *pretendAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r)
	p.mu.Unlock()
	account := "operator"
	if r.Header.Get("X-Api-Key") != staticKey {
		var ok bool
		if account, ok = p.accounts.Account(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")); !ok {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
	}
	w.Header().Set("X-Echo", r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
	w.Header().Set("Content-Type", "application/json")
	if strings.HasSuffix(r.URL.Path, "/slow") {
		_, _ = w.Write([]byte("begun\n"))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			p.slow <- r.Context().Err()
		case <-time.After(30 * time.Second):
			p.slow <- nil
		}
		return
	}
	fmt.Fprintf(w, `{"account":%q,"you_sent":%q}`, account, r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
}

// requests returns the requests seen so far and forgets them.
func (p *pretendAPI) requests() []*http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.seen
	p.seen = nil
	return seen
}

// proxied is a server with a login provider, a service that people connect, and one with an
// operator's key.
type proxied struct {
	*server
	idp    *oauthtest.Provider
	oauth  *oauthtest.Service
	api    *pretendAPI
	config []string // settings
}

func serveProxied(t *testing.T, more ...string) *proxied {
	t.Helper()
	p := &proxied{idp: oauthtest.NewProvider(t), oauth: oauthtest.NewService(t)}
	p.api = newPretendAPI(t, p.oauth)
	text := fmt.Sprintf(`{
		"auth": {"type": "oidc", "issuer": %q, "clientId": %q, "clientSecret": {"$env": "IDP_SECRET"}, "allowedDomains": ["example.com"]},
		"mcpServers": {
			"datadog": {
				"transportType": "inline", "requiresUserToken": true,
				"userAuthentication": {"type": "oauth", "displayName": "Datadog", "clientId": %q, "clientSecret": {"$file": "datadog-secret"},
					"authorizationUrl": %q, "tokenUrl": %q, "revocationUrl": %q, "scopes": ["metrics_read"]},
				"proxy": {"enabled": true, "baseURL": %q, "timeout": 30, "defaultAllowedPaths": ["/api/v1/**"], "allowPrivateAddresses": ["127.0.0.1"]}
			},
			"status-page": {
				"userAuthentication": {"type": "header", "displayName": "Status page", "name": "X-Api-Key", "value": {"$env": "STATUS_KEY"}},
				"proxy": {"enabled": true, "baseURL": %q, "defaultAllowedPaths": ["/api/v1/**"], "allowPrivateAddresses": ["127.0.0.1"]}
			}
		}}`, p.idp.URL, p.idp.ClientID, p.oauth.ClientID, p.oauth.AuthorizationURL(), p.oauth.TokenURL(), p.oauth.RevocationURL(), p.api.URL, p.api.URL+"/base")
	dir := t.TempDir() // not below the data directory, which is searched for secrets
	for name, content := range map[string]string{"services.json": text, "datadog-secret": p.oauth.ClientSecret + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.config = append([]string{"SANDBOX_CONFIG=" + filepath.Join(dir, "services.json"), "STATUS_KEY=" + staticKey, "IDP_SECRET=" + p.idp.ClientSecret, "SANDBOX_LOG_LEVEL=DEBUG"}, more...)
	p.server = serve(t, p.config...)
	return p
}

// restart starts the same server again.
func (p *proxied) restart(t *testing.T, more ...string) {
	t.Helper()
	p.server = serve(t, append(append([]string{"SANDBOX_ROOT=" + p.Root}, p.config...), more...)...)
}

// logIn lets a person allow an MCP client. It returns the server as that client sees it, and the
// person's browser.
func (p *proxied) logIn(t *testing.T, u oauthtest.User) (*server, *oauthtest.Browser) {
	t.Helper()
	p.idp.SetUser(u)
	const redirect = "http://127.0.0.1:9/callback"
	status, body := p.fetch(t, http.MethodPost, p.URL+"/oauth/register", []byte(`{"client_name":"story","redirect_uris":["`+redirect+`"],"token_endpoint_auth_method":"none"}`), "Content-Type: application/json")
	var client struct {
		ID string `json:"client_id"`
	}
	if err := json.Unmarshal(body, &client); err != nil || status != http.StatusCreated {
		t.Fatalf("register: %d %s", status, body)
	}
	const verifier = "a-verifier-of-at-least-forty-three-characters-length"
	sum := sha256.Sum256([]byte(verifier))
	q := url.Values{"response_type": {"code"}, "client_id": {client.ID}, "redirect_uri": {redirect}, "code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])},
		"code_challenge_method": {"S256"}, "resource": {p.URL + "/mcp"}, "scope": {"mcp"}, "state": {"st"}}
	browser := oauthtest.NewBrowser(t, nil, redirect)
	page := browser.Submit(browser.Get(p.URL+"/oauth/authorize?"+q.Encode()), "/oauth/consent", map[string]string{"decision": "allow"})
	form := url.Values{"grant_type": {"authorization_code"}, "code": {page.URL.Query().Get("code")}, "redirect_uri": {redirect}, "client_id": {client.ID}, "code_verifier": {verifier}, "resource": {p.URL + "/mcp"}}
	status, body = p.fetch(t, http.MethodPost, p.URL+"/oauth/token", []byte(form.Encode()), "Content-Type: application/x-www-form-urlencoded")
	var token struct {
		Access string `json:"access_token"`
	}
	if err := json.Unmarshal(body, &token); err != nil || token.Access == "" {
		t.Fatalf("token: %d %s", status, body)
	}
	as := *p.server
	as.Token = token.Access
	return &as, browser
}

var (
	ann = oauthtest.User{Subject: "1001", Email: "ann@example.com", Name: "Ann"}
	bob = oauthtest.User{Subject: "1002", Email: "bob@example.com", Name: "Bob"}
)

// executionToken requests a token as contract 3 describes.
func (s *server) executionToken(t *testing.T, body string) (status int, token, proxyURL, text string) {
	t.Helper()
	status, answer := s.fetch(t, http.MethodPost, s.URL+"/api/execution-token", []byte(body), "Authorization: Bearer "+s.Token, "Content-Type: application/json")
	var r struct {
		Token    string `json:"token"`
		ProxyURL string `json:"proxy_url"`
		Expires  string `json:"expires_at"`
	}
	_ = json.Unmarshal(answer, &r)
	if _, err := time.Parse(time.RFC3339, r.Expires); status == http.StatusOK && err != nil {
		t.Errorf("expires_at: %v", err)
	}
	return status, r.Token, r.ProxyURL, string(answer)
}

// These programs call a service with the variables of their environment.
const (
	callPython = `import os, requests
r = requests.get(os.environ["PROXY_URL"] + "/api/v1/metrics", params={"query": "avg:cpu"}, headers={"Authorization": "Bearer " + os.environ["EXECUTION_TOKEN"]})
print(r.status_code, r.text)
`
	callNode = `const r = await fetch(process.env.PROXY_URL + "/api/v1/metrics?query=avg%3Acpu", { headers: { authorization: "Bearer " + process.env.EXECUTION_TOKEN } });
console.log(r.status, await r.text());
`
	callShell = `curl -sS -w ' %{http_code}\n' -H "Authorization: Bearer $EXECUTION_TOKEN" "$PROXY_URL/api/v1/metrics?query=avg%3Acpu"
`
)

// dumps are programs, one per language, that print everything they can find about themselves.
var dumps = map[string]string{
	"python":     "import os, subprocess\nprint(dict(os.environ))\nprint(open('/proc/self/environ').read())\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)\n",
	"javascript": dumpNode,
	"typescript": dumpNode,
	"shell":      "env; set; cat /proc/self/environ; cat /tmp/.cells/*/env 2>/dev/null || true\n",
}

const dumpNode = "console.log(JSON.stringify(process.env)); console.log((await import('node:fs')).readFileSync('/proc/self/environ', 'utf8'));\n"

func with(key string, value any) func(map[string]any) {
	return func(args map[string]any) { args[key] = value }
}

// TestExecutionProxy is contract 3's whole story: a person logs in, connects a service, and code
// calls it without seeing the credential, from outside with a token and from inside a sandbox
// without network.
func TestExecutionProxy(t *testing.T) {
	p := serveProxied(t)
	asAnn, browser := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	var outputs strings.Builder // everything that callers got to see

	// Not connected yet: the refusals say where to go.
	connectAt := p.URL + "/connections#datadog"
	if status, _, _, text := asAnn.executionToken(t, `{"execution_id":"e","target_service":"datadog"}`); status != http.StatusForbidden || !strings.Contains(text, connectAt) {
		t.Errorf("a token before connecting: %d %s", status, text)
	}
	for tool, args := range map[string]map[string]any{
		"run_code": {"conversationId": "s", "language": "python"}, "run_python": {"session_id": "s"}, "run": {"session": "s", "env": "python"},
	} {
		args["code"], args["services"] = "print(1)", []any{map[string]any{"name": "datadog"}}
		res := asAnn.call(t, tool, args)
		if !res.IsError || !strings.Contains(res.Content[0].Text, `"service_not_connected"`) || !strings.Contains(res.Content[0].Text, `"connect_url": "`+connectAt+`"`) {
			t.Errorf("%s before connecting: %+v", tool, res)
		}
	}

	// Connect.
	page := browser.Submit(browser.Get(connectAt), "/datadog/connect", nil)
	if page.Status != http.StatusOK || !strings.Contains(page.Body, "/datadog/disconnect") {
		t.Fatalf("connect: %d %s", page.Status, page.Body)
	}
	for who, want := range map[*server]bool{asAnn: true, asBob: false, p.server: false} {
		var list struct {
			Services []struct {
				Name, DisplayName string
				Connected         bool
			}
		}
		if err := json.Unmarshal([]byte(who.call(t, "list_services", nil).Content[0].Text), &list); err != nil || len(list.Services) != 2 ||
			list.Services[0].Connected != want || !list.Services[1].Connected {
			t.Errorf("list_services: %+v, %v; want connected %t", list, err, want)
		}
	}

	// From outside, as the contract shows it.
	status, token, proxyURL, text := asAnn.executionToken(t, `{"execution_id":"exec-abc123","target_service":"datadog","ttl_seconds":300,"allowed_paths":["/api/v1/metrics"],"max_requests":1000}`)
	if status != http.StatusOK || proxyURL != p.URL+"/proxy/datadog" {
		t.Fatalf("%d %s", status, text)
	}
	p.api.requests()
	status, body := p.fetch(t, http.MethodGet, proxyURL+"/api/v1/metrics?query=avg:cpu", nil, "Authorization: Bearer "+token, "Cookie: a=b", "X-Forwarded-For: 1.2.3.4")
	outputs.Write(body)
	if status != http.StatusOK || !strings.Contains(string(body), `"account":"acct-1"`) {
		t.Errorf("through the proxy: %d %s", status, body)
	}
	if seen := p.api.requests(); len(seen) != 1 || seen[0].RequestURI != "/api/v1/metrics?query=avg:cpu" || "http://"+seen[0].Host != p.api.URL ||
		len(seen[0].Header.Values("Authorization")) != 1 || seen[0].Header.Get("Cookie") != "" || seen[0].Header.Get("X-Forwarded-For") != "" {
		t.Errorf("the service saw %+v", seen)
	}
	for path, want := range map[string]string{
		"/api/v2/metrics":       "403 Forbidden: path /api/v2/metrics not allowed for this execution",
		"/api/v1/../v1/metrics": "400 ",
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Opaque = "/proxy/datadog" + path // as it is
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		var refused struct{ Message string }
		err = json.NewDecoder(resp.Body).Decode(&refused)
		resp.Body.Close()
		if err != nil || !strings.HasPrefix(refused.Message, want) {
			t.Errorf("%s: %q, %v", path, refused.Message, err)
		}
	}

	// From inside, without network: fresh and persistent, in every language, with the language's
	// own means.
	const answer = `200 {"account":"acct-1","you_sent":"Bearer *`
	datadog := []any{map[string]any{"name": "datadog", "paths": []string{"/api/v1/**"}, "methods": []string{"GET"}}}
	for language, code := range map[string]string{"python": callPython, "javascript": callNode, "typescript": callNode, "shell": callShell} {
		want := answer
		if language == "shell" && onDocker() {
			continue // the image has no curl
		}
		if language == "shell" {
			want = answer[len("200 "):]
		}
		r := asAnn.run(t, "s", language, code+dumps[language], with("services", datadog), with("network", false))
		outputs.WriteString(r.Output)
		if !r.Success || !strings.HasPrefix(r.Output, want) || strings.Contains(r.Output, "xt1.") || !strings.Contains(r.Output, "[execution token]") {
			t.Errorf("run_code %s: %+v", language, r)
		}
		res := asAnn.call(t, "run", map[string]any{"session": "s", "env": language, "code": code + dumps[language], "services": datadog})
		var cell cellResult
		if err := json.Unmarshal([]byte(res.Content[0].Text), &cell); err != nil {
			t.Fatalf("run %s: %+v", language, res)
		}
		outputs.WriteString(cell.Stdout + cell.Stderr)
		if !strings.HasPrefix(cell.Stdout, want) || strings.Contains(cell.Stdout+cell.Stderr, "xt1.") {
			t.Errorf("run %s: %+v", language, cell)
		}
		// The variables of a cell end with it.
		if after := asAnn.cell(t, "s", language, dumps[language]); strings.Contains(after.Stdout, "EXECUTION_TOKEN") || strings.Contains(after.Stdout, "DATADOG_TOKEN") {
			t.Errorf("run %s, the next cell: %+v", language, after)
		}
	}
	var py pythonResult
	asAnn.ask(t, "run_python", map[string]any{"session_id": "s", "code": strings.ReplaceAll(callPython, "EXECUTION_TOKEN", "STATUS_PAGE_TOKEN") + "\nprint(sorted(k for k in os.environ if 'PROXY' in k or 'TOKEN' in k))",
		"services": []any{"status-page"}}, &py)
	outputs.WriteString(py.Stdout + py.Stderr)
	if !strings.HasPrefix(py.Stdout, `200 {"account":"operator","you_sent":"*`) || !strings.HasSuffix(py.Stdout, "['EXECUTION_TOKEN', 'PROXY_URL', 'STATUS_PAGE_PROXY_URL', 'STATUS_PAGE_TOKEN']\n") {
		t.Errorf("run_python: %+v", py)
	}
	asAnn.ask(t, "run_python", map[string]any{"session_id": "s", "code": "import os\nprint(sorted(k for k in os.environ if 'PROXY' in k or 'TOKEN' in k))", "services": []any{"status-page", "datadog"}}, &py)
	if py.Stdout != "['DATADOG_PROXY_URL', 'DATADOG_TOKEN', 'STATUS_PAGE_PROXY_URL', 'STATUS_PAGE_TOKEN']\n" {
		t.Errorf("two services: %+v", py)
	}
	for _, r := range p.api.requests() {
		if r.URL.Path != "/api/v1/metrics" && r.URL.Path != "/base/api/v1/metrics" || r.URL.Query().Get("query") != "avg:cpu" {
			t.Errorf("the service saw %s", r.RequestURI)
		}
	}
	for _, wide := range []map[string]any{{"name": "datadog", "paths": []string{"/**"}}, {"name": "datadog", "methods": []string{"CONNECT"}}} {
		if got := asAnn.refusal(t, "run_code", map[string]any{"conversationId": "s", "language": "python", "code": "1", "services": []any{wide}}); got != "invalid_services" {
			t.Errorf("%v: %s", wide, got)
		}
	}

	// Each person's files have their own links, and nobody gets another person's session.
	r := asAnn.run(t, "s", "shell", "echo anns > mine.txt")
	if len(r.Files) != 1 || !strings.Contains(r.Files[0].URL, "/files/~") {
		t.Fatalf("files: %+v", r)
	}
	if status, body := p.fetch(t, http.MethodGet, r.Files[0].URL, nil); status != http.StatusOK || string(body) != "anns\n" {
		t.Errorf("a person's file: %d %s", status, body)
	}
	if r := asBob.run(t, "s", "shell", "ls"); r.Output != "" {
		t.Errorf("another person's session of that name: %+v", r)
	}
	if got := asBob.refusal(t, "run_code", map[string]any{"conversationId": "s", "language": "python", "code": "1", "services": []any{"datadog"}}); got != "service_not_connected" {
		t.Errorf("another person: %s", got)
	}

	p.wantTrail(t)

	// Disconnecting ends the connection, the service's grant and the tokens.
	page = browser.Submit(browser.Get(connectAt), "/datadog/disconnect", nil)
	if page.Status != http.StatusOK || !strings.Contains(page.Body, "/datadog/connect\"") {
		t.Errorf("disconnect: %d %s", page.Status, page.Body)
	}
	for _, issued := range p.oauth.Issued() {
		if _, ok := p.oauth.Account(issued); ok {
			t.Errorf("the service's token %s still works", issued)
		}
	}
	if status, body := p.fetch(t, http.MethodGet, proxyURL+"/api/v1/metrics", nil, "Authorization: Bearer "+token); status != http.StatusUnauthorized {
		t.Errorf("a token after disconnecting: %d %s", status, body)
	}
	p.wantNoSecrets(t, outputs.String())
}

// wantTrail checks the traces that contract 3 requires: log lines, metrics and the audit trail.
func (p *proxied) wantTrail(t *testing.T) {
	t.Helper()
	log := p.log.String()
	for _, want := range []string{
		"execution_proxy: Execution token issued user=ann@example.com execution_id=exec-abc123 target_service=datadog ttl_seconds=300",
		"execution_proxy: Request proxied successfully execution_id=exec-abc123 user=ann@example.com service=datadog method=GET path=/api/v1/metrics",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	for _, metric := range []string{`execution_tokens_issued_total{service="datadog"}`, `execution_proxy_requests_total{service="datadog",status="200"}`,
		`execution_proxy_duration_seconds_count{service="datadog"}`, `execution_token_validations_total{result="valid"}`} {
		if n := p.metric(t, metric); n < 5 {
			t.Errorf("%s is %g", metric, n)
		}
	}
	cmd := exec.Command(binary, "proxy", "audit")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+p.Root)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), " are intact: ") {
		t.Errorf("proxy audit: %v %s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(p.Root, "audit", "proxy.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for line := range strings.Lines(string(text)) {
		var r struct {
			Event, User, Path string
			Execution         string `json:"execution_id"`
			Query             []string
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Execution == "exec-abc123" {
			events = append(events, r.Event)
		}
		if r.Event == "request" && (r.User != "ann@example.com" || !slices.Equal(r.Query, []string{"query"}) || strings.Contains(line, "avg")) {
			t.Errorf("audit: %s", line)
		}
	}
	if got := strings.Join(events, " "); got != "token_issued request response denied denied" {
		t.Errorf("the trail of exec-abc123: %s", got)
	}
}

// wantNoSecrets searches output, logs and stored data for real credentials and execution tokens.
func (p *proxied) wantNoSecrets(t *testing.T, outputs string) {
	t.Helper()
	secrets := append(p.oauth.Issued(), staticKey, p.oauth.ClientSecret, p.idp.ClientSecret, "xt1.")
	if len(secrets) < 6 {
		t.Fatalf("nothing was issued: %q", secrets)
	}
	search := func(where, text string) {
		for _, s := range secrets {
			for _, form := range []string{s, base64.StdEncoding.EncodeToString([]byte(s)), url.QueryEscape(s)} {
				if strings.Contains(text, form) {
					t.Errorf("%s holds %s", where, form)
				}
			}
		}
	}
	search("an output", outputs)
	search("the log", p.log.String())
	files := 0
	err := filepath.WalkDir(p.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // a socket, or gone
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		files++
		search(path, string(text))
		return nil
	})
	if err != nil || files < 5 {
		t.Errorf("searched %d files, %v", files, err)
	}
}

// TestExecutionProxyOverStdio checks that a stdio server also has services: the sandbox reaches the
// proxy without network.
func TestExecutionProxyOverStdio(t *testing.T) {
	api := newPretendAPI(t, oauthtest.NewService(t))
	config := filepath.Join(t.TempDir(), "services.json")
	text := fmt.Sprintf(`{"mcpServers": {"status": {"userAuthentication": {"type": "header", "name": "X-Api-Key", "value": {"$env": "STATUS_KEY"}},
		"proxy": {"enabled": true, "baseURL": %q, "defaultAllowedPaths": ["/api/**"], "allowPrivateAddresses": ["127.0.0.0/8"]}}}}`, api.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "stdio")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+newRoot(t), "SANDBOX_HTTP_PORT=0", "SANDBOX_CONFIG="+config, "STATUS_KEY="+staticKey, "SANDBOX_NETWORK=off")
	session, err := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: 20 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"env": "python", "code": callPython, "services": []any{"status"}}})
	if err != nil || res.IsError || !strings.HasPrefix(res.Content[0].(*mcp.TextContent).Text, `200 {"account":"operator","you_sent":"*`) {
		t.Errorf("%+v, %v", res, err)
	}
}
