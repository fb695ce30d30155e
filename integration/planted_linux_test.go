package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestDiskQuota checks that code that fills the workspace is stopped and can clean up.
func TestDiskQuota(t *testing.T) {
	s := serveHostile(t, "SANDBOX_WORKSPACE_BYTES=20MB", "SANDBOX_WORKSPACE_FILES=1000", "SANDBOX_EXEC_TIMEOUT_S=30")
	defer s.sweep(t)
	for _, tt := range []struct{ name, code string }{
		{"one file", `cat /dev/zero > big`},
		{"one file, with the error caught", `python3 -c 'f = open("big", "wb")
while True: f.write(bytes(1 << 20))'; exit 1`},
		{"many files", `i=0; while :; do head -c 1M /dev/zero > f$i; i=$((i+1)); sleep 0.01; done`},
		{"10 000 empty files", `for i in $(seq 10000); do : > f$i; done; sleep 20`},
		{"directories", `for i in $(seq 10000); do mkdir -p d$((i%10))/$i/a; done; sleep 20`},
		{"a deep tree", `while mkdir d && cd d; do :; done; sleep 20`},
		{"links", `: > f; for i in $(seq 10000); do ln f l$i; done; sleep 20`},
		{"a file that is deleted but open", `exec 3> gone; rm gone; cat /dev/zero >&3`},
		{"a directory that nobody may read", `mkdir d; chmod 300 d; chmod 300 .; for i in $(seq 3000); do : > d/f$i; done; sleep 20`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := s.run(t, "disk", "shell", tt.code)
			t.Logf("exit code %d, cause %q, hint %q: %.200q", r.ExitCode, r.Cause, r.Hint, r.Output)
			if r.Success {
				t.Errorf("it succeeded: %.300v", r)
			}
			if r.Cause != "disk_quota" || !strings.Contains(r.Hint, "quota") {
				t.Errorf("cause %q, hint %q", r.Cause, r.Hint)
			}
			if !strings.Contains(tt.name, "deleted") {
				// The workspace is full for everybody, and the error says so.
				got := s.answer(t, "upload_file", map[string]any{"conversationId": "disk", "filename": "more", "content": "aGk="})
				if !strings.HasPrefix(got, "quota_exceeded: ") {
					t.Errorf("an upload into a full workspace: %s", got)
				}
			}
			r = s.run(t, "disk", "shell", `chmod 700 /data /data/d 2>/dev/null; find . -mindepth 1 -delete; ls -A | wc -l`)
			if r.Output != "0\n" {
				t.Errorf("cleaning up: %+v", r)
			}
			if r := s.run(t, "disk", "shell", `echo fine > f; cat f; rm f`); !r.Success || r.Output != "fine\n" {
				t.Errorf("the next run: %+v", r)
			}
		})
	}
	// A sparse file takes no room, but counts with its size for the largest file.
	if r := s.run(t, "holes", "shell", `truncate -s 10M small && truncate -s 100G large`); r.Success || r.Cause != "disk_quota" {
		t.Errorf("a file of 100 GB: %+v", r)
	}
	// Many small files within the quota are fine.
	s2 := serve(t)
	r := s2.run(t, "many", "shell", `mkdir d; for i in $(seq 10000); do : > d/f$i; done; echo done`)
	if !r.Success || r.Output != "done\n" || len(r.Files) != 200 || !r.FilesTruncated {
		t.Errorf("10 000 files: %t %q, %d files, truncated %t", r.Success, r.Output, len(r.Files), r.FilesTruncated)
	}
}

// workspaceOf finds a session's directory on the host.
func (s *server) workspaceOf(t *testing.T, id string) string {
	t.Helper()
	metas, _ := filepath.Glob(filepath.Join(s.Root, "*", "meta.json"))
	for _, m := range metas {
		var meta struct {
			ID string `json:"id"`
		}
		b, err := os.ReadFile(m)
		if err != nil {
			t.Fatal(err)
		}
		if json.Unmarshal(b, &meta) == nil && meta.ID == id {
			return filepath.Join(filepath.Dir(m), "files")
		}
	}
	t.Fatalf("session %s has no directory", id)
	return ""
}

