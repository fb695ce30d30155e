package main

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"mcp-code-sandbox/internal/agentbin"
	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/backend/wrapper"
	"mcp-code-sandbox/internal/sandbox"
)

// openJail opens the jail.
func openJail(_ context.Context, c backendConfig) (opened, error) {
	agent, err := agentbin.Binary(runtime.GOARCH)
	if err != nil {
		return opened{}, &sandbox.Error{Op: "unpack the agent", Err: err, Fix: "make build"}
	}
	b, err := jail.New(jail.Config{
		Dir: c.instance.Dir(), Instance: c.instance.ID(), AgentBinary: agent, Closed: c.closed,
		UserBus: c.settings.UserBus, NoSharedZygotes: c.settings.SharedZygote == "off", Logger: c.log,
	})
	if err != nil {
		return opened{}, err
	}
	return opened{driver: b, owner: b.WorkspaceOwner()}, nil
}

// newWrappers opens the backend of environments that isolate themselves. It confines them in the
// jail's cgroups where there are any.
func newWrappers(s *settings, d driver, log *slog.Logger) wrappers {
	cfg := wrapper.Config{ProjectDir: s.ProjectDir, ProjectMount: s.ProjectMount, Logger: log}
	if j, ok := d.(*jail.Backend); ok {
		cfg.NewGroup = func(id string, l sandbox.Limits) (wrapper.Group, error) {
			g, err := j.NewGroup(id, l)
			if g == nil || err != nil {
				return nil, err // not a nil pointer in an interface
			}
			return g, nil
		}
	}
	return wrapper.New(cfg)
}

// withholdDescriptors keeps the files that this process has inherited from the processes that it
// starts, of which some face hostile bytes.
func withholdDescriptors() {
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
