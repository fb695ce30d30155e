//go:build !linux

package closednet

import (
	"context"
	"log/slog"
)

// addressEvents never sends: Follow looks every now and then.
func addressEvents(context.Context, *slog.Logger) <-chan struct{} { return nil }
