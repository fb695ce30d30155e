package mcpserver

import (
	"bufio"
	"context"
	"io"
	"strings"
	"testing"
)

// stdio starts a server on pipes and returns the client's ends.
func stdio(t *testing.T, cfg Config) (f *fixture, in *io.PipeWriter, out *bufio.Reader, ended chan error) {
	t.Helper()
	f = newFixture(t, cfg)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ended = make(chan error, 1)
	go func() { ended <- f.ServeStdio(t.Context(), inR, outW) }()
	t.Cleanup(func() {
		inW.Close()
		outR.Close()
	})
	return f, inW, bufio.NewReader(outR), ended
}

func anyLine(string) bool { return true }

// TestStdioMalformed: no line, however bad, ends the session.
func TestStdioMalformed(t *testing.T) {
	f, in, out, ended := stdio(t, Config{MaxBodyBytes: 100 << 10})
	for _, tt := range []struct{ line, want string }{
		{`{"jsonrpc":"2.0","id":0,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":0,"error":{"code":-32600,`}, // before initialize
		{`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, `{"jsonrpc":"2.0","id":1,"result":`},
		{`{"id":2,"method":"ping"}`, `{"jsonrpc":"2.0","id":2,"error":{"code":-32600,`},
		{`{"jsonrpc":"1.0","id":3,"method":"ping"}`, `{"jsonrpc":"2.0","id":3,"error":{"code":-32600,`},
		{`garbage`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,`},
		{`{"jsonrpc":"2.0","id":4,`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,`},
		{`[{"jsonrpc":"2.0","id":5,"method":"ping"}]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,`},
		{`[]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,`},
		{`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, `{"jsonrpc":"2.0","id":1.5,"error":{"code":-32600,`},
		{`{"jsonrpc":"2.0","id":6,"method":"nope"}`, `{"jsonrpc":"2.0","id":6,"error":{"code":-32601,`},
		{`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":7}}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,`},
		{`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"panic"}}`, `{"jsonrpc":"2.0","id":8,"error":{"code":-32603,`},
		{`{"jsonrpc":"2.0","id":9,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`, `{"jsonrpc":"2.0","id":9,"error":{"code":-32603,`},
		{strings.Repeat("x", 300<<10), `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,`},
		{"\n\n{\"jsonrpc\":\"2.0\",\"method\":\"notifications/nope\"}\n" + `{"jsonrpc":"2.0","id":10,"method":"ping"}` + "\r", `{"jsonrpc":"2.0","id":10,"result":{}}`},
	} {
		if _, err := io.WriteString(in, tt.line+"\n"); err != nil {
			t.Fatal(err)
		}
		if got := line(t, out, anyLine); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%.80s: got %s, want %s", tt.line, got, tt.want)
		}
	}
	// The client leaves in mid-call: the call ends, and so does the server.
	io.WriteString(in, `{"jsonrpc":"2.0","id":11,"method":"tools/call","params":{"name":"wait"}}`+"\n")
	soon(t, f.started)
	in.Close()
	soon(t, f.ended)
	if err := soon(t, ended); err != nil {
		t.Errorf("ServeStdio: %v", err)
	}
}

func TestStdioShutdown(t *testing.T) {
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"wait"}}` + "\n"
	f, in, out, ended := stdio(t, Config{})
	go io.Copy(io.Discard, out)
	io.WriteString(in, hello)
	soon(t, f.started)
	if err := f.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
	soon(t, f.ended)
	if err := soon(t, ended); err != nil {
		t.Errorf("ServeStdio: %v", err)
	}
}
