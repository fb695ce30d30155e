//go:build !linux

package main

import (
	"log/slog"

	"mcp-code-sandbox/internal/sandbox"
)

// backends is empty: the jail needs Linux.
func backends() []choice { return nil }

// withWrappers adds nothing: those need Linux, too.
func withWrappers(_ *settings, b sandbox.Backend, _ *slog.Logger) (sandbox.Backend, func()) {
	return b, func() {}
}
