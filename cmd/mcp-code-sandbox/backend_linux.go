package main

import (
	"log/slog"
	"runtime"

	"mcp-code-sandbox/internal/agentbin"
	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/backend/wrapper"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/workspace"
)

func newJail(s *settings, i *instance.Instance, closed *closednet.List, log *slog.Logger) (sandbox.Backend, workspace.Owner, func(), error) {
	agent, err := agentbin.Binary(runtime.GOARCH)
	if err != nil {
		return nil, workspace.Owner{}, nil, &sandbox.Error{Op: "unpack the agent", Err: err, Fix: "make build"}
	}
	b, err := jail.New(jail.Config{
		Dir: i.Dir(), Instance: i.ID(), AgentBinary: agent, Closed: closed, NoTemplates: s.SharedZygote == "off", Logger: log,
	})
	if err != nil {
		return nil, workspace.Owner{}, nil, err
	}
	uid, gid := jail.Owner()
	return b, workspace.Owner{UID: uid, GID: gid}, b.Close, nil
}

// withWrappers adds the environments that isolate themselves. Where the jail has control groups, they are in some, too.
func withWrappers(s *settings, b sandbox.Backend, log *slog.Logger) (sandbox.Backend, func()) {
	cfg := wrapper.Config{ProjectDir: s.ProjectDir, ProjectMount: s.ProjectMount, Logger: log}
	if j, ok := b.(*jail.Backend); ok {
		cfg.NewGroup = func(id string, l sandbox.Limits) (wrapper.Group, error) {
			g, err := j.NewGroup(id, l)
			if g == nil || err != nil {
				return nil, err // not a nil pointer in an interface
			}
			return g, nil
		}
	}
	w := wrapper.New(cfg)
	return routed{b, w}, w.Close
}
