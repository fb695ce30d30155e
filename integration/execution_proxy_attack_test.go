//go:build linux

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mcp-code-sandbox/internal/oauth/oauthtest"
)

// statusPage is the service that everybody may call.
var statusPage = []any{map[string]any{"name": "status-page"}}

// executionTokens lists the caller's valid tokens, as execution id and whether they are bound to a
// sandbox.
func (s *server) executionTokens(t *testing.T) (list []string) {
	t.Helper()
	status, body := s.fetch(t, http.MethodGet, s.URL+"/api/execution-tokens", nil, "Authorization: Bearer "+s.Token)
	var r struct {
		Tokens []struct {
			Execution string `json:"execution_id"`
			Sandboxed bool   `json:"sandboxed"`
		} `json:"tokens"`
	}
	if err := json.Unmarshal(body, &r); err != nil || status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	for _, token := range r.Tokens {
		list = append(list, fmt.Sprint(token.Execution, " ", token.Sandboxed))
	}
	return list
}

// file waits for a file of a session and returns its content.
func (s *server) file(t *testing.T, session, name string) string {
	t.Helper()
	path := filepath.Join(s.workspaceOf(t, session), name)
	var text []byte
	eventually(t, 20*time.Second, name, func() bool {
		var err error
		text, err = os.ReadFile(path)
		return err == nil && len(text) > 0
	})
	return strings.TrimSpace(string(text))
}

// waiting is Python code that writes its token to the workspace, waits for the file go, and calls.
const waiting = `import os, time
open("/data/.t", "w").write(os.environ["EXECUTION_TOKEN"])
os.rename("/data/.t", "/data/token")
while not os.path.exists("/data/go"): time.sleep(0.02)
` + callPython

