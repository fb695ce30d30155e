package tools

import (
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

// TestCaller: an HTTP request without an identity never becomes the local caller.
func TestCaller(t *testing.T) {
	header := http.Header{}
	for _, tt := range []struct {
		name  string
		extra *mcp.RequestExtra
		want  string // empty: refused
	}{
		{"stdio", nil, session.Local.ID},
		{"stdio with extra", &mcp.RequestExtra{}, session.Local.ID},
		{"HTTP without identity", &mcp.RequestExtra{Header: header}, ""},
		{"HTTP with an empty identity", &mcp.RequestExtra{Header: header, TokenInfo: &auth.TokenInfo{}}, ""},
		{"HTTP", &mcp.RequestExtra{Header: header, TokenInfo: &auth.TokenInfo{UserID: "ann"}}, "ann"},
	} {
		got, err := callerOf(tt.extra)
		if got.ID != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%s: %q, %v; want %q", tt.name, got.ID, err, tt.want)
		}
	}
}

func TestDecodeBase64(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""}, {"YQ==", "a"}, {"YQ", "a"}, {"YWI=", "ab"}, {"YWI", "ab"}, {"YWJj", "abc"}, {"YW\nJj\r\n", "abc"}, {"YWJjZA==\n", "abcd"}, {"YWJj\nZA==", "abcd"}, {"YWJj\nZA", "abcd"},
		{"Y", "error"}, {"YQ=", "error"}, {"YQ==YQ==", "error"}, {"a b c", "error"}, {"-_-_", "error"}, {"data:text/csv;base64,YQ==", "error"}, {"YQ==\x00", "error"},
	} {
		got, err := decodeBase64(tt.in)
		if err != nil {
			got = []byte("error")
		}
		if string(got) != tt.want {
			t.Errorf("%q: %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestCombine(t *testing.T) {
	for _, tt := range []struct{ out, err, want string }{
		{"", "", ""}, {"a\n", "", "a\n"}, {"", "b", "b"}, {"a\n", "b\n", "a\n\nb\n"}, {"a", "b", "a\nb"}, {"\xff", "\xfe", "\uFFFD\n\uFFFD"},
	} {
		if got := combine([]byte(tt.out), []byte(tt.err)); got != tt.want {
			t.Errorf("%q, %q: %q, want %q", tt.out, tt.err, got, tt.want)
		}
	}
}

// TestNoRunners: a server without languages says how to find out why.
func TestNoRunners(t *testing.T) {
	tool := newToolset(nil, Options{}).runCodeTool().define(runner.Set{})
	if strings.Contains(tool.Description, "libraries") {
		t.Error(tool.Description)
	}
	if got := unknownLanguage(nil).Content[0].(*mcp.TextContent).Text; !strings.Contains(got, "mcp-code-sandbox doctor") {
		t.Error(got)
	}
}
