package session_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
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
