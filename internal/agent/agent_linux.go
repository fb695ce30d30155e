// Package agent is process 1 of a sandbox. It speaks the wire protocol with the server, starts
// runs, keeps interpreters alive between cells, and forwards connections to the server's proxy.
//
// It knows no language: a run frame says which program to start on which code. No user process
// shares a descriptor or a capability with it.
//
// The backend chooses how runs are kept apart. [Main] holds capabilities in the sandbox's own user
// namespace and starts each run in new namespaces. [MainLandlock] holds no capabilities, as in a
// container. Package prestart has the two launchers, runinit is process 1 of a run, and confine has
// the kernel mechanisms.
package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// agent serves one connection to the server.
type agent struct {
	launcher prestart.Launcher
	conn     *wire.Conn
	threads  threads

	mu           sync.Mutex
	interpreters map[string]*interpreter // by name
}

func parseConfig(text string) (cfg Config, err error) {
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return Config{}, fmt.Errorf("parse configuration: %w", err)
	}
	return cfg, nil
}

func (cfg *Config) settings() prestart.Settings {
	return prestart.Settings{DataBytes: cfg.DataBytes, Processes: cfg.Processes, NoZygote: cfg.NoZygote}
}

// serve greets the server and serves it until it closes the connection.
func serve(cfg *Config, launcher prestart.Launcher, conn io.ReadWriteCloser, hello wire.Hello) error {
	a := &agent{launcher: launcher}
	var forward net.Listener
	if cfg.Forward {
		var err error
		if forward, err = net.Listen("tcp", sandbox.ForwardAddr); err != nil {
			return err
		}
	}
	if err := wire.SendHello(conn, hello); err != nil {
		return err
	}
	a.conn = wire.NewConn(conn, wire.AgentSide, a.run)
	if forward != nil {
		go a.forward(forward)
	}
	<-a.conn.Done()
	if err := a.conn.Err(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}

// forward carries each connection to sandbox.ForwardAddr as a dial stream.
func (a *agent) forward(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors or memory, until a run ends
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go a.carry(c.(*net.TCPConn))
	}
}

func (a *agent) carry(c *net.TCPConn) {
	defer c.Close()
	s, err := a.conn.Open(wire.Frame{Type: wire.TypeDial})
	if err != nil {
		return
	}
	defer s.Close()
	up := make(chan struct{})
	go func() {
		defer close(up)
		_, _ = io.Copy(struct{ io.Writer }{s}, c)
		_ = s.CloseWrite()
	}()
	_, _ = io.Copy(struct{ io.Writer }{c}, s)
	_ = c.CloseWrite()
	<-up
}
