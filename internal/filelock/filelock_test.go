package filelock_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"mcp-code-sandbox/internal/filelock"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	first, second := open(), open()
	if err := filelock.Lock(first); err != nil {
		t.Fatal(err)
	}
	if err := filelock.TryLock(second); !errors.Is(err, filelock.ErrLocked) {
		t.Errorf("TryLock of a locked file: %v, want ErrLocked", err)
	}
	if err := filelock.Unlock(first); err != nil {
		t.Fatal(err)
	}
	if err := filelock.TryLock(second); err != nil {
		t.Errorf("TryLock after Unlock: %v", err)
	}
	_ = second.Close()
	if err := filelock.TryLock(first); err != nil {
		t.Errorf("TryLock after the holder closed its file: %v", err)
	}
}
