package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	bg     = context.Background()
	runOne = Frame{Type: TypeRun, Run: &Run{Argv: []string{"true"}}}
	dial   = Frame{Type: TypeDial}
)

// connect returns both ends of a connection, which end with the test.
func connect(tb testing.TB, onRun, onDial func(*Stream, Frame)) (server, agent *Conn) {
	tb.Helper()
	s, a := net.Pipe()
	agent = NewConn(a, AgentSide, onRun)
	server = NewConn(s, ServerSide, onDial)
	tb.Cleanup(func() {
		_ = server.Close()
		_ = agent.Close()
	})
	return server, agent
}

// sockets returns both ends of a real socket.
func sockets(tb testing.TB) (server, agent net.Conn) {
	tb.Helper()
	l, err := net.Listen("unix", filepath.Join(tb.TempDir(), "s"))
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	if agent, err = net.Dial("unix", l.Addr().String()); err != nil {
		tb.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = server.Close()
		_ = agent.Close()
	})
	return server, agent
}

func open(tb testing.TB, c *Conn, f Frame) *Stream {
	tb.Helper()
	s, err := c.Open(f)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func send(tb testing.TB, s *Stream, f Frame) {
	tb.Helper()
	if err := s.Send(bg, f); err != nil {
		tb.Errorf("send %s: %v", f.Type, err)
	}
}

// collect receives until the stream's end: the payload of each type, and the exit.
func collect(tb testing.TB, s *Stream) (map[Type][]byte, *Exit) {
	tb.Helper()
	got := map[Type][]byte{}
	var exit *Exit
	for {
		f, err := s.Recv(bg)
		if err == io.EOF {
			return got, exit
		}
		if err != nil {
			tb.Errorf("recv: %v", err)
			return got, exit
		}
		got[f.Type] = append(got[f.Type], f.Data...)
		if f.Exit != nil {
			exit = f.Exit
		}
	}
}

func TestRunStream(t *testing.T) {
	binary := strings.Repeat("\x00\xff\n\"", MaxData) // four frames
	server, _ := connect(t, func(s *Stream, f Frame) {
		defer s.Close()
		if f.Run.Env["A"] != "b" || string(f.Run.Code) != "code" {
			t.Errorf("run = %+v", f.Run)
		}
		if f, err := s.Recv(bg); err != nil || f.Type != TypeInterrupt {
			t.Errorf("recv = %+v, %v", f, err)
		}
		send(t, s, Frame{Type: TypeStdout, Data: []byte("one")})
		send(t, s, Frame{Type: TypeStderr, Data: []byte("two")})
		send(t, s, Frame{Type: TypeStdout, Data: nil}) // nothing to say, nothing sent
		send(t, s, Frame{Type: TypeDisplay, MIME: "image/png", File: "plots/ü.png", Data: []byte(binary)})
		send(t, s, Frame{Type: TypeExit, Exit: &Exit{Code: 137, Signal: 9, UserUS: 5, MaxRSSB: 7,
			Error: strings.Repeat("\xff", maxExitError+1)}})
		for _, f := range []Frame{{Type: TypeExit, Exit: &Exit{}}, {Type: TypeStdout, Data: []byte("late")}} {
			if err := s.Send(bg, f); err != ErrClosed {
				t.Errorf("send %s after exit = %v", f.Type, err)
			}
		}
		if _, err := s.Recv(bg); err != ErrClosed {
			t.Errorf("recv after exit = %v", err)
		}
	}, nil)
	s := open(t, server, Frame{Type: TypeRun, Run: &Run{
		Argv: []string{"sh"}, Code: []byte("code"), Env: map[string]string{"A": "b"}}})
	send(t, s, Frame{Type: TypeInterrupt})

	for _, want := range []Frame{{Type: TypeStdout, Data: []byte("one")}, {Type: TypeStderr, Data: []byte("two")}} {
		if f, err := s.Recv(bg); err != nil || f.Type != want.Type || !bytes.Equal(f.Data, want.Data) {
			t.Fatalf("recv = %+v, %v, want %+v", f, err, want)
		}
	}
	var shown []byte
	for more := true; more; {
		f, err := s.Recv(bg)
		if err != nil || f.Type != TypeDisplay || f.MIME != "image/png" || f.File != "plots/ü.png" {
			t.Fatalf("recv = %+v, %v, want a display", f, err)
		}
		shown, more = append(shown, f.Data...), f.More
	}
	if string(shown) != binary {
		t.Errorf("display of %d bytes, want %d", len(shown), len(binary))
	}
	want := Exit{Code: 137, Signal: 9, UserUS: 5, MaxRSSB: 7, Error: "?"}
	if f, err := s.Recv(bg); err != nil || f.Type != TypeExit || *f.Exit != want {
		t.Fatalf("recv = %+v, %v, want %+v", f, err, want)
	}
	for range 2 {
		if _, err := s.Recv(bg); err != io.EOF {
			t.Errorf("recv after exit = %v", err)
		}
	}
	send(t, s, Frame{Type: TypeKill}) // crossed with the exit
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := server.Ping(bg); err != nil {
		t.Error(err)
	}
}

func TestUnreadStreamBlocksOnlyItself(t *testing.T) {
	const size = 2 << 20
	server, _ := connect(t, func(s *Stream, f Frame) {
		send(t, s, Frame{Type: TypeStdout, Data: make([]byte, size)})
		send(t, s, Frame{Type: TypeExit, Exit: &Exit{}})
	}, nil)
	stuck := open(t, server, runOne)
	for range 2 { // while nobody reads stuck
		if got, exit := collect(t, open(t, server, runOne)); len(got[TypeStdout]) != size || exit == nil {
			t.Errorf("got %d bytes, exit %v", len(got[TypeStdout]), exit)
		}
	}
	dropped := open(t, server, runOne)
	_ = dropped.Close() // its output is thrown away; it still comes to its end, and makes room
	for {
		server.mu.Lock()
		left := len(server.streams)
		server.mu.Unlock()
		if left == 1 {
			break
		}
		if err := server.Ping(bg); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dropped.Recv(bg); err != ErrClosed {
		t.Errorf("recv on a closed stream = %v", err)
	}
	if got, exit := collect(t, stuck); len(got[TypeStdout]) != size || exit == nil {
		t.Errorf("got %d bytes, exit %v", len(got[TypeStdout]), exit)
	}
}

// Both sides write, half-close and close at once, in every order; a frame after a stream's last one
// would end the connection.
func TestCloseRaces(t *testing.T) {
	tear := func(s *Stream) {
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = s.Write(make([]byte, 3*Window)) })
		wg.Go(func() { _, _ = io.CopyN(io.Discard, s, Window) })
		wg.Go(func() { _ = s.CloseWrite() })
		wg.Go(func() { _ = s.Close() })
		wg.Go(func() { _ = s.Close() })
		wg.Wait()
	}
	var wg sync.WaitGroup
	server, agent := connect(t, nil, func(s *Stream, _ Frame) {
		defer wg.Done()
		tear(s)
	})
	for range 200 {
		wg.Add(2)
		s := open(t, agent, dial)
		go func() {
			defer wg.Done()
			tear(s)
		}()
	}
	wg.Wait()
	if err := server.Ping(bg); err != nil {
		t.Errorf("the connection did not survive: %v", err)
	}
	if n := server.open[1]; n != 0 {
		t.Errorf("%d streams left open", n)
	}
}