// TestPlanted checks that files that a program planted mislead no download, listing or upload.
func TestPlanted(t *testing.T) {
	const secret = "the-file-secret"
	s := serveHostile(t, "FILE_SECRET="+secret)
	defer s.sweep(t)
	// A secret of the host that the server can read, and another session's file.
	hostile := filepath.Join(t.TempDir(), "host-secret")
	if err := os.WriteFile(hostile, []byte("HOST SECRET"), 0o644); err != nil {
		t.Fatal(err)
	}
	s.run(t, "victim", "shell", `echo VICTIM > secret.txt`)
	victim := s.workspaceOf(t, "victim")
	plant := fmt.Sprintf(`
import os, socket
os.symlink("/etc/passwd", "passwd")
os.symlink(%q, "host")
os.symlink(%q + "/secret.txt", "victim")
os.symlink("../../" + os.path.basename(os.path.dirname(%q)) + "/files/secret.txt", "relative")
os.symlink("../meta.json", "meta")
os.symlink("real.txt", "inside")
os.symlink("loop", "loop")
os.symlink("/proc/self/environ", "environ")
os.symlink("/proc/self/fd/0", "fd")
os.symlink(%q, "dirlink")
os.symlink("/", "root")
os.symlink("..", "up")
os.symlink("absent", "dangling")
open("real.txt", "w").write("REAL")
os.link("real.txt", "hard.txt")
os.mkfifo("fifo")
s = socket.socket(socket.AF_UNIX); s.bind("sock")
os.mkdir("dir"); os.mkdir("dir/sub"); open("dir/sub/f", "w").write("F")
for kind, mode in (("char", 0o020666), ("block", 0o060666)):
    try: os.mknod(kind, mode, os.makedev(1, 3)); print("made a", kind, "device")
    except OSError: pass
try: os.link("/etc/hostname", "hostlink"); print("linked a file of the system")
except OSError: pass
open("bits", "w").write("x"); os.chmod("bits", 0o6777)
open("hidden", "w").write("H"); os.chmod("hidden", 0)
`, hostile, victim, victim, victim)
	r := s.run(t, "planter", "python", plant)
	if !r.Success || r.Output != "" {
		t.Fatalf("%+v", r)
	}
	files := s.workspaceOf(t, "planter")
	// The sandbox cannot create devices; if it ever could, the server would see this.
	device := syscall.Mknod(filepath.Join(files, "device"), syscall.S_IFCHR|0o666, 1<<8|5) == nil // /dev/zero

	listed := func() string {
		var names []string
		for _, f := range s.run(t, "planter", "shell", "true").Files {
			names = append(names, f.Name)
		}
		return strings.Join(names, " ")
	}
	for _, name := range []string{"real.txt", "hard.txt", "dir/sub/f", "bits"} {
		if !strings.Contains(listed(), name) {
			t.Errorf("%s is not listed: %s", name, listed())
		}
	}
	planted := []string{"passwd", "host", "victim", "relative", "meta", "inside", "loop", "environ", "fd", "fifo", "sock", "dangling",
		"dirlink", "root", "up", "dir", "dirlink/secret.txt", "root/etc/passwd", "up/meta.json", "real.txt/x", "fifo/x"}
	if device {
		planted = append(planted, "device")
	}
	for _, name := range planted {
		t.Run(name, func(t *testing.T) {
			if l := " " + listed() + " "; strings.Contains(l, " "+name+" ") {
				t.Errorf("it is listed: %s", l)
			}
			began := time.Now()
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				status, body := s.fetch(t, method, s.URL+"/files/planter/"+name+"?sig="+sign(secret, "planter", name), nil)
				if status != http.StatusNotFound {
					t.Errorf("%s: %d %.100q", method, status, body)
				}
			}
			args := map[string]any{"conversationId": "planter", "filename": name, "content": "bmV3"}
			got := s.answer(t, "upload_file", args)
			if !strings.HasPrefix(got, "file_exists: ") && !(strings.Contains(name, "/") && strings.HasPrefix(got, "invalid_path: ")) {
				t.Errorf("an upload: %s", got)
			}
			args["overwrite"] = true
			got = s.answer(t, "upload_file", args)
			switch {
			case strings.Contains(name, "/"):
				if !strings.HasPrefix(got, "invalid_path: ") {
					t.Errorf("an upload below it: %s", got)
				}
			case name == "dir":
				if !strings.HasPrefix(got, "file_exists: ") {
					t.Errorf("an upload over a directory: %s", got)
				}
			default: // it replaces the thing, never what the thing points to
				if r := s.run(t, "planter", "shell", "stat -c %F "+name+"; cat "+name); r.Output != "regular file\nnew" {
					t.Errorf("after an upload over it (%s): %q", got, r.Output)
				}
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	for path, want := range map[string]string{hostile: "HOST SECRET", filepath.Join(victim, "secret.txt"): "VICTIM\n", filepath.Join(files, "real.txt"): "REAL"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s holds %q, %v", path, b, err)
		}
	}
}

// TestSymlinkRace swaps a file for links as fast as possible while the server downloads and
// uploads. No foreign byte is ever read or written.
func TestSymlinkRace(t *testing.T) {
	const secret = "the-file-secret"
	s := serveHostile(t, "FILE_SECRET="+secret, "SANDBOX_EXEC_TIMEOUT_S=60")
	defer s.sweep(t)
	s.run(t, "victim", "shell", `echo VICTIM > f`)
	victim := s.workspaceOf(t, "victim")
	s.run(t, "racer", "shell", "true")
	code := fmt.Sprintf(`
import os
def attempt(f, *a):
    try: f(*a)
    except OSError: pass
os.mkdir("own"); open("own/f", "w").write("OWN")
targets = ["/etc/passwd", %q, "../" * 2 + %q, "/proc/self/environ"]
print("racing", flush=True)
i = 0
while not os.path.exists("stop"):
    i += 1
    open("new", "w").write("OWN"); attempt(os.rename, "new", "f")
    attempt(os.symlink, targets[i %% len(targets)], "link"); attempt(os.rename, "link", "f")
    # The same with the directory above it.
    attempt(os.symlink, %q, "dlink"); attempt(os.rename, "d", "d.old"); attempt(os.rename, "dlink", "d")
    attempt(os.unlink, "d"); attempt(os.rename, "d.old", "d"); attempt(os.rename, "own", "d")
    if i %% 7 == 0: attempt(os.mkfifo, "pipe"); attempt(os.rename, "pipe", "f")
print(i)
`, filepath.Join(victim, "f"), strings.Join(strings.Split(victim, "/")[len(strings.Split(victim, "/"))-2:], "/")+"/f", victim)
	done := make(chan runResult, 1)
	var wg sync.WaitGroup
	wg.Go(func() { done <- s.run(t, "racer", "python", code) })
	files := s.workspaceOf(t, "racer")
	eventually(t, 10*time.Second, "the race to begin", func() bool { _, err := os.Lstat(filepath.Join(files, "f")); return err == nil })

	seen := map[int]int{}
	for i := range 300 {
		for _, name := range []string{"f", "d/f"} {
			status, body := s.fetch(t, http.MethodGet, s.URL+"/files/racer/"+name+"?sig="+sign(secret, "racer", name), nil)
			seen[status]++
			switch {
			case status == http.StatusOK && len(body) <= 3 && strings.HasPrefix("OWN", string(body)):
			case status == http.StatusNotFound:
			default:
				t.Fatalf("download %d of %s: %d %q", i, name, status, body)
			}
		}
		if i%10 == 0 {
			args := map[string]any{"conversationId": "racer", "filename": "d/f", "content": "T1dO", "overwrite": true} // OWN
			if got := s.answer(t, "upload_file", args); !strings.HasPrefix(got, "result: ") && !strings.HasPrefix(got, "invalid_path: ") {
				t.Logf("upload %d: %s", i, got)
			}
		}
	}
	s.answer(t, "upload_file", map[string]any{"conversationId": "racer", "filename": "stop", "content": ""})
	wg.Wait()
	if r := <-done; !strings.HasPrefix(r.Output, "racing\n") || !r.Success {
		t.Errorf("the racer: %+v", r)
	}
	if seen[http.StatusOK] == 0 || seen[http.StatusNotFound] == 0 {
		t.Errorf("there was no race: %v", seen)
	}
	if b, err := os.ReadFile(filepath.Join(victim, "f")); err != nil || string(b) != "VICTIM\n" {
		t.Errorf("the other session's file holds %q, %v", b, err)
	}
	if entries, err := os.ReadDir(victim); err != nil || len(entries) != 1 {
		t.Errorf("the other session has %v, %v", entries, err)
	}
	t.Logf("statuses: %v", seen)
}

// TestHiddenFilesFillTheDisk checks that a run that hides data in deleted but open files is stopped
// before the file system is full.
func TestHiddenFilesFillTheDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "only root can mount a small file system for this test")
	}
	root := newRoot(t)
	if err := os.Remove(filepath.Join(root, "runners")); err != nil {
		t.Fatal(err)
	}
	const size = 400 << 20
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
		skip(t, "cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(runners, filepath.Join(root, "runners")); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "SANDBOX_ROOT="+root, "SANDBOX_WORKSPACE_BYTES=20MB", "SANDBOX_EXEC_TIMEOUT_S=30")
	r := s.run(t, "hoard", "python", `
import os, socket, time
a, b = socket.socketpair() # in a socket's queue not even a descriptor shows
for _ in range(1000):
    f = os.open("x", os.O_CREAT | os.O_WRONLY); os.unlink("x")
    for _ in range(19):
        os.write(f, bytes(1 << 20)); time.sleep(0.005)
    socket.send_fds(a, [b"x"], [f]); os.close(f)
`)
	if r.Cause != "disk_quota" || strings.Contains(r.Output, "No space left") {
		t.Errorf("%+v", r)
	}
	if r := s.run(t, "hoard", "shell", "df --output=used -B1M . | tail -1; echo fine > f"); !r.Success {
		t.Errorf("the next run: %+v", r)
	}
}
