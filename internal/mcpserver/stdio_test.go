package mcpserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
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

// relayed is stdio through a Relay.
func relayed(t *testing.T, cfg Config) (f *fixture, in *io.PipeWriter, out *bufio.Reader, ended chan error) {
	t.Helper()
	f, toServer, fromServer, _ := stdio(t, cfg)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	relay := Relay{
		MaxLineBytes: f.cfg.MaxBodyBytes,
		Join:         func(context.Context) (Upstream, error) { return &piped{toServer, fromServer}, nil },
	}
	ended = make(chan error, 1)
	go func() {
		ended <- relay.Run(t.Context(), inR, outW)
		inR.Close()
		outW.Close()
	}()
	t.Cleanup(func() {
		inW.Close()
		outR.Close()
	})
	return f, inW, bufio.NewReader(outR), ended
}

// piped is a connection to a server on pipes.
type piped struct {
	in  *io.PipeWriter
	out *bufio.Reader
}

func (p *piped) Send(line []byte) error          { _, err := p.in.Write(line); return err }
func (p *piped) Receive() (line []byte, _ error) { return p.out.ReadBytes('\n') }
func (p *piped) CloseSend() error                { return p.in.Close() }
func (p *piped) Close() error                    { return p.in.Close() }
func (p *piped) Stopped() bool                   { return false }

// forStdio runs a test with a server on stdio, and with one behind a Relay.
func forStdio(t *testing.T, test func(t *testing.T, stdio stdioFunc)) {
	t.Run("server", func(t *testing.T) { test(t, stdio) })
	t.Run("relay", func(t *testing.T) { test(t, relayed) })
}

type stdioFunc func(*testing.T, Config) (*fixture, *io.PipeWriter, *bufio.Reader, chan error)

func anyLine(string) bool { return true }

// TestStdioMalformed: an invalid line does not end the session.
func TestStdioMalformed(t *testing.T) { forStdio(t, testStdioMalformed) }

func testStdioMalformed(t *testing.T, stdio stdioFunc) {
	_, in, out, ended := stdio(t, Config{MaxBodyBytes: 100 << 10})
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
	in.Close()
	if err := soon(t, ended); err != nil {
		t.Errorf("ServeStdio: %v", err)
	}
}

const (
	stdioHello  = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n"
	stdioListen = `{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"resourcesListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}` + "\n"
)

// TestStdioEndOfInput: requests before the end of input are answered, however long they take. Only
// a call that never ends by itself is cancelled.
func TestStdioEndOfInput(t *testing.T) { forStdio(t, testStdioEndOfInput) }

func testStdioEndOfInput(t *testing.T, stdio stdioFunc) {
	for _, first := range []string{stdioHello, stdioListen} {
		f, in, out, ended := stdio(t, Config{})
		go func() {
			io.WriteString(in, first)
			for id := 2; id < 5; id++ {
				fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"work",`+
					`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`+"\n", id)
			}
			in.Close()
		}()
		line(t, out, anyLine)
		for range 3 {
			soon(t, f.started)
		}
		select {
		case err := <-ended:
			t.Fatalf("the server ended before it answered: %v", err)
		case cause := <-f.ended:
			t.Fatalf("a call was cancelled: %v", cause)
		default:
		}
		close(f.release)
		rest, err := io.ReadAll(out)
		if err != nil || strings.Count(string(rest), `"text":"worked"`) != 3 {
			t.Errorf("%v: %s", err, rest)
		}
		if err := soon(t, ended); err != nil {
			t.Errorf("ServeStdio: %v", err)
		}
	}
}

// TestStdioNobodyReads: when the client is gone, its calls are cancelled. A shared server may
// notice that first when it writes a log line, and close its end.
func TestStdioNobodyReads(t *testing.T) {
	for name, leave := range map[string]func(out, outW *os.File){
		"client closes": func(out, _ *os.File) { out.Close() },
		"server closes": func(_, outW *os.File) { outW.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Config{})
			inR, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			out, outW, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			ended := make(chan error, 1)
			go func() { ended <- f.ServeStdio(t.Context(), inR, outW) }()
			io.WriteString(in, stdioHello+`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"work"}}`+"\n")
			soon(t, f.started)
			line(t, bufio.NewReader(out), anyLine) // initialize
			in.Close()
			leave(out, outW)
			soon(t, f.ended)
			if err := soon(t, ended); err != nil {
				t.Errorf("ServeStdio: %v", err)
			}
		})
	}
}

// TestStdioWriteFails: the same, if only a failed write shows that the client is gone.
func TestStdioWriteFails(t *testing.T) {
	f := newFixture(t, Config{})
	inR, in := io.Pipe()
	outR, outW := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- f.ServeStdio(t.Context(), inR, outW) }()
	go func() {
		io.WriteString(in, stdioHello+`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"work"}}`+"\n"+
			`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"work"}}`+"\n")
		in.Close()
	}()
	line(t, bufio.NewReader(outR), anyLine)
	soon(t, f.started)
	soon(t, f.started)
	outR.Close()
	f.release <- struct{}{} // one cannot send its answer; the other is cancelled
	soon(t, f.ended)
	if err := soon(t, ended); err != nil {
		t.Errorf("ServeStdio: %v", err)
	}
}

// TestStdioCancelled: a cancelled request is not answered. The session continues, and the id can be
// used again.
func TestStdioCancelled(t *testing.T) { forStdio(t, testStdioCancelled) }

func testStdioCancelled(t *testing.T, stdio stdioFunc) {
	f, in, out, ended := stdio(t, Config{})
	send := func(line string) {
		t.Helper()
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	send(strings.TrimSpace(stdioHello))
	line(t, out, anyLine)
	send(`{"jsonrpc":"2.0","id":"caf\u00e9","method":"tools/call","params":{"name":"wait"}}`)
	soon(t, f.started)
	send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"café","reason":"changed my mind"}}`)
	soon(t, f.ended)
	send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	if got := line(t, out, anyLine); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Error(got)
	}
	// A late cancellation has no effect on later calls.
	send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	send(`{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	if got := line(t, out, anyLine); got != `{"jsonrpc":"2.0","id":2,"result":{}}` {
		t.Error(got)
	}
	in.Close()
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("%v: %s", err, rest)
	}
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

// TestStdioFlood: a client that only asks is refused at some point. It can still cancel.
func TestStdioFlood(t *testing.T) {
	f, in, out, _ := stdio(t, Config{})
	go func() {
		io.WriteString(in, stdioHello)
		for id := range maxOpenCalls + 1 {
			fmt.Fprintf(in, `{"jsonrpc":"2.0","id":"c%d","method":"tools/call","params":{"name":"wait"}}`+"\n", id)
		}
		for id := range maxOpenCalls {
			fmt.Fprintf(in, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c%d"}}`+"\n", id)
		}
		io.WriteString(in, `{"jsonrpc":"2.0","id":"last","method":"ping"}`+"\n")
	}()
	line(t, out, anyLine) // initialize
	want := fmt.Sprintf(`{"jsonrpc":"2.0","id":"c%d","error":{"code":-32000,"message":"%[1]d requests are open; wait for an answer"`, maxOpenCalls)
	if got := line(t, out, anyLine); !strings.HasPrefix(got, want) {
		t.Errorf("one request too many: %s", got)
	}
	for range maxOpenCalls {
		<-f.started
		<-f.ended
	}
	if got := line(t, out, anyLine); got != `{"jsonrpc":"2.0","id":"last","result":{}}` {
		t.Errorf("after that: %s", got)
	}
}
