package wire

import (
	"io"
	"net"
	"os"
	"syscall"
	"testing"
)

// BenchmarkRelay sends 100 MB from a server to a client: directly, and through the two ends of a
// wire as between a host and code in a sandbox.
func BenchmarkRelay(b *testing.B) {
	const size = 100 << 20
	upstream, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer upstream.Close()
	go func() {
		for {
			c, err := upstream.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				chunk := make([]byte, 256<<10)
				for sent := 0; sent < size; sent += len(chunk) {
					if _, err := c.Write(chunk); err != nil {
						return
					}
				}
			}()
		}
	}()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		b.Fatal(err)
	}
	server := NewConn(os.NewFile(uintptr(fds[0]), "agent"), ServerSide, func(s *Stream, _ Frame) {
		defer s.Close()
		c, err := net.Dial("tcp", upstream.Addr().String())
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(s, c)
	})
	defer server.Close()
	agent := NewConn(os.NewFile(uintptr(fds[1]), "server"), AgentSide, nil)
	defer agent.Close()
	inside, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer inside.Close()
	go func() {
		for {
			c, err := inside.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				s, err := agent.Open(Frame{Type: TypeDial})
				if err != nil {
					return
				}
				defer s.Close()
				_, _ = io.Copy(struct{ io.Writer }{c}, s)
			}()
		}
	}()
	for name, addr := range map[string]string{"direct": upstream.Addr().String(), "wire": inside.Addr().String()} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			buf := make([]byte, 256<<10)
			for b.Loop() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, buf)
				if n != size || err != nil {
					b.Fatal(n, err)
				}
				c.Close()
			}
		})
	}
}