// TestExecutionProxyTokenEndsWithRun checks that a run's token works only in its own sandbox and
// only during the run.
func TestExecutionProxyTokenEndsWithRun(t *testing.T) {
	p := serveProxied(t)
	s := p.server
	thief := func(token string) string {
		return strings.ReplaceAll(callPython, `os.environ["EXECUTION_TOKEN"]`, fmt.Sprintf("%q", token))
	}

	// While run A runs: not from B's sandbox, not from outside, not for another service.
	a := s.state(t, "run_code", map[string]any{"conversationId": "a", "language": "python", "code": waiting, "services": statusPage, "background": true})
	stolen := s.file(t, "a", "token")
	if got := s.executionTokens(t); len(got) != 1 || got[0] != a.RunID+" true" {
		t.Errorf("tokens: %q", got)
	}
	p.api.requests()
	for name, r := range map[string]runResult{
		"another sandbox":               s.run(t, "b", "python", strings.ReplaceAll(thief(stolen), `os.environ["PROXY_URL"]`, `"http://127.0.0.1:8099/proxy/status-page"`)),
		"another sandbox with services": s.run(t, "b", "python", thief(stolen), with("services", statusPage)),
		"the same session, another runner": s.run(t, "a", "javascript", strings.ReplaceAll(strings.ReplaceAll(callNode, "process.env.EXECUTION_TOKEN", fmt.Sprintf("%q", stolen)),
			"process.env.PROXY_URL", `"http://127.0.0.1:8099/proxy/status-page"`)),
		"another service": s.run(t, "a", "python", strings.ReplaceAll(thief(stolen), `os.environ["PROXY_URL"]`, `"http://127.0.0.1:8099/proxy/datadog"`)),
		"another name":    s.run(t, "a", "python", strings.ReplaceAll(thief(stolen), `os.environ["PROXY_URL"]`, `"http://127.0.0.1:8099/proxy/Status-Page"`)),
	} {
		if !strings.HasPrefix(r.Output, "401 ") && !strings.HasPrefix(r.Output, "404 ") {
			t.Errorf("from %s: %+v", name, r)
		}
	}
	if status, body := s.fetch(t, http.MethodGet, s.URL+"/proxy/status-page/api/v1/metrics", nil, "Authorization: Bearer "+stolen); status != http.StatusUnauthorized ||
		!strings.Contains(string(body), "401 Unauthorized: invalid execution token") {
		t.Errorf("from outside: %d %s", status, body)
	}
	// A token for outside does not work inside.
	_, net, _, _ := s.executionToken(t, `{"execution_id":"net","target_service":"status-page"}`)
	if r := s.run(t, "b", "python", thief(net), with("services", statusPage)); !strings.HasPrefix(r.Output, "401 ") {
		t.Errorf("a token for outside, inside: %+v", r)
	}
	if seen := p.api.requests(); len(seen) != 0 {
		t.Errorf("the service was called %d times", len(seen))
	}
	s.upload(t, "a", "go", "x")
	if st := s.state(t, "wait_run", map[string]any{"run_id": a.RunID}); !strings.Contains(string(st.Result), "200 {") {
		t.Errorf("its own run: %s", st.Result)
	}
	if r := s.run(t, "a", "python", strings.ReplaceAll(thief(stolen), `os.environ["PROXY_URL"]`, `"http://127.0.0.1:8099/proxy/status-page"`)); !strings.HasPrefix(r.Output, "401 ") {
		t.Errorf("in its own sandbox, after its run: %+v", r)
	}

	// A child that outlives its cell, and a call that was in progress when the cell ended.
	p.api.requests()
	res := s.call(t, "run", map[string]any{"session": "c", "env": "shell", "services": statusPage, "code": `
curl -sN -H "Authorization: Bearer $EXECUTION_TOKEN" "$PROXY_URL/api/v1/slow" > /data/slow.txt &
( until [ -e /data/go ]; do sleep 0.05; done
  curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $EXECUTION_TOKEN" "$PROXY_URL/api/v1/metrics" > /data/.after; mv /data/.after /data/after ) &
until [ -s /data/slow.txt ]; do sleep 0.05; done
kept=$EXECUTION_TOKEN; url=$PROXY_URL; echo begun`})
	if res.IsError || !strings.Contains(res.Content[0].Text, `"stdout": "begun\n"`) {
		t.Fatalf("%+v", res)
	}
	select {
	case err := <-p.api.slow:
		if err == nil {
			t.Error("a call outlived its run")
		}
	case <-time.After(10 * time.Second):
		t.Error("a call goes on after its run")
	}
	if r := s.cell(t, "c", "shell", `curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $kept" "$url/api/v1/metrics"`); r.Stdout != "401" {
		t.Errorf("a kept token: %+v", r)
	}
	s.upload(t, "c", "go", "x")
	if got := s.file(t, "c", "after"); got != "401" {
		t.Errorf("a child of an earlier cell: %s", got)
	}
	if seen := p.api.requests(); len(seen) != 1 {
		t.Errorf("the service was called %d times", len(seen))
	}

	// A timeout, a cancel and an error end the token as well.
	for name, end := range map[string]func(){
		"timeout": func() {
			s.run(t, "d", "python", "import time; time.sleep(60)", with("services", statusPage), with("timeout_seconds", 1))
		},
		"cancel": func() {
			st := s.state(t, "run_code", map[string]any{"conversationId": "d", "language": "python", "code": "import time; time.sleep(60)", "services": statusPage, "background": true})
			s.state(t, "cancel_run", map[string]any{"run_id": st.RunID})
		},
		"error": func() { s.run(t, "d", "python", "1/0", with("services", statusPage)) },
	} {
		end()
		if got := s.executionTokens(t); len(got) != 1 || got[0] != "net false" {
			t.Errorf("after a %s: %q", name, got)
		}
	}
	p.wantNoTokensBut(t, stolen)
}

