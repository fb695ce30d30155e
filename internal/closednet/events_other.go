//go:build !linux

package closednet

import (
	"context"
	"log/slog"
)

// addressEvents never sends. Follow polls instead.
func addressEvents(context.Context, *slog.Logger) <-chan struct{} { return nil }
