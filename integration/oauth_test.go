//go:build linux

package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/logging/logtest"
	"mcp-code-sandbox/internal/oauth/oauthtest"
)

// clientRedirect is an address where no client listens: the browser stops there and reports how it
// got there.
const clientRedirect = "http://127.0.0.1:33418/callback"

// serveLogins starts a server at which people of example.com log in.
func serveLogins(t *testing.T) (*server, *oauthtest.Provider) {
	t.Helper()
	idp := oauthtest.NewProvider(t)
	config, err := json.Marshal(map[string]any{"auth": map[string]any{
		"type": "oidc", "issuer": idp.URL, "clientId": idp.ClientID, "clientSecret": map[string]any{"$env": "IDP_SECRET"}, "allowedDomains": []string{"example.com"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	return serve(t, "SANDBOX_CONFIG="+path, "IDP_SECRET="+idp.ClientSecret), idp
}

// agree follows a client's link, logs in, allows the client, and returns the page with the client's
// answer.
func agree(b *oauthtest.Browser, at string) *oauthtest.Page {
	page := b.Get(at)
	return b.Submit(page, "/oauth/consent", map[string]string{"decision": "allow"})
}

// TestOAuthGoClient lets the Go SDK's client get from a bare 401 to a tool's result.
func TestOAuthGoClient(t *testing.T) {
	s, _ := serveLogins(t)
	browser := oauthtest.NewBrowser(t, nil, clientRedirect)
	var got *oauth2.Token
	logins := 0
	handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "Go client", RedirectURIs: []string{clientRedirect}, GrantTypes: []string{"authorization_code", "refresh_token"},
		}},
		RequestRefreshToken: true,
		AuthorizationCodeFetcher: func(_ context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
			logins++
			q := agree(browser, args.URL).URL.Query()
			return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
		},
		// The first access token counts as expired, so the client must refresh it.
		NewTokenSource: func(ctx context.Context, c *oauth2.Config, token *oauth2.Token) (oauth2.TokenSource, error) {
			old := *token
			old.Expiry = time.Now().Add(-time.Minute)
			return notingSource{c.TokenSource(ctx, &old), func(t *oauth2.Token) { got = t }}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1.0.0"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", OAuthHandler: handler}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	run := func(code string) string {
		t.Helper()
		res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_code", Arguments: map[string]any{"conversationId": "mine", "language": "shell", "code": code}})
		if err != nil {
			t.Fatal(err)
		}
		text, ok := res.Content[0].(*mcp.TextContent)
		if !ok || res.IsError {
			t.Fatalf("%+v", res.Content)
		}
		return text.Text
	}
	var made runResult
	if err := json.Unmarshal([]byte(run("echo of a user > note.txt; cat note.txt")), &made); err != nil || !made.Success || len(made.Files) != 1 {
		t.Fatalf("%+v, %v", made, err)
	}
	if logins != 1 {
		t.Errorf("the user was asked %d times", logins)
	}

	// A user's link works, and names neither session nor user.
	resp, err := http.Get(made.Files[0].URL)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 200 || string(body) != "of a user\n" || !strings.Contains(made.Files[0].URL, "/files/~") {
		t.Errorf("%s: %d %q", made.Files[0].URL, resp.StatusCode, body)
	}
	// The holder of the API token keeps working, in separate sessions.
	if r := s.run(t, "mine", "shell", "ls"); r.Output != "" || !r.Success {
		t.Errorf("the API token's holder sees the user's files: %+v", r)
	}

	// Revoking access on the page takes effect at once.
	status := func(token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("WWW-Authenticate")
	}
	if code, _ := status(got.AccessToken); code != 200 {
		t.Fatalf("status %d with the client's token", code)
	}
	page := browser.Get(s.URL + "/connections")
	if page = browser.Submit(page, "/revoke", nil); !strings.Contains(page.Body, "Access revoked.") {
		t.Fatalf("%d:\n%s", page.Status, page.Body)
	}
	code, challenge := status(got.AccessToken)
	if want := fmt.Sprintf(`resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, s.URL); code != 401 || !strings.Contains(challenge, want) || !strings.Contains(challenge, "invalid_token") {
		t.Errorf("after the revocation: %d %q", code, challenge)
	}
	for _, secret := range []string{got.AccessToken, got.RefreshToken} {
		if strings.Contains(s.log.String(), secret) {
			t.Error("a token is in the log")
		}
	}
	if !strings.Contains(s.log.String(), "ann@example.com") {
		t.Error("the log does not say who logged in")
	}
}

// notingSource reports each token that it gives.
type notingSource struct {
	oauth2.TokenSource
	note func(*oauth2.Token)
}

func (s notingSource) Token() (*oauth2.Token, error) {
	t, err := s.TokenSource.Token()
	if err == nil {
		s.note(t)
	}
	return t, err
}

// TestNoLoginsNodeClient checks that a client that tries to log in at a server without logins shows
// a person what to do.
func TestNoLoginsNodeClient(t *testing.T) {
	interpreter := node(t)
	s := serve(t)
	config, err := json.Marshal(map[string]any{"url": s.URL + "/mcp", "redirect": clientRedirect})
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), interpreter, filepath.Join(clientsDir(t), "oauth.mjs"), string(config)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "this server has no logins; send its API token") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestOAuthNodeClient does the same with the TypeScript SDK's client.
func TestOAuthNodeClient(t *testing.T) {
	interpreter := node(t)
	s, _ := serveLogins(t)
	config, err := json.Marshal(map[string]any{"url": s.URL + "/mcp", "redirect": clientRedirect,
		"run": map[string]any{"conversationId": "mine", "language": "shell", "code": "echo hello"}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), interpreter, filepath.Join(clientsDir(t), "oauth.mjs"), string(config))
	log := &logtest.Buffer{}
	cmd.Stderr = log
	stdin, stdout := startPiped(t, cmd)
	browser := oauthtest.NewBrowser(t, nil, clientRedirect)
	var events []string
	for sc := bufio.NewScanner(stdout); sc.Scan(); {
		var e clientEvent
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			t.Fatalf("the client prints %q", sc.Text())
		}
		events = append(events, e.Event)
		switch e.Event {
		case "authorize":
			fmt.Fprintln(stdin, agree(browser, e.Text).URL)
		case "ran", "again":
			var r runResult
			if err := json.Unmarshal([]byte(e.Text), &r); err != nil || !r.Success || !strings.Contains(r.Output, "hello") {
				t.Errorf("%s: %s, %v", e.Event, e.Text, err)
			}
			if e.Event == "again" && strings.Join(e.Names, "") != "true" {
				t.Error("the client did not get a new refresh token")
			}
		}
	}
	if err := cmd.Wait(); err != nil || strings.Join(events, " ") != "authorize ran again" {
		t.Errorf("%v after %v\n%s", err, events, log)
	}
}

// TestOAuthConformance runs the official suite's scenarios for authorization servers. The browser
// follows the links that it prints.
func TestOAuthConformance(t *testing.T) {
	interpreter := node(t)
	s, _ := serveLogins(t)
	registration, err := http.Post(s.URL+"/oauth/register", "application/json", strings.NewReader(`{"client_name":"conformance","redirect_uris":["http://127.0.0.1/callback"]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer registration.Body.Close()
	var client struct {
		ID string `json:"client_id"`
	}
	if err := json.NewDecoder(registration.Body).Decode(&client); err != nil || client.ID == "" {
		t.Fatalf("register: %s, %v", registration.Status, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, filepath.Join(clientsDir(t), "node_modules", ".bin", "conformance"), "authorization",
		"--url", s.URL, "--client-id", client.ID, "--resource", s.URL+"/mcp", "--port", callbackPort(t))
	cmd.Dir = t.TempDir() // it may write its results there
	cmd.Env = baseEnv()
	cmd.WaitDelay = 5 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	browser := oauthtest.NewBrowser(t, nil)
	var out strings.Builder
	var at string
	listening := false // it may say where to go before it can be answered
	for sc := bufio.NewScanner(stdout); sc.Scan(); {
		out.WriteString(sc.Text() + "\n")
		listening = listening || strings.HasPrefix(sc.Text(), "Callback server started")
		if strings.HasPrefix(sc.Text(), s.URL+"/oauth/authorize?") {
			at = sc.Text()
		}
		if at != "" && listening {
			agree(browser, at)
			at = ""
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	for _, scenario := range []string{"authorization-server-metadata-endpoint", "authorization-code-grant"} {
		if !regexp.MustCompile(`✓ ` + scenario + `: [1-9]\d* passed, 0 failed`).MatchString(out.String()) {
			t.Errorf("%s did not pass:\n%s", scenario, &out)
		}
	}
}

// callbackPort returns a free port for a program that cannot choose one.
func callbackPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestRemovedFromTheList checks that a person who is removed from the list has no access after a
// restart, and that others keep theirs.
func TestRemovedFromTheList(t *testing.T) {
	p := serveProxied(t)
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	const list = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	for _, s := range []*server{asAnn, asBob} {
		if status, body := s.post(t, list); status != http.StatusOK {
			t.Fatalf("before: %d %s", status, body)
		}
	}
	p.stop(t)
	path, _ := strings.CutPrefix(p.config[0], "SANDBOX_CONFIG=")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = []byte(strings.Replace(string(text), `"allowedDomains": ["example.com"]`, `"allowedEmails": ["`+bob.Email+`"]`, 1))
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.restart(t, "MCP_HTTP_ADDR="+strings.TrimPrefix(p.URL, "http://")) // tokens are for this address
	for s, want := range map[*server]int{asAnn: http.StatusUnauthorized, asBob: http.StatusOK} {
		if status, body := s.post(t, list); status != want {
			t.Errorf("after: %d %s, want %d", status, body, want)
		}
	}
}
