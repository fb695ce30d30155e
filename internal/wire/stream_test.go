package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"
)

// Concurrent senders share one window, in pieces of every size, and none starves.
func TestConcurrentSenders(t *testing.T) {
	const senders, pieces = 4, 3000
	server, _ := connect(t, func(s *Stream, f Frame) {
		defer s.Close()
		var wg sync.WaitGroup
		for i := range senders {
			wg.Go(func() {
				for j := range pieces {
					send(t, s, Frame{Type: TypeStdout, Data: make([]byte, 1+(i*j)%700)})
				}
			})
		}
		wg.Wait()
		send(t, s, Frame{Type: TypeExit, Exit: &Exit{}})
	}, nil)
	want := 0
	for i := range senders {
		for j := range pieces {
			want += 1 + (i*j)%700
		}
	}
	if got, _ := collect(t, open(t, server, runOne)); len(got[TypeStdout]) != want {
		t.Errorf("got %d bytes, want %d", len(got[TypeStdout]), want)
	}
}

func TestDialStream(t *testing.T) {
	const size = 1 << 20
	up, down := bytes.Repeat([]byte("u"), size), bytes.Repeat([]byte("d"), size)
	server, agent := connect(t, nil, func(s *Stream, f Frame) {
		defer s.Close()
		got, err := io.ReadAll(s) // until the agent's eof, before anything goes down
		if err != nil || !bytes.Equal(got, up) {
			t.Errorf("server read %d bytes, %v", len(got), err)
		}
		if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read after eof = %d, %v", n, err)
		}
		if n, err := s.Write(down); n != size || err != nil {
			t.Errorf("server wrote %d, %v", n, err)
		}
	})
	s := open(t, agent, dial)
	if n, err := s.Write(up); n != size || err != nil {
		t.Errorf("agent wrote %d, %v", n, err)
	}
	for range 2 {
		if err := s.CloseWrite(); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Write(up); err != ErrClosed {
		t.Errorf("write after eof = %v", err)
	}
	got, err := io.ReadAll(s)
	if err != nil || !bytes.Equal(got, down) {
		t.Errorf("agent read %d bytes, %v", len(got), err)
	}
	if _, err := s.Recv(bg); err != io.EOF {
		t.Errorf("recv after close = %v", err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := server.Ping(bg); err != nil {
		t.Error(err)
	}
}

func TestWriteToClosedPeer(t *testing.T) {
	_, agent := connect(t, nil, nil)
	s := open(t, agent, dial)
	defer s.Close()
	if n, err := s.Read(make([]byte, 1)); n != 0 || err != io.EOF { // no accept: closed at once
		t.Fatalf("read = %d, %v", n, err)
	}
	if _, err := s.Write([]byte("x")); err != io.ErrClosedPipe {
		t.Errorf("write = %v", err)
	}
	if err := s.CloseWrite(); err != nil {
		t.Error(err)
	}
}

// If the agent closes a run without an exit, the server gets one that says so.
func TestRunGivenUp(t *testing.T) {
	server, _ := connect(t, nil, nil)
	if _, exit := collect(t, open(t, server, runOne)); exit == nil || exit.Code != 126 || exit.Error == "" {
		t.Errorf("exit = %+v", exit)
	}
}

// Closing a stream unblocks its own Recv and every Send, and affects nothing else.
func TestStreamCloseUnblocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(chan *Stream, 1)
		sc, ac := net.Pipe()
		server := NewConn(sc, ServerSide, func(s *Stream, _ Frame) { accepted <- s })
		agent := NewConn(ac, AgentSide, nil)
		open(t, agent, dial)
		s := <-accepted
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if n, err := s.Write(make([]byte, Window)); err != ErrClosed || n >= Window {
					t.Errorf("write = %d, %v", n, err)
				}
			})
		}
		wg.Go(func() {
			if _, err := s.Recv(bg); err != ErrClosed {
				t.Errorf("recv = %v", err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if err := s.Send(ctx, Frame{Type: TypeData, Data: []byte("x")}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("send without credit = %v", err)
		}
		if _, err := s.Recv(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("recv = %v", err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := server.Ping(bg); err != nil {
			t.Error(err)
		}
		_ = server.Close()
		_ = agent.Close()
	})
}

// The last frame of a stream, and eof, unblock the waiting calls of this side.
func TestLastFrameUnblocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := make(chan *Stream, 1)
		sc, ac := net.Pipe()
		server := NewConn(sc, ServerSide, func(*Stream, Frame) {}) // reads nothing
		agent := NewConn(ac, AgentSide, func(s *Stream, _ Frame) { runs <- s })
		open(t, server, runOne)
		onRun, onDial := <-runs, open(t, agent, dial)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := onRun.Recv(bg); err != ErrClosed {
				t.Errorf("recv on a run that has exited = %v", err)
			}
		})
		for range 2 {
			wg.Go(func() {
				if err := onRun.Send(bg, Frame{Type: TypeStdout, Data: make([]byte, Window)}); err != ErrClosed {
					t.Errorf("send on a run that has exited = %v", err)
				}
			})
			wg.Go(func() {
				if _, err := onDial.Write(make([]byte, Window)); err != ErrClosed {
					t.Errorf("write after eof = %v", err)
				}
			})
		}
		synctest.Wait()
		send(t, onRun, Frame{Type: TypeExit, Exit: &Exit{}})
		if err := onDial.CloseWrite(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if err := server.Ping(bg); err != nil {
			t.Error(err)
		}
		_ = server.Close()
		_ = agent.Close()
	})
}

