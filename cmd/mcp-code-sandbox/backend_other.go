//go:build !linux

package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"

	"mcp-code-sandbox/internal/sandbox"
)

// openJail fails: the jail needs Linux.
func openJail(context.Context, backendConfig) (opened, error) {
	return opened{}, &sandbox.Error{
		Op: "choose a backend", Err: fmt.Errorf("the jail does not exist on %s", runtime.GOOS), Fix: "set SANDBOX_BACKEND to docker",
	}
}

// newWrappers returns a backend that refuses: environments that isolate themselves need Linux.
func newWrappers(*settings, driver, *slog.Logger) wrappers {
	return refusing{fmt.Errorf("environments that isolate themselves need Linux, not %s", runtime.GOOS)}
}

// withholdDescriptors does nothing: sandboxes are not processes of this machine.
func withholdDescriptors() {}
