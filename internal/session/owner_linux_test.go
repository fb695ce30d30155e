package session_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/internal/workspace"
)

// TestForeignFiles: a server that may not use the ids that a workspace's files belong to, as after
// it has left its outer namespace, says what to do.
func TestForeignFiles(t *testing.T) {
	m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) {
		c.Owner = workspace.Owner{UID: os.Geteuid() + 1, GID: os.Getegid() + 1}
	})
	var err error
	proc.OnNewThread(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err = unix.Capset(&header, &none[0]); err == nil { // of this thread only
			_, err = m.Open(session.Local, "s")
		}
	})
	failure, ok := errors.AsType[*sandbox.Error](err)
	if !ok || failure.Fix == "" || !errors.Is(err, fs.ErrPermission) || !errors.Is(err, session.ErrForeign) {
		t.Errorf("%v", err)
	}
}

// TestGivenFiles: a run that starts a sandbox, which gets the files, reports its own changes only,
// also if the session remembers an earlier owner.
func TestGivenFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "only root can give files away")
	}
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		for _, name := range strings.Fields(string(p.Code)) {
			if err := os.WriteFile(filepath.Join(p.Spec.Workspace, name), p.Code, 0o600); err != nil {
				t.Error(err)
			}
		}
		return wire.Exit{}
	}}
	uid := 70000
	b.OnStart = func(ctx context.Context, spec sandbox.Spec) error {
		uid++
		ws, err := workspace.Open(spec.Workspace, workspace.Owner{UID: uid, GID: uid})
		if err != nil {
			return err
		}
		defer ws.Close()
		return ws.Adopt(ctx)
	}
	m := newManager(t, b, func(c *session.Config) {
		c.Owner = workspace.Owner{First: 70000, End: 80000}
		c.Quota = workspace.Usage{Bytes: 1 << 30}
	})
	put(t, m, "x", "sub/sales.csv", "1,2")
	put(t, m, "x", "old", "")
	for i, code := range []string{"", "old new", "old", "", ""} {
		s := open(t, m, session.Local, "x") // keeps what it remembers
		defer s.Release()
		if i%2 == 0 {
			if _, err := m.StopSession(t.Context(), s.Key()); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := changes(t, m, code), strings.Join(slices.Sorted(slices.Values(strings.Fields(code))), " "); got != want {
			t.Errorf("run %d of %q reports %q", i, code, got)
		}
	}
	if b.Started() != 3 {
		t.Errorf("%d sandboxes", b.Started())
	}
}

// TestUndeletable: a closed session that cannot be deleted, as one of ids that the server lacks, is
// in the log once, and is deleted when it can be.
func TestUndeletable(t *testing.T) {
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "only root can mount something")
	}
	synctest.Test(t, func(t *testing.T) {
		root := t.TempDir()
		var log bytes.Buffer
		m := newManager(t, &sessiontest.Backend{}, func(c *session.Config) {
			c.Root, c.ClosedRetention, c.CleanupInterval = root, time.Hour, time.Minute
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		put(t, m, "x", "dir/file", "")
		closeSession(t, m, "x")
		pattern := filepath.Join(root, "closed", "*", "*")
		busy, _ := filepath.Glob(filepath.Join(pattern, "files", "dir"))
		if len(busy) != 1 {
			t.Fatal(busy)
		}
		if err := unix.Mount("none", busy[0], "ramfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(busy[0], unix.MNT_DETACH)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := bytes.Count(log.Bytes(), []byte("cannot delete the files")); n != 1 {
			t.Errorf("%d messages:\n%s", n, log.String())
		}
		if err := unix.Unmount(busy[0], unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}
