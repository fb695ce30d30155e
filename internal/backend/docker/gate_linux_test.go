package docker_test

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// gate is a proxy between a backend and the engine. It can make the engine hang, go away and come
// back.
type gate struct {
	Host string

	engine string
	path   string

	mu    sync.Mutex
	open  *sync.Cond
	hung  bool
	ln    net.Listener
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func newGate(t *testing.T, host string) *gate {
	t.Helper()
	engine, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		sandboxtest.Skip(t, "the engine has no socket to stand before")
	}
	g := &gate{engine: engine, path: filepath.Join(t.TempDir(), "s"), conns: map[net.Conn]struct{}{}}
	g.open = sync.NewCond(&g.mu)
	g.Host = "unix://" + g.path
	g.Back(t)
	t.Cleanup(func() {
		g.Hang(false)
		g.Away()
	})
	return g
}

// Hang makes the engine hang: data in both directions waits.
func (g *gate) Hang(yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hung = yes
	g.open.Broadcast()
}

// Away closes every connection and accepts no more.
func (g *gate) Away() {
	g.mu.Lock()
	if g.ln != nil {
		_ = g.ln.Close()
		g.ln = nil
	}
	for c := range g.conns {
		_ = c.Close()
	}
	g.open.Broadcast()
	g.mu.Unlock()
	g.wg.Wait()
}

// Back accepts connections again.
func (g *gate) Back(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("unix", g.path)
	if err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.ln = ln
	g.mu.Unlock()
	g.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.carry(c.(*net.UnixConn)) })
		}
	})
}

func (g *gate) carry(near *net.UnixConn) {
	c, err := net.Dial("unix", g.engine)
	if err != nil {
		_ = near.Close()
		return
	}
	far := c.(*net.UnixConn)
	g.mu.Lock()
	away := g.ln == nil
	g.conns[near], g.conns[far] = struct{}{}, struct{}{}
	g.mu.Unlock()
	if away {
		_, _ = near.Close(), far.Close()
	}
	var both sync.WaitGroup
	for _, p := range [][2]*net.UnixConn{{near, far}, {far, near}} {
		both.Go(func() {
			_, _ = io.Copy(struct{ io.Writer }{passer{g, p[1]}}, struct{ io.Reader }{p[0]})
			_ = p[1].CloseWrite()
		})
	}
	both.Wait()
	_, _ = near.Close(), far.Close()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, near)
	delete(g.conns, far)
}

// passer writes while the gate does not hang.
type passer struct {
	g *gate
	w io.Writer
}

func (p passer) Write(b []byte) (int, error) {
	p.g.mu.Lock()
	for p.g.hung && p.g.ln != nil {
		p.g.open.Wait()
	}
	p.g.mu.Unlock()
	return p.w.Write(b)
}
