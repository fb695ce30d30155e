package session_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
)

// blockingLog blocks a goroutine that logs a message containing text until release is closed.
type blockingLog struct {
	slog.Handler
	text    string
	once    *sync.Once
	reached chan struct{}
	release chan struct{}
}

func (b blockingLog) Enabled(context.Context, slog.Level) bool { return true }

func (b blockingLog) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, b.text) {
		b.once.Do(func() { close(b.reached) })
		<-b.release
	}
	return nil
}

// TestAdmitBesideDeletion: other callers open sessions while the files of one caller's closed
// session are being deleted, which can take long.
func TestAdmitBesideDeletion(t *testing.T) {
	log := blockingLog{slog.DiscardHandler, "deleting a closed session", &sync.Once{}, make(chan struct{}), make(chan struct{})}
	m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) {
		c.CallerSessions, c.ClosedRetention, c.Logger = 1, 1<<62, slog.New(log)
	})
	if err := store(t, m, annie, "closed", 1); err != nil {
		t.Fatal(err)
	}
	if err := m.CloseSession(t.Context(), annie, "closed"); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 2)
	open := func(c session.Caller) {
		s, err := m.Open(c, "new")
		if err == nil {
			s.Release()
		}
		opened <- err
	}
	go open(annie)
	<-log.reached
	if _, err := m.Open(annie, "second"); err == nil {
		t.Error("two sessions took the place of one")
	}
	go open(bobby)
	select {
	case err := <-opened:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * time.Second):
		t.Error("another caller waits for the deletion")
	}
	close(log.release)
	if err := <-opened; err != nil {
		t.Error(err)
	}
}