// Credit whose turn comes after the stream's last frame is not returned: the server would call it a
// breach.
func TestCreditAfterClose(t *testing.T) {
	server, agent := connect(t, nil, nil)
	s := open(t, agent, dial)
	s.mu.Lock()
	s.consumed, s.returning = Window/2, true
	s.mu.Unlock()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s.returnCredit()
	if err := server.Ping(bg); err != nil {
		t.Error(err)
	}
}

// Returned credit is worth what was consumed and no more.
func TestOverrunAfterCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sc, ac := net.Pipe()
		defer ac.Close()
		server := NewConn(sc, ServerSide, nil)
		defer server.Close()
		credit := Window
		var mu sync.Mutex
		go func() {
			dec := decoder{r: ac, limit: maxToAgent}
			for f, err := dec.decode(); err == nil; f, err = dec.decode() {
				mu.Lock()
				credit += f.Credit
				mu.Unlock()
			}
		}()
		s := open(t, server, runOne)
		stdout := payload(TypeStdout, 2, zeros(MaxData))
		spend := func() (frames int) {
			mu.Lock()
			defer mu.Unlock()
			for ; credit >= cost(MaxData); credit -= cost(MaxData) {
				writeRaw(t, ac, stdout)
				frames++
			}
			return frames
		}
		for range spend() {
			if _, err := s.Recv(bg); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if spend() == 0 {
			t.Fatal("no credit came back")
		}
		synctest.Wait()
		if err := server.Err(); err != nil {
			t.Fatalf("ended with %v within the window", err)
		}
		writeRaw(t, ac, stdout)
		<-server.Done()
		if err := server.Err(); !errors.Is(err, ErrProtocol) {
			t.Errorf("ended with %v", err)
		}
	})
}

// gone is a peer whose hang-up is first seen by a write.
type gone struct {
	err    error
	closed chan struct{}
}

func (g gone) Read([]byte) (int, error)  { <-g.closed; return 0, os.ErrClosed }
func (g gone) Write([]byte) (int, error) { return 0, g.err }
func (g gone) Close() error              { close(g.closed); return nil }

func TestHangUpSeenByWrite(t *testing.T) {
	other := errors.New("disk on fire")
	for err, want := range map[error]error{
		syscall.EPIPE:      io.EOF,
		syscall.ECONNRESET: io.EOF,
		io.ErrClosedPipe:   io.EOF,
		other:              other,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := NewConn(gone{&net.OpError{Op: "write", Err: err}, make(chan struct{})}, ServerSide, nil)
			if _, got := c.Open(runOne); !errors.Is(got, want) {
				t.Errorf("open on %v = %v", err, got)
			}
			<-c.Done()
			if got := c.Err(); !errors.Is(got, want) {
				t.Errorf("ended by %v with %v", err, got)
			}
		})
	}
}

// hungUp is a peer that has sent its last frames and hung up. They are read after a write has
// failed.
type hungUp struct {
	words  *bytes.Reader
	writes *int
	failed chan struct{}
}

func (h hungUp) Read(p []byte) (int, error) { <-h.failed; return h.words.Read(p) }
func (h hungUp) Close() error               { h.words.Reset(nil); return nil }

func (h hungUp) Write(p []byte) (int, error) {
	if *h.writes++; *h.writes == 1 {
		return len(p), nil
	}
	close(h.failed)
	return 0, syscall.EPIPE
}

func TestLastWordsAreRead(t *testing.T) {
	var enc encoder
	words, err := enc.encode(&Frame{Type: TypeStdout, ID: 2, Data: []byte("last words")}, maxFromAgent)
	if err != nil {
		t.Fatal(err)
	}
	c := NewConn(hungUp{bytes.NewReader(words), new(int), make(chan struct{})}, ServerSide, nil)
	s := open(t, c, runOne)
	if err := s.Send(bg, Frame{Type: TypeInterrupt}); err != io.EOF {
		t.Errorf("send = %v", err)
	}
	if f, err := s.Recv(bg); err != nil || string(f.Data) != "last words" {
		t.Errorf("%q, %v", f.Data, err)
	}
	if _, err := s.Recv(bg); err != io.EOF {
		t.Errorf("then %v", err)
	}
	<-c.Done()
}

// A frame from the server may cross with the run's exit. The agent ignores it.
func TestFrameCrossesExit(t *testing.T) {
	sc, ac := net.Pipe()
	defer sc.Close()
	agent := NewConn(ac, AgentSide, nil)
	defer agent.Close()
	dec := decoder{r: sc, limit: maxFromAgent}
	writeRaw(t, sc, `{"type":"run","id":2,"run":{"argv":["true"],"limits":{}}}`)
	for _, want := range []Type{TypeExit, TypePong} { // without an accept the run is over at once
		if f, err := dec.decode(); err != nil || f.Type != want {
			t.Fatalf("agent sent %+v, %v, want %s", f, err, want)
		}
		if want == TypeExit {
			writeRaw(t, sc, `{"type":"kill","id":2}`)
			writeRaw(t, sc, `{"type":"interrupt","id":2}`)
			writeRaw(t, sc, `{"type":"ping"}`)
		}
	}
}

// A dial keeps the rules of net.Conn: deadlines, closing, and both from many goroutines.
func TestNetConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		sc, ac := net.Pipe()
		accepted := make(chan *Stream, 1)
		agent := NewConn(ac, AgentSide, nil)
		server := NewConn(sc, ServerSide, func(s *Stream, _ Frame) { accepted <- s })
		s, err := agent.Open(dial)
		if err != nil {
			return nil, nil, nil, err
		}
		return s, <-accepted, func() { _, _ = server.Close(), agent.Close() }, nil
	})
}
