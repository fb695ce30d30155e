package mcpserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// FuzzBridge: for any body and headers, the answer is valid JSON-RPC, or empty with status 202.
func FuzzBridge(f *testing.F) {
	for _, body := range []string{
		call, ``, `{`, `[]`, `[` + call + `,` + call + `,1]`, `{"jsonrpc":"2.0","id":1e400,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":"\u0000","method":"ping","method":5}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"x","capabilities":{"roots":5}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"x"}}`, `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"x"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":"AAAA"}}`, `{"jsonrpc":"2.0","id":1,"result":1}`,
	} {
		f.Add(body, "", "*/*", "")
		f.Add(body, "2025-11-25", "application/json, text/event-stream", "x")
		f.Add(body, "2026-07-28", "text/event-stream", "")
	}
	fix := newFixture(f, Config{MaxBodyBytes: 1 << 20})
	f.Fuzz(func(t *testing.T, body, version, accept, session string) {
		// These two wait for the client to leave.
		if strings.Contains(body, "subscriptions") || strings.Contains(body, "wait") {
			return
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", strings.NewReader(body))
		r.Header["Accept"] = []string{accept}
		r.Header["Mcp-Protocol-Version"] = []string{version}
		r.Header["Mcp-Session-Id"] = []string{session}
		w := httptest.NewRecorder()
		fix.Handler().ServeHTTP(w, r)
		if n := len(fix.exchanges.live); n != 0 {
			t.Fatalf("%d exchanges are left", n)
		}
		answer := w.Body.String()
		switch {
		case w.Code == http.StatusAccepted && answer == "":
			return
		case strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream"):
			for event := range strings.SplitSeq(strings.TrimSuffix(answer, "\n\n"), "\n\n") {
				_, data, _ := strings.Cut(event, "data: ")
				checkResponse(t, body, data)
			}
		default:
			checkResponse(t, body, answer)
		}
	})
}

func checkResponse(t *testing.T, body, answer string) {
	t.Helper()
	type response struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  json.RawMessage `json:"result"`
		Error   *struct {
			Code    *int    `json:"code"`
			Message *string `json:"message"`
		} `json:"error"`
	}
	var batch []response
	if err := json.Unmarshal([]byte(answer), &batch); err != nil {
		var one response
		if err := json.Unmarshal([]byte(answer), &one); err != nil {
			t.Fatalf("to %q: not JSON: %q", body, answer)
		}
		batch = append(batch, one)
	}
	for _, r := range batch {
		ok := r.JSONRPC == "2.0" && (r.Result != nil) != (r.Error != nil)
		if r.Error != nil {
			ok = ok && r.Error.Code != nil && *r.Error.Code < 0 && r.Error.Message != nil
		}
		if !ok {
			t.Fatalf("to %q: not a JSON-RPC response: %q", body, answer)
		}
	}
}
