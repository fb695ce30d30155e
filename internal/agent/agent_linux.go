// Package agent is process 1 of a sandbox. It speaks the wire protocol with the server, starts
// runs, keeps interpreters alive between cells, and forwards connections to the server.
//
// It knows no language: a run frame says which program to start on which code. No user process
// shares a descriptor or a capability with it.
//
// The backend chooses how runs are kept apart. [Main] holds capabilities in the sandbox's own user
// namespace and starts each run in new namespaces. [MainLandlock] holds no capabilities, as in a
// container. Package prestart has the two launchers, runinit is process 1 of a run, forward carries
// connections, and confine has the kernel mechanisms.
package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"mcp-code-sandbox/internal/agent/forward"
	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// agent serves one connection to the server.
type agent struct {
	launcher prestart.Launcher
	conn     *wire.Conn
	forward  *forward.Forwarder // nil: nothing leads to the server
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
	if cfg.Forward {
		var err error
		if a.forward, err = forward.Listen(sandbox.ForwardAddr); err != nil {
			return err
		}
		if cfg.Names {
			if err := a.forward.ListenNames(sandbox.ResolverAddr); err != nil {
				fmt.Fprintln(os.Stderr, "the agent: programs cannot look up names:", err) // the backend keeps it
			}
		}
	}
	if err := wire.SendHello(conn, hello); err != nil {
		return err
	}
	a.conn = wire.NewConn(conn, wire.AgentSide, a.run)
	if a.forward != nil {
		a.forward.Serve(a.conn)
	}
	<-a.conn.Done()
	if err := a.conn.Err(); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}
