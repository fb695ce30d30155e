package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPool checks that a session with a pooled sandbox cannot notice it, except by the clock.
func TestPool(t *testing.T) {
	if onDocker() {
		t.Skip("there is no pool on docker unless it is asked for; backend/docker tests it")
	}
	t.Run("root", func(t *testing.T) {
		if os.Geteuid() != 0 {
			skip(t, "needs root: only root can attach a workspace")
		}
		s := serveHostile(t, "SANDBOX_LOG_LEVEL=DEBUG")
		defer s.sweep(t)
		s.awaitReady(t, 2) // a shell, which has been asked for, and Python
		testPool(t, s)
		// The session's sandbox has idled out; the next pooled one has its files.
		s.settle(t)
		s.awaitReady(t, 3) // of each, two at most
		if r := s.run(t, "pool-new", "python", "print(open('mine').read())"); r.Output != "pool-new\n" || !s.wasReady("pool-new") {
			t.Errorf("a session that had idled out: %+v, ready: %v", r, s.wasReady("pool-new"))
		}
	})
	t.Run("ordinary user", func(t *testing.T) {
		root, attr := ordinaryRoot(t)
		s := serveWith(t, func(cmd *exec.Cmd) { cmd.SysProcAttr, cmd.Dir = attr, root }, "SANDBOX_ROOT="+filepath.Join(root, "data"),
			"HOME="+root, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "SANDBOX_LOG_LEVEL=DEBUG")
		defer func() {
			s.stop(t)
			s.wantNoResidue(t)
		}()
		s.awaitReady(t, 1)
		testPool(t, s)
	})
}

func testPool(t *testing.T, s *server) {
	r := s.run(t, "pool-new", "python", "import os; print(os.getcwd(), os.listdir()); open('mine', 'w').write('pool-new')")
	if r.Output != "/data []\n" || len(r.Files) != 1 {
		t.Fatalf("%+v", r)
	}
	if !s.wasReady("pool-new") {
		t.Error("a sandbox was started for a new session though one was ready")
	}
	if status, body := s.fetch(t, http.MethodGet, r.Files[0].URL, nil); status != http.StatusOK || string(body) != "pool-new" {
		t.Errorf("download: %d %q", status, body)
	}
	if r := s.run(t, "pool-new", "python", "print(open('/workspace/mine').read(), open('/mnt/data/mine').read())"); r.Output != "pool-new pool-new\n" {
		t.Errorf("%+v", r)
	}
	if r := s.run(t, "pool-other", "python", "import os; print(os.listdir())"); r.Output != "[]\n" {
		t.Errorf("another session sees %+v", r)
	}
	if r := s.run(t, "pool-new", "shell", "cat mine"); r.Output != "pool-new" {
		t.Errorf("another runner of the session: %+v", r)
	}
}

// awaitReady waits until that many sandboxes are ready.
func (s *server) awaitReady(t *testing.T, n float64) {
	t.Helper()
	eventually(t, time.Minute, "sandboxes to be ready", func() bool { return s.metric(t, "sandbox_ready_sandboxes") >= n })
}

// wasReady reports whether the session's last sandbox was pooled, according to the server's log.
func (s *server) wasReady(session string) bool {
	all := regexp.MustCompile(`sandbox started .*session_id=`+session+` sandbox=(\S+)`).FindAllStringSubmatch(s.log.String(), -1)
	return len(all) > 0 && strings.HasPrefix(all[len(all)-1][1], "pool-")
}

// TestKilledPool checks that the pooled sandboxes of a killed server leave only what the next start
// removes.
func TestKilledPool(t *testing.T) {
	if onDocker() {
		t.Skip("there is no pool on docker unless it is asked for")
	}
	s := serve(t)
	for i := range 4 {
		if r := s.run(t, fmt.Sprint("full-", i), "python", "print(1)"); r.Output != "1\n" {
			t.Fatalf("%+v", r)
		}
	}
	s.awaitReady(t, 2)
	family := descendants(t, s.cmd.Process.Pid)
	wantFamily(t, family, "bwrap")
	ids := instancesOn(t, s.Root)
	t.Cleanup(func() {
		for _, p := range alive(family) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	})
	s.kill(t)
	// A process that imports libraries at low priority ends late on a busy machine.
	eventually(t, time.Minute, "the killed server's processes and mounts to end", func() bool {
		return len(alive(family)) == 0 && len(mountedFrom(s.Root)) == 0
	})
	again := serve(t, "SANDBOX_ROOT="+s.Root)
	eventually(t, 10*time.Second, "the dead instance's traces to be removed", func() bool {
		return !slices.Contains(instancesOn(t, s.Root), ids[0]) && len(cgroupsOf(ids[0])) == 0
	})
	// The name of a killed server stays on its sessions until somebody uses them.
	for i := range 4 {
		if r := again.run(t, fmt.Sprint("full-", i), "shell", "echo 2"); r.Output != "2\n" {
			t.Errorf("%+v", r)
		}
	}
	again.ids = instancesOn(t, s.Root)
	again.stop(t)
	again.wantNoResidue(t)
}
