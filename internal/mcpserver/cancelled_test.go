package mcpserver

import (
	"io"
	"strings"
	"testing"
)

const cancelNote = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`

const waitCall = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}`

// TestCancelledOverHTTP: a cancelled request is not answered. Its stream ends; a client that wants
// JSON gets status 202 without a body.
func TestCancelledOverHTTP(t *testing.T) {
	const ping = `{"jsonrpc":"2.0","id":"p","method":"ping"}`
	for _, tt := range []struct {
		name, body, accept, version string
		status                      int
		want                        string
	}{
		{"stream", waitCall, "application/json, text/event-stream", "2025-11-25", 200, ""},
		{"stream of an old version", waitCall, "application/json, text/event-stream", "2024-11-05", 200, ""},
		{"JSON", waitCall, "application/json", "2025-11-25", 202, ""},
		{"batch", "[" + waitCall + "," + ping + "]", "application/json", "2025-03-26", 200, `[{"jsonrpc":"2.0","id":"p","result":{}}]`},
		{"batch of one", "[" + waitCall + "]", "application/json", "2025-03-26", 202, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, Config{})
			session := f.initialize(t, tt.version)
			type answer struct {
				status int
				body   string
			}
			answered := make(chan answer, 1)
			go func() {
				resp := f.do(t, "POST", f.url, tt.body, session, "Accept: "+tt.accept)
				body, _ := io.ReadAll(resp.Body)
				answered <- answer{resp.StatusCode, string(body)}
			}()
			soon(t, f.started)
			f.post(t, cancelNote, session)
			soon(t, f.ended)
			got := soon(t, answered)
			if got.status != tt.status || got.body != tt.want {
				t.Errorf("status %d, %q; want %d, %q", got.status, got.body, tt.status, tt.want)
			}
			// The id can be used again.
			if status, answer := f.post(t, strings.Replace(waitCall, "wait", "echo", 1), session); status != 200 || !strings.Contains(answer, `"id":1,"result"`) {
				t.Errorf("status %d: %s", status, answer)
			}
		})
	}
}

// TestCancelledByOthers: a client cannot cancel another client's request.
func TestCancelledByOthers(t *testing.T) {
	f := newFixture(t, Config{})
	session := f.initialize(t, "2025-11-25")
	other := f.initialize(t, "2025-11-25", "Authorization: Bearer mallory")
	answered := make(chan string, 1)
	go func() {
		_, body := f.post(t, strings.Replace(waitCall, "wait", "work", 1), session, "Accept: text/event-stream")
		answered <- body
	}()
	soon(t, f.started)
	f.post(t, cancelNote, other, "Authorization: Bearer mallory")
	f.post(t, cancelNote, session, "Authorization: Bearer mallory")
	f.post(t, cancelNote)
	close(f.release)
	if got := soon(t, answered); !strings.Contains(got, "worked") {
		t.Errorf("answer: %q", got)
	}
}