// More dials in a row than may be open at a time.
func TestDialChurn(t *testing.T) {
	server, agent := connect(t, nil, nil)
	for i := range 3 * maxStreams {
		s := open(t, agent, dial)
		if i%2 == 0 {
			_, _ = io.Copy(io.Discard, s) // the server closes first
		}
		_ = s.Close()
		for agent.Err() == nil { // until it is forgotten: the pong comes after the close
			agent.mu.Lock()
			n := agent.open[1]
			agent.mu.Unlock()
			if n < maxStreams {
				break
			}
			_ = server.Ping(bg)
		}
	}
	if err := server.Ping(bg); err != nil {
		t.Error(err)
	}
}

// afterWrite is a connection that calls a function after each Write, as if the writer had been
// preempted there.
type afterWrite struct {
	net.Conn
	call func()
}

func (c afterWrite) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.call()
	return n, err
}

// A peer that opens a stream as soon as it knows that another has ended finds a place for it.
func TestFullOfDials(t *testing.T) {
	accepted := make(chan *Stream, maxStreams+1)
	pause := func() {}
	sc, ac := net.Pipe()
	server := NewConn(afterWrite{sc, func() { pause() }}, ServerSide, func(s *Stream, _ Frame) { accepted <- s })
	defer server.Close()
	agent := NewConn(ac, AgentSide, nil)
	defer agent.Close()
	mine := map[uint64]*Stream{}
	for range maxStreams {
		s := open(t, agent, dial)
		mine[s.id] = s
	}
	theirs := <-accepted
	for range maxStreams - 1 {
		<-accepted
	}
	_ = mine[theirs.id].Close()
	<-theirs.Ended()
	opened := make(chan error, 1)
	pause = func() { // the agent has the close of its dial: it opens the next
		pause = func() {}
		for {
			_, err := agent.Open(dial)
			if err == nil || agent.Err() != nil {
				opened <- err
				break
			}
		}
		select {
		case <-accepted:
		case <-server.Done():
		}
	}
	_ = theirs.Close()
	if err := <-opened; err != nil {
		t.Errorf("open the next: %v", err)
	}
	if err := server.Err(); err != nil {
		t.Errorf("the server has ended the connection: %v", err)
	}
}

