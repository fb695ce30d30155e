package runinit

import (
	"context"
	"errors"
	"os"
	"syscall"

	"mcp-code-sandbox/internal/wire"
)

// maxLeftover limits what is read from a pipe after its run has ended. A pipe holds at most this
// much; more can only come from a process of another run that got the descriptor.
const maxLeftover = 1 << 20

// Pump sends a pipe's output to the stream until its end or, once the read deadline has passed,
// until it is empty.
func Pump(s *wire.Stream, t wire.Type, r *os.File) {
	buf := make([]byte, wire.MaxData)
	send := func(p []byte) bool {
		return s.Send(context.Background(), wire.Frame{Type: t, Data: p}) == nil
	}
	for {
		n, err := r.Read(buf)
		if n > 0 && !send(buf[:n]) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			Drain(r, buf, send)
			return
		}
		if err != nil {
			return
		}
	}
}

// ForwardSignals calls kill or interrupt when the server asks for it, until the stream ends.
func ForwardSignals(s *wire.Stream, kill, interrupt func()) {
	for {
		f, err := s.Recv(context.Background())
		switch {
		case err != nil:
			return
		case f.Type == wire.TypeKill:
			kill()
		case f.Type == wire.TypeInterrupt:
			interrupt()
		}
	}
}

// Drain reads what is in a pipe, without waiting for more, until f returns false.
func Drain(r *os.File, buf []byte, f func([]byte) bool) {
	raw, err := r.SyscallConn()
	if err != nil {
		return
	}
	for left := maxLeftover; left > 0; {
		n := 0
		if err := raw.Control(func(fd uintptr) { n, _ = syscall.Read(int(fd), buf) }); err != nil || n <= 0 || !f(buf[:n]) {
			return
		}
		left -= n
	}
}
