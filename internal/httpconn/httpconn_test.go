package httpconn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves one end of a pipe and returns the other. The channel is closed when Serve returns.
func serve(ctx context.Context, h http.HandlerFunc) (code net.Conn, done <-chan struct{}) {
	code, conn := net.Pipe()
	end := make(chan struct{})
	go func() {
		defer close(end)
		Serve(ctx, conn, h, slog.New(slog.DiscardHandler))
	}()
	return code, end
}

// wantClosed fails the test unless the other side has closed the connection, without an answer.
func wantClosed(t *testing.T, code net.Conn) {
	t.Helper()
	if got, err := io.ReadAll(code); len(got) > 0 || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := code.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the connection is open: %v", err)
	}
}

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// TestServe: requests are answered one after the other until code closes the connection.
func TestServe(t *testing.T) {
	n := 0
	code, done := serve(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
		n++
		fmt.Fprint(w, n)
	})
	r := bufio.NewReader(code)
	for want := range 3 {
		go func() { _, _ = io.WriteString(code, get) }()
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(res.Body); string(body) != fmt.Sprint(want+1) {
			t.Errorf("%q", body)
		}
	}
	code.Close()
	<-done
}

// TestHijack: a handler that takes the connection keeps it until it returns, and no longer.
func TestHijack(t *testing.T) {
	for name, end := range map[string]func(){"returns": func() {}, "panics": func() { panic("a test") }} {
		taken, leave := make(chan net.Conn), make(chan struct{})
		code, done := serve(t.Context(), func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
			}
			taken <- conn
			<-leave
			end()
		})
		_, _ = io.WriteString(code, get)
		conn := <-taken
		go func() { _, _ = io.WriteString(conn, "hello") }()
		if _, err := io.ReadFull(code, make([]byte, 5)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		select {
		case <-done:
			t.Errorf("%s: Serve did not wait for the handler", name)
		default:
		}
		close(leave)
		<-done
		wantClosed(t, code)
	}
}

// TestContext: when ctx ends, so do the connection and the handlers, in whatever state they are.
func TestContext(t *testing.T) {
	for name, hijacks := range map[string]bool{"a handler": false, "a handler that hijacked": true} {
		ctx, cancel := context.WithCancel(t.Context())
		begun, returned := make(chan struct{}), false
		code, done := serve(ctx, func(w http.ResponseWriter, r *http.Request) {
			read := func() { <-r.Context().Done() }
			if hijacks {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
				}
				read = func() { _, _ = conn.Read(make([]byte, 1)) }
			}
			close(begun)
			read()
			returned = true
		})
		_, _ = io.WriteString(code, get)
		<-begun
		cancel()
		<-done
		if !returned {
			t.Errorf("%s is left", name)
		}
		wantClosed(t, code)
	}
	for range 100 { // before, while or after the server accepts the connection
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		code, done := serve(ctx, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
		<-done
		wantClosed(t, code)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, done := serve(ctx, func(http.ResponseWriter, *http.Request) { t.Error("a request") })
	<-done
	wantClosed(t, code)
}

// TestPanic: a handler that panics ends its connection, and nothing else.
func TestPanic(t *testing.T) {
	for _, cause := range []any{"a test", http.ErrAbortHandler} {
		code, done := serve(t.Context(), func(http.ResponseWriter, *http.Request) { panic(cause) })
		_, _ = io.WriteString(code, get)
		<-done
		wantClosed(t, code)
	}
}
