//go:build !linux

package main

import (
	"fmt"
	"log/slog"
	"runtime"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/workspace"
)

// newJail fails: the jail needs Linux.
func newJail(*settings, *instance.Instance, *closednet.List, *slog.Logger) (sandbox.Backend, workspace.Owner, func(), error) {
	return nil, workspace.Owner{UID: -1, GID: -1}, nil, &sandbox.Error{
		Op: "choose a backend", Err: fmt.Errorf("the jail does not run on %s", runtime.GOOS), Fix: "set SANDBOX_BACKEND to docker",
	}
}

// withWrappers adds nothing: those need Linux, too.
func withWrappers(_ *settings, b sandbox.Backend, _ *slog.Logger) (sandbox.Backend, func()) {
	return b, func() {}
}
