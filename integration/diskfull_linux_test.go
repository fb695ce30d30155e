package integration

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFullDisk checks that runs and uploads on a full data disk name the disk and who can help,
// instead of blaming /tmp or the server.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "only root can mount a small disk")
	}
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=80m"); err != nil {
		skip(t, "cannot mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(runners, filepath.Join(root, "runners")); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "SANDBOX_ROOT="+root, "SANDBOX_TMP_BYTES=2MB")
	if r := s.run(t, "full", "python", "print(1)"); !r.Success {
		t.Fatalf("%+v", r)
	}
	fill(t, filepath.Join(root, "ballast"))

	const want = "The disk of the server, which holds /data, is full. The operator of the server must free space"
	r := s.run(t, "full", "python", "open('/data/x', 'wb').write(b'x' * (1 << 20))")
	if r.Success || !strings.Contains(r.Hint, want) || strings.Contains(r.Hint, "/tmp") {
		t.Errorf("a run: %+v", r)
	}
	up := s.call(t, "upload_file", map[string]any{"conversationId": "full", "filename": "a.txt", "content": strings.Repeat("A", 1<<20)})
	if up.Error != nil || !up.IsError || !strings.Contains(up.Content[0].Text, want) {
		t.Errorf("an upload: %+v", up)
	}

	if err := os.Remove(filepath.Join(root, "ballast")); err != nil {
		t.Fatal(err)
	}
	r = s.run(t, "full", "python", "open('/tmp/x', 'wb').write(b'x' * (3 << 20))")
	if r.Success || !strings.Contains(r.Hint, "/tmp holds at most 2 MB") {
		t.Errorf("a full /tmp: %+v", r)
	}
}

// fill writes a file until its file system is full.
func fill(t *testing.T, name string) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err = io.Copy(f, neverending{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
}

type neverending struct{}

func (neverending) Read(p []byte) (int, error) { return len(p), nil }