// Whatever ends the connection, no call keeps waiting, and every call returns the reason.
func TestEndUnblocksEverything(t *testing.T) {
	tests := map[string]struct {
		end  func(server, agent *Conn)
		want error // at the server's side
	}{
		"close":         {func(server, _ *Conn) { _ = server.Close() }, ErrClosed},
		"peer hangs up": {func(_, agent *Conn) { _ = agent.Close() }, io.EOF},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				accepted := make(chan *Stream, 1)
				sc, ac := net.Pipe()
				server := NewConn(sc, ServerSide, func(s *Stream, _ Frame) { accepted <- s })
				agent := NewConn(mute{ac}, AgentSide, func(*Stream, Frame) {})
				open(t, agent, dial)
				run, dialled := open(t, server, runOne), <-accepted
				errs := make(map[string]error)
				var mu sync.Mutex
				var wg sync.WaitGroup
				call := func(what string, f func() error) {
					wg.Go(func() {
						err := f()
						mu.Lock()
						defer mu.Unlock()
						errs[what] = err
					})
				}
				call("recv on a run", func() error { _, err := run.Recv(bg); return err })
				call("read on a dial", func() error { _, err := dialled.Read(make([]byte, 1)); return err })
				for i := range 3 {
					call(fmt.Sprintf("write %d", i), func() error { _, err := dialled.Write(make([]byte, Window)); return err })
				}
				synctest.Wait()
				if len(errs) != 0 {
					t.Fatalf("did not wait: %v", errs)
				}
				call("ping", func() error { return server.Ping(bg) })
				synctest.Wait()
				tt.end(server, agent)
				wg.Wait()
				call("ping after the end", func() error { return server.Ping(bg) })
				call("open after the end", func() error { _, err := server.Open(runOne); return err })
				call("kill after the end", func() error { return run.Send(bg, Frame{Type: TypeKill}) })
				wg.Wait()
				<-server.Done()
				errs["Err"] = server.Err()
				for what, err := range errs {
					if err != tt.want {
						t.Errorf("%s = %v, want %v", what, err, tt.want)
					}
				}
				_ = agent.Close()
			})
		})
	}
}

// mute drops every pong.
type mute struct{ net.Conn }

