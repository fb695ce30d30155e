package httpapi_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"mcp-code-sandbox/internal/httpapi"
)

// waitingUsers asks a slow database.
type waitingUsers struct{ endedUsers }

func (waitingUsers) Verify(ctx context.Context, _ string) (string, time.Time, error) {
	return "", time.Time{}, fmt.Errorf("%w: %w", httpapi.ErrUnchecked, ctx.Err())
}

// TestClientLeavesDuringTheCheck: a client that leaves while its login is checked is not an outage
// of the database.
func TestClientLeavesDuringTheCheck(t *testing.T) {
	var logged bytes.Buffer
	h := httpapi.New(config(func(c *httpapi.Config) {
		c.Users, c.Logger = waitingUsers{}, slog.New(slog.NewTextHandler(&logged, nil))
	}))
	ctx, leave := context.WithCancel(t.Context())
	leave()
	do(h, request("POST", "/mcp", "Authorization", "Bearer x").WithContext(ctx))
	if bytes.Contains(logged.Bytes(), []byte("cannot be checked")) {
		t.Errorf("logged: %s", &logged)
	}
}
