package mcpserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestStopping: a call that the server's shutdown ends gets an error with the reason and the fix.
func TestStopping(t *testing.T) {
	call := message{id: json.RawMessage("1"), method: "tools/call"}
	for _, stopping := range []bool{true, false} {
		for _, live := range []bool{true, false} {
			w := httptest.NewRecorder()
			r := newReply(w, live)
			r.call, r.stopping = true, func() bool { return stopping }
			if live {
				r.beatLocked()
			}
			r.finish(call)
			got := w.Body.String()
			if told := strings.Contains(got, `"id":1`) && strings.Contains(got, "the server is stopping and has ended this call; connect again"); told != stopping {
				t.Errorf("stopping %t, stream %t: %s", stopping, live, got)
			}
			if !live && w.Code != http.StatusServiceUnavailable {
				t.Errorf("status %d", w.Code)
			}
		}
	}
	w := httptest.NewRecorder()
	r := newReply(w, true)
	r.call, r.stopping = true, func() bool { return true }
	r.Header().Set("Content-Type", "text/event-stream")
	if _, err := r.Write([]byte("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")); err != nil {
		t.Fatal(err)
	}
	r.finish(call)
	if got := w.Body.String(); strings.Count(got, "data:") != 1 {
		t.Errorf("answered twice: %s", got)
	}
}