func (m mute) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"pong"`)) {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc, ac := net.Pipe()
		server := NewConn(sc, ServerSide, nil)
		defer server.Close()
		dec := decoder{r: ac, limit: maxToAgent}
		ping := func(d time.Duration) error {
			ctx, cancel := context.WithTimeout(bg, d)
			defer cancel()
			return server.Ping(ctx)
		}
		pong := func() { writeRaw(t, ac, `{"type":"pong"}`) }

		// The agent reads, and does not answer.
		go func() { _, _ = dec.decode() }()
		if err := ping(time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("ping = %v", err)
		}
		// The late pong breaks no rule and does not answer the next ping.
		pong()
		synctest.Wait()
		if err := server.Err(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() { done <- ping(time.Minute) }()
		_, _ = dec.decode()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("ping = %v before its pong", err)
		default:
		}
		pong()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// An agent that never answers cannot make the list grow for ever.
		go func() { _, _ = io.Copy(io.Discard, ac) }()
		for range maxPings {
			if err := ping(time.Second); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("ping = %v", err)
			}
		}
		if err := ping(time.Second); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ping = %v, want a refusal", err)
		}
	})
}

// A frame that this side must not send is an error of the call. The connection goes on.
func TestRefusals(t *testing.T) {
	runs := make(chan *Stream, 1)
	server, agent := connect(t, func(s *Stream, _ Frame) { runs <- s }, func(*Stream, Frame) {})
	run := open(t, server, runOne)
	onRun := <-runs
	onDial := open(t, agent, dial)
	opens := map[string]struct {
		c *Conn
		f Frame
	}{
		"server dials":         {server, dial},
		"agent runs":           {agent, runOne},
		"run without a run":    {server, Frame{Type: TypeRun}},
		"run that is too long": {server, Frame{Type: TypeRun, Run: &Run{Code: make([]byte, maxToAgent)}}},
		"dial with data":       {agent, Frame{Type: TypeDial, Data: []byte("x")}},
	}
	for name, tt := range opens {
		if s, err := tt.c.Open(tt.f); err == nil {
			t.Errorf("%s: opened stream %d", name, s.id)
		}
	}
	sends := map[string]struct {
		s *Stream
		f Frame
	}{
		"server's stdout":   {run, Frame{Type: TypeStdout, Data: []byte("x")}},
		"server's exit":     {run, Frame{Type: TypeExit, Exit: &Exit{}}},
		"agent's kill":      {onRun, Frame{Type: TypeKill}},
		"exit without body": {onRun, Frame{Type: TypeExit}},
		"exit out of range": {onRun, Frame{Type: TypeExit, Exit: &Exit{Code: -1}}},
		"long MIME":         {onRun, Frame{Type: TypeDisplay, MIME: strings.Repeat("m", maxMIME+1), Data: []byte("x")}},
		"MIME not UTF-8":    {onRun, Frame{Type: TypeDisplay, MIME: "\xff", Data: []byte("x")}},
		"long file":         {onRun, Frame{Type: TypeDisplay, File: strings.Repeat("f", maxFile+1), Data: []byte("x")}},
		"file not UTF-8":    {onRun, Frame{Type: TypeDisplay, File: "\xff", Data: []byte("x")}},
		"file of stdout":    {onRun, Frame{Type: TypeStdout, File: "f", Data: []byte("x")}},
		"data on a run":     {onRun, Frame{Type: TypeData, Data: []byte("x")}},
		"stdout on a dial":  {onDial, Frame{Type: TypeStdout, Data: []byte("x")}},
		"credit":            {onDial, Frame{Type: TypeWindow, Credit: 1}},
		"a second run":      {onDial, runOne},
	}
	for name, tt := range sends {
		if err := tt.s.Send(bg, tt.f); err == nil {
			t.Errorf("%s was sent", name)
		}
	}
	if _, err := run.Write([]byte("x")); err == nil {
		t.Error("Write on a run")
	}
	for range maxStreams - 1 {
		open(t, agent, dial)
	}
	if _, err := agent.Open(dial); err == nil {
		t.Error("opened more dials than the server takes")
	}
	open(t, server, runOne) // dials do not crowd out runs
	if err := server.Ping(bg); err != nil {
		t.Error(err)
	}
}

func BenchmarkStdout(b *testing.B) {
	sc, ac := sockets(b)
	agent := NewConn(ac, AgentSide, func(s *Stream, _ Frame) {
		p := make([]byte, MaxData)
		for range b.N {
			send(b, s, Frame{Type: TypeStdout, Data: p})
		}
		send(b, s, Frame{Type: TypeExit, Exit: &Exit{}})
	})
	defer agent.Close()
	server := NewConn(sc, ServerSide, nil)
	defer server.Close()
	b.SetBytes(MaxData)
	b.ReportAllocs()
	b.ResetTimer()
	s := open(b, server, runOne)
	for {
		if _, err := s.Recv(bg); err == io.EOF {
			return
		} else if err != nil {
			b.Fatal(err)
		}
	}
}
