package mcpserver

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestListenLimit: requests that listen count as streams until the client leaves.
func TestListenLimit(t *testing.T) {
	f := newFixture(t, Config{MaxSessions: 1})
	listen := func() *http.Response {
		t.Helper()
		return f.do(t, "POST", f.url, `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{"notifications":{"resourcesListChanged":true},`+
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`,
			"Accept: application/json, text/event-stream", "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: subscriptions/listen")
	}
	first := listen()
	if first.StatusCode != http.StatusOK {
		t.Fatal(first.Status)
	}
	line(t, bufio.NewReader(first.Body), func(s string) bool { return strings.Contains(s, "notifications/subscriptions/acknowledged") })
	if second := listen(); second.StatusCode != http.StatusServiceUnavailable || second.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %s", second.Status)
	}
	first.Body.Close()
	for deadline := time.Now().Add(5 * time.Second); listen().StatusCode != http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatal("no room after the client has gone")
		}
	}
}
