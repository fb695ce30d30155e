package proc_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
)

func TestThreadIsOneThreadAndNotTheMainOne(t *testing.T) {
	thread := proc.NewThread()
	seen := map[int]bool{}
	for range 100 {
		if err := thread.Do(func() error { seen[unix.Gettid()] = true; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) != 1 || seen[os.Getpid()] {
		t.Errorf("jobs ran on threads %v, want one that is not %d", seen, os.Getpid())
	}
	failed := errors.New("failed")
	if err := thread.Do(func() error { return failed }); err != failed {
		t.Errorf("Do returned %v, want the job's error", err)
	}
	thread.Close()
	if err := thread.Do(func() error { return nil }); err != proc.ErrThreadClosed {
		t.Errorf("Do after Close returned %v, want ErrThreadClosed", err)
	}
}

func TestAwaitExitLeavesTheChildToItsParent(t *testing.T) {
	for name, await := range map[string]func(int){"pidfd": proc.AwaitExit, "waitid": proc.AwaitExitBlocking} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("cat")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if proc.HasExited(cmd.Process.Pid) {
				t.Error("HasExited of a living child")
			}
			_ = in.Close()
			await(cmd.Process.Pid)
			if !proc.HasExited(cmd.Process.Pid) {
				t.Error("the await returned before the child had exited")
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("the child cannot be reaped any more: %v", err)
			}
		})
	}
}

func TestFilesPassASocket(t *testing.T) {
	a, b, err := proc.SocketPair(unix.SOCK_SEQPACKET | unix.SOCK_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := proc.SendFiles(a, "x", w, r); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	files, err := proc.ReceiveFiles(b, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := files[0].Write([]byte("through")); err != nil {
		t.Error(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	if text, err := io.ReadAll(r); string(text) != "through" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if err := proc.SendFiles(a, "x", r); err != nil {
		t.Fatal(err)
	}
	if _, err := proc.ReceiveFiles(b, 2); err == nil {
		t.Error("one descriptor passed for two")
	}
	_ = a.Close()
	if _, err := proc.ReceiveFiles(b, 1); err != io.EOF {
		t.Errorf("after the end: %v, want EOF", err)
	}
}

func TestReadCounter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "memory.events")
	if err := os.WriteFile(path, []byte("oom 1\noom_kill 23\nbad x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{"oom": 1, "oom_kill": 23} {
		if n, ok := proc.ReadCounter(path, name); n != want || !ok {
			t.Errorf("%s: %d, %v; want %d", name, n, ok, want)
		}
	}
	for _, name := range []string{"kill", "bad", ""} {
		if _, ok := proc.ReadCounter(path, name); ok {
			t.Errorf("%q was found", name)
		}
	}
}
