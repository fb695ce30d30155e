//go:build linux

package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// mcpPost sends a message as an MCP client with a session would, and returns the answer with its
// headers.
func (s *server) mcpPost(t *testing.T, method, session, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/mcp", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Authorization": "Bearer " + s.Token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-06-18"} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(answer)
}

// TestCallersApart lets two people and the holder of the API token use one server. Nobody reaches
// another caller's things by knowing their names.
func TestCallersApart(t *testing.T) {
	p := serveProxied(t)
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	others := map[string]*server{"another person": asBob, "the API token's holder": p.server}

	// MCP sessions.
	resp, answer := asAnn.mcpPost(t, http.MethodPost, "", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	session := resp.Header.Get("Mcp-Session-Id")
	if session == "" {
		t.Fatalf("%s %s", resp.Status, answer)
	}
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	for who, other := range others {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			if resp, answer := other.mcpPost(t, method, session, list); resp.StatusCode/100 != 4 {
				t.Errorf("%s of %s in her MCP session: %s %s", method, who, resp.Status, answer)
			}
		}
	}
	if resp, answer := asAnn.mcpPost(t, http.MethodPost, session, list); resp.StatusCode != http.StatusOK {
		t.Errorf("her MCP session was ended by others: %s %s", resp.Status, answer)
	}

	// Runs.
	run := asAnn.state(t, "run_code", map[string]any{"conversationId": "s", "language": "shell", "code": "echo anns > f.txt; until [ -e go ]; do sleep 0.05; done", "background": true, "services": statusPage})
	for who, other := range others {
		for _, tool := range []string{"wait_run", "cancel_run"} {
			if got := other.refusal(t, tool, map[string]any{"run_id": run.RunID}); got != "run_not_found" {
				t.Errorf("%s by %s: %s", tool, who, got)
			}
		}
		if got := other.refusal(t, "read_artifact", map[string]any{"session_id": "s", "path": "f.txt"}); got != "session_not_found" {
			t.Errorf("read_artifact by %s: %s", who, got)
		}
	}

	// Execution tokens: those of runs, and those for outside.
	_, _, _, issued := asAnn.executionToken(t, `{"execution_id":"mine","target_service":"status-page"}`)
	_, rest, _ := strings.Cut(issued, `"jti":"`)
	jti, _, _ := strings.Cut(rest, `"`)
	for who, other := range others {
		if got := other.executionTokens(t); len(got) != 0 {
			t.Errorf("%s sees %q", who, got)
		}
		if status, body := other.fetch(t, http.MethodDelete, other.URL+"/api/execution-token/"+jti, nil, "Authorization: Bearer "+other.Token); status != http.StatusNotFound {
			t.Errorf("%s revokes her token: %d %s", who, status, body)
		}
	}
	if got := asAnn.executionTokens(t); len(got) != 2 {
		t.Errorf("she has %q", got)
	}
	asAnn.upload(t, "s", "go", "x")
	asAnn.state(t, "wait_run", map[string]any{"run_id": run.RunID})

	// People cannot read the operator's metrics.
	if status, _ := asBob.fetch(t, http.MethodGet, asBob.URL+"/metrics", nil, "Authorization: Bearer "+asBob.Token); status != http.StatusUnauthorized {
		t.Errorf("metrics: %d", status)
	}

	// A signature covers one file of one person's session.
	anns := link(t, asAnn.run(t, "s", "shell", "true"), "f.txt")
	bobs := link(t, asBob.run(t, "s", "shell", "echo bobs > f.txt"), "f.txt")
	locals := link(t, p.run(t, "s", "shell", "echo locals > f.txt"), "f.txt")
	if anns.Path == bobs.Path || !strings.HasPrefix(anns.Path, "/files/~") || strings.HasPrefix(locals.Path, "/files/~") {
		t.Fatalf("%s, %s, %s", anns, bobs, locals)
	}
	key := strings.Split(anns.Path, "/")[2]
	for name, forged := range map[string]string{
		"his signature":               anns.Path + "?" + bobs.RawQuery,
		"the holder's signature":      anns.Path + "?" + locals.RawQuery,
		"her signature, his session":  bobs.Path + "?" + anns.RawQuery,
		"her signature, the holder's": locals.Path + "?" + anns.RawQuery,
		"her signature, another file": "/files/" + key + "/go?" + anns.RawQuery,
		"a session of that name":      "/files/" + key[1:] + "/f.txt?" + anns.RawQuery,
		"a tilde alone":               "/files/~/f.txt?" + anns.RawQuery,
		"a tilde, escaped":            "/files/%7E" + key[1:] + "/go?" + anns.RawQuery,
		"a way up":                    "/files/~..%2f" + key[1:] + "/f.txt?" + anns.RawQuery,
		"no signature":                anns.Path,
	} {
		if status, body := p.fetch(t, http.MethodGet, p.URL+forged, nil); status != http.StatusForbidden && status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	// A right to read is not a right to write, and his upload link does not lead to her session.
	if status, _ := p.fetch(t, http.MethodPut, anns.String(), []byte("x")); status != http.StatusForbidden {
		t.Errorf("a PUT with a link to read: %d", status)
	}
	res := asBob.call(t, "upload_file", map[string]any{"session_id": "s", "filename": "up.txt"})
	at := strings.Index(res.Content[0].Text, p.URL+"/files/~")
	if at < 0 {
		t.Fatalf("%+v", res)
	}
	up := res.Content[0].Text[at:]
	up = strings.ReplaceAll(up[:strings.IndexAny(up, "\"' ")], `\u0026`, "&")
	if status, body := p.fetch(t, http.MethodPut, strings.Replace(up, strings.Split(bobs.Path, "/")[2], key, 1), []byte("bobs")); status != http.StatusForbidden {
		t.Errorf("an upload into her session: %d %s", status, body)
	}
	if status, body := p.fetch(t, http.MethodPut, up, []byte("bobs")); status != http.StatusCreated {
		t.Errorf("an upload into his own: %d %s", status, body)
	}
	// Others cannot read her file by its resource address.
	for who, other := range others {
		resp, answer := other.mcpPost(t, http.MethodPost, "", fmt.Sprintf(`{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":%q}}`, anns))
		if strings.Contains(answer, "anns") && !strings.Contains(answer, `"error"`) {
			t.Errorf("resources/read by %s: %s %s", who, resp.Status, answer)
		}
	}
}

// link returns the address of a file in a result.
func link(t *testing.T, r runResult, name string) *url.URL {
	t.Helper()
	for _, f := range r.Files {
		if f.Name == name {
			u, err := url.Parse(f.URL)
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
	}
	t.Fatalf("no %s in %+v", name, r)
	return nil
}
