package sandboxtest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testLifecycle: how a sandbox starts and ends.
func (s *suite) testLifecycle(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	t.Run("id", func(t *testing.T) {
		id := ID()
		if got := s.start(t, sandbox.Spec{ID: id}).ID(); got != id {
			t.Errorf("ID %q, want %q", got, id)
		}
	})
	t.Run("close", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		r := b.BeginUntil(t, "up\n", Shell("echo up; sleep 1000"))
		expired, stop := context.WithCancel(ctx)
		stop()
		if _, err := b.Wait(expired); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait on a living sandbox: %v", err)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := b.Close(ctx); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			wg.Go(func() {
				if exit, err := b.Wait(ctx); err != nil || exit.Cause != sandbox.CauseKilled {
					t.Errorf("Wait: %+v, %v", exit, err)
				}
			})
		}
		wg.Wait()
		if err := b.Close(ctx); err != nil {
			t.Errorf("Close again: %v", err)
		}
		if _, err := b.Sandbox.Conn().Read(make([]byte, 1)); err == nil {
			t.Error("Read after Close gave data")
		}
		if f, err := r.stream.Recv(ctx); err == nil || contextEnded(err) {
			t.Errorf("the run's stream after Close: %v, %v", f, err)
		}
	})
	t.Run("hang up", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		b.BeginUntil(t, "up\n", Shell("echo up; sleep 1000"))
		_ = b.Conn.Close() // the agent ends with its connection
		if exit, err := b.Wait(ctx); err != nil || exit.Cause != sandbox.CauseLost {
			t.Errorf("Wait: %+v, %v", exit, err)
		}
	})
	t.Run("protocol", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		if err := b.Conn.Ping(ctx); err != nil {
			t.Errorf("Ping: %v", err)
		}
		// Signals for runs that have ended, or end before they have begun.
		for range 20 {
			r := b.Begin(t, Shell("sleep 1000"))
			r.Send(t, wire.TypeInterrupt)
			r.Send(t, wire.TypeKill)
			if res := r.Kill(t); res.Exit.Code == 0 {
				t.Errorf("%+v", res.Exit)
			}
			r.Send(t, wire.TypeKill)
		}
		b.Alive(t)
	})
	t.Run("abandoned run", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		r := b.Begin(t, Shell("while :; do head -c 1M /dev/zero; done"))
		r.Send(t, wire.TypeKill)
		_ = r.stream.Close()
		b.Alive(t)
	})
	t.Run("missing workspace", func(t *testing.T) {
		_, err := s.Backend.Start(ctx, sandbox.Spec{ID: ID(), Image: s.Image, Workspace: t.TempDir() + "/missing"})
		if err == nil {
			t.Fatal("started without its workspace")
		}
	})
	t.Run("cancelled start", func(t *testing.T) {
		ws := Workspace(t, s.Owner)
		for i := range 24 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
			sb, err := s.Backend.Start(ctx, sandbox.Spec{ID: ID(), Image: s.Image, Workspace: ws})
			cancel()
			switch {
			case err == nil:
				if err := sb.Close(t.Context()); err != nil {
					t.Error(err)
				}
			case !contextEnded(err):
				t.Errorf("cancelled after %d ms: %v", i, err)
			}
		}
	})
	t.Run("many at once", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var wg sync.WaitGroup
		boxes := make([]*Sandbox, 6)
		for i := range boxes {
			ws := Workspace(t, s.Owner)
			wg.Go(func() {
				sb, err := s.Backend.Start(ctx, sandbox.Spec{ID: ID(), Image: s.Image, Workspace: ws})
				if err != nil {
					t.Error(err)
					return
				}
				boxes[i] = &Sandbox{Sandbox: sb, Conn: wire.NewConn(sb.Conn(), wire.ServerSide, nil), Workspace: ws}
			})
		}
		wg.Wait()
		for i, b := range boxes {
			if b == nil {
				continue
			}
			res := b.Run(t, Shell("ls -A /data; echo > /data/mine"))
			if strings.TrimSpace(string(res.Stdout)) != "" || res.Exit.Code != 0 {
				t.Errorf("sandbox %d: another's workspace: %+v %s", i, res.Exit, res.Stdout)
			}
			if err := b.Close(ctx); err != nil {
				t.Error(err)
			}
			_ = b.Conn.Close()
		}
	})
}