// wantNoTokensBut checks that disk and log contain no execution token except for the one that a
// program wrote itself.
func (p *proxied) wantNoTokensBut(t *testing.T, known string) {
	t.Helper()
	if log := p.log.String(); strings.Contains(log, "xt1.") || strings.Contains(log, staticKey) {
		t.Error("the log has a token or a key")
	}
	db, err := os.ReadFile(filepath.Join(p.Root, "state.db"))
	if wal, werr := os.ReadFile(filepath.Join(p.Root, "state.db-wal")); werr == nil {
		db = append(db, wal...)
	}
	if err != nil || strings.Contains(string(db), known) || strings.Contains(string(db), "xt1.") {
		t.Errorf("the database has a token (%v)", err)
	}
}

// TestExecutionProxyAfterKill kills the server during a run. The next server rejects the run's
// token; a token for outside stays valid.
func TestExecutionProxyAfterKill(t *testing.T) {
	p := serveProxied(t)
	st := p.state(t, "run_code", map[string]any{"conversationId": "a", "language": "python", "code": waiting, "services": statusPage, "background": true})
	stolen := p.file(t, "a", "token")
	_, net, _, _ := p.executionToken(t, `{"execution_id":"net","target_service":"status-page"}`)
	if got := p.executionTokens(t); len(got) != 2 {
		t.Fatalf("before: %q", got)
	}
	p.kill(t)
	p.restart(t)
	if got := p.executionTokens(t); len(got) != 1 || got[0] != "net false" {
		t.Errorf("after: %q (the run was %s)", got, st.RunID)
	}
	for token, want := range map[string]int{stolen: http.StatusUnauthorized, net: http.StatusOK} {
		if status, body := p.fetch(t, http.MethodGet, p.URL+"/proxy/status-page/api/v1/metrics", nil, "Authorization: Bearer "+token); status != want {
			t.Errorf("%d %s, want %d", status, body, want)
		}
	}
	r := p.run(t, "a", "python", strings.ReplaceAll(callPython, `os.environ["EXECUTION_TOKEN"]`, fmt.Sprintf("%q", stolen)), with("services", statusPage))
	if !strings.HasPrefix(r.Output, "401 ") {
		t.Errorf("in a new sandbox of its session: %+v", r)
	}
}

// TestExecutionProxyCounts makes 200 calls at once, from outside and inside: at most max_requests
// pass.
func TestExecutionProxyCounts(t *testing.T) {
	p := serveProxied(t)
	_, token, proxyURL, _ := p.executionToken(t, `{"execution_id":"e","target_service":"status-page","max_requests":5}`)
	var wg sync.WaitGroup
	var statuses [600]atomic.Int64
	for range 200 {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, proxyURL+"/api/v1/metrics", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Authorization", "Bearer "+token)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
			statuses[resp.StatusCode].Add(1)
		})
	}
	wg.Wait()
	if seen := len(p.api.requests()); statuses[200].Load() != 5 || statuses[429].Load() != 195 || seen != 5 {
		t.Errorf("%d passed, %d did not, the service saw %d", statuses[200].Load(), statuses[429].Load(), seen)
	}
	r := p.run(t, "a", "python", `import os, requests, collections
from concurrent.futures import ThreadPoolExecutor
def call(_):
    return requests.get(os.environ["PROXY_URL"] + "/api/v1/metrics", headers={"Authorization": "Bearer " + os.environ["EXECUTION_TOKEN"]}).status_code
with ThreadPoolExecutor(40) as pool:
    print(sorted(collections.Counter(pool.map(call, range(200))).items()))
`, with("services", []any{map[string]any{"name": "status-page", "max_requests": 7}}))
	if r.Output != "[(200, 7), (429, 193)]\n" || len(p.api.requests()) != 7 {
		t.Errorf("from inside: %+v", r)
	}
}

