package integration

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// ordinaryUser is a uid without an account and without rights.
const ordinaryUser = 12345

// ordinaryRoot makes a directory that belongs to an ordinary user, and the attributes that start a
// program as that user. t.TempDir belongs to root.
func ordinaryRoot(t *testing.T) (string, *syscall.SysProcAttr) {
	t.Helper()
	root, err := os.MkdirTemp("", "integration-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	attr := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser, Groups: []uint32{}}
		if err := os.Chown(root, ordinaryUser, ordinaryUser); err != nil {
			t.Fatal(err)
		}
	}
	return root, attr
}

// TestOrdinaryUser follows a server that does not run as root. It uses the interpreters that such a
// user can reach, which may have no libraries.
func TestOrdinaryUser(t *testing.T) {
	root, attr := ordinaryRoot(t)
	home := filepath.Join(root, "home")
	start := func() *server {
		return serveWith(t, func(cmd *exec.Cmd) { cmd.SysProcAttr, cmd.Dir = attr, root },
			"SANDBOX_ROOT="+filepath.Join(root, "data"), "HOME="+home, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
	}
	s := start()

	for language, code := range map[string]string{
		"python": `
import csv
with open("/data/table.csv", "w") as f:
    csv.writer(f, lineterminator="\n").writerows([["a", "b"], [1, 3], [2, 4]])
print("saved")
`,
		"shell": `printf 'a,b\n1,3\n2,4\n' > table.csv; echo saved`,
	} {
		r := s.run(t, "story-"+language, language, code)
		if !r.Success || r.Output != "saved\n" || len(r.Files) != 1 {
			t.Fatalf("%s: %+v", language, r)
		}
		if status, body := s.fetch(t, http.MethodGet, r.Files[0].URL, nil); status != http.StatusOK || string(body) != "a,b\n1,3\n2,4\n" {
			t.Errorf("download of what %s made: %d %q", language, status, body)
		}
	}
	if r := s.run(t, "story-python", "shell", "cat table.csv; rm table.csv; id -u; cat /etc/shadow"); r.Output != "a,b\n1,3\n2,4\n1000\n\ncat: /etc/shadow: No such file or directory\n" {
		t.Errorf("another runner of the session: %+v", r)
	}
	if r := s.run(t, "another", "shell", "ls -A /data"); r.Output != "" || len(r.Files) != 0 {
		t.Errorf("another session sees %+v", r)
	}

	s = killDuringRun(t, s, start)
	if r := s.run(t, "story-shell", "shell", "cat table.csv"); r.Output != "a,b\n1,3\n2,4\n" {
		t.Errorf("the session's next run: %+v", r)
	}
}

// killDuringRun kills a server, of which no process and no mount may be left, and starts the next
// one, which must remove the rest.
func killDuringRun(t *testing.T, s *server, start func() *server) *server {
	t.Helper()
	marker := newMarker()
	answer := s.begin(t, "life", marker, sleeper(marker))
	family := descendants(t, s.cmd.Process.Pid)
	wantFamily(t, family, "bwrap", "sleep")
	dead := instancesOn(t, s.Root)
	s.kill(t)
	<-answer
	eventually(t, 10*time.Second, "the killed server's processes and mounts to end", func() bool {
		return len(alive(family)) == 0 && len(mountedFrom(s.Root)) == 0
	})
	next := start()
	eventually(t, 20*time.Second, "the dead instance's traces to be removed", func() bool {
		now := instancesOn(t, next.Root)
		return len(now) == 1 && now[0] != dead[0]
	})
	return next
}
