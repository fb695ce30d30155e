//go:build !linux

package main

import (
	"context"
	"errors"

	"mcp-code-sandbox/internal/window"
)

// Windows share a server on Linux only.

func serveWindow(context.Context, *invocation) error { return window.ErrUnavailable }

func serveShared(context.Context, *invocation) error { return window.ErrUnavailable }

func isSessionLeader() bool { return false }

func stopShared(context.Context, *invocation) error {
	return errors.New("windows share no server on this system")
}