// TestExecutionProxyNowhereElse checks that code with a service but without network reaches that
// service only.
func TestExecutionProxyNowhereElse(t *testing.T) {
	p := serveProxied(t)
	r := p.run(t, "a", "python", `import socket, urllib.request, urllib.error, os
def tries(what, f):
    try: f(); print("REACHED", what)
    except urllib.error.HTTPError as e: print(e.code, what)
    except OSError: print("no", what)
for addr in ("169.254.169.254", "127.0.0.1", "8.8.8.8", "10.0.0.1"):
    tries(addr, lambda: socket.create_connection((addr, 80), 2))
tries("the service itself", lambda: socket.create_connection(("127.0.0.1", `+strings.TrimPrefix(p.api.URL, "http://127.0.0.1:")+`), 2))
tries("ipv6", lambda: socket.create_connection(("2606:4700::1111", 80), 2))
tries("names", lambda: socket.getaddrinfo("example.com", 80))
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": "http://127.0.0.1:8099"}))
auth = {"Authorization": "Bearer " + os.environ["EXECUTION_TOKEN"]}
for url in ("http://127.0.0.1:8099/mcp", "http://127.0.0.1:8099/metrics", "http://127.0.0.1:8099/api/execution-tokens", "http://127.0.0.1:8099/healthz"):
    tries(url, lambda: urllib.request.urlopen(urllib.request.Request(url, headers=auth), timeout=5))
tries("an open proxy", lambda: opener.open(urllib.request.Request("http://example.com/", headers=auth), timeout=5))
`, with("services", statusPage))
	if !r.Success || strings.Contains(r.Output, "REACHED") || strings.Count(r.Output, "\n") != 12 {
		t.Errorf("%s", r.Output)
	}
	if seen := p.api.requests(); len(seen) != 0 {
		t.Errorf("the service was called: %+v", seen[0])
	}
}

// TestExecutionProxyKey checks that another JWT_SECRET is refused unless the old one is named with
// it.
func TestExecutionProxyKey(t *testing.T) {
	const first, second = "JWT_SECRET=the-first-secret-of-at-least-32-bytes", "the-second-secret-of-at-least-32-bytes"
	p := serveProxied(t, first)
	asLocal := oauthtest.NewBrowser(t, nil)
	page := asLocal.Submit(asLocal.Get(p.URL+"/connections"), "/connections/login", map[string]string{"token": p.Token})
	if page = asLocal.Submit(page, "/datadog/connect", nil); !strings.Contains(page.Body, "/datadog/disconnect") {
		t.Fatalf("connect as the token's holder: %d %s", page.Status, page.Body)
	}
	call := func() {
		t.Helper()
		if r := p.run(t, "a", "python", callPython, with("services", []any{"datadog"})); !strings.HasPrefix(r.Output, `200 {"account":"acct-1"`) {
			t.Errorf("%+v", r)
		}
	}
	call()
	p.stop(t)

	cmd := exec.CommandContext(t.Context(), binary, "serve")
	cmd.Env = append(append(baseEnv(), "SANDBOX_ROOT="+p.Root, "MCP_HTTP_ADDR=127.0.0.1:0"), append(p.config, "JWT_SECRET="+second)...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "sealed with another key: set JWT_SECRET") || strings.Contains(string(out), second) {
		t.Errorf("another key: %v %s", err, out)
	}
	p.restart(t, "JWT_SECRET="+second, "JWT_SECRET_PREVIOUS="+strings.TrimPrefix(first, "JWT_SECRET="))
	call()
	p.stop(t)
	p.restart(t, "JWT_SECRET="+second)
	call()
	p.wantNoSecrets(t, "")
}

// TestExecutionProxyRefresh checks that many runs on a connection with an expired token refresh it
// once.
func TestExecutionProxyRefresh(t *testing.T) {
	p := serveProxied(t)
	p.oauth.SetTTL(time.Second)
	_, browser := p.logIn(t, ann)
	asAnn, _ := p.logIn(t, ann)
	browser.Submit(browser.Get(p.URL+"/connections"), "/datadog/connect", nil)
	p.oauth.SetTTL(time.Hour)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if r := asAnn.run(t, fmt.Sprint("s", i), "shell", callShell, with("services", []any{"datadog"})); !strings.Contains(r.Output, "acct-1") {
				t.Errorf("%+v", r)
			}
		})
	}
	wg.Wait()
	if n := p.oauth.Refreshes(); n != 1 {
		t.Errorf("%d refreshes", n)
	}
}
