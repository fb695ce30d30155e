package instance_test

import (
	"os"
	"path/filepath"
	"testing"

	"mcp-code-sandbox/internal/instance"
)

func TestAlive(t *testing.T) {
	root := t.TempDir()
	if instance.Alive(root, "0123") {
		t.Error("an instance on a root that never had one")
	}
	c := start(t, root)
	own, err := instance.Acquire(root)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{c.id: true, own.ID(): true, "": false, "abc": false, "../instances/" + c.id: false, ".": false} {
		if got := instance.Alive(root, id); got != want {
			t.Errorf("%q: %t, want %t", id, got, want)
		}
	}
	// In doubt it is alive: here the lock cannot be opened.
	if err := os.MkdirAll(filepath.Join(root, "instances", "def", "lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if !instance.Alive(root, "def") {
		t.Error("what cannot be told is taken for dead")
	}
	if err := os.RemoveAll(filepath.Join(root, "instances", "def")); err != nil {
		t.Fatal(err)
	}
	c.kill()
	if instance.Alive(root, c.id) {
		t.Error("alive after kill -9")
	}
	dead, err := instance.Dead(root)
	if err != nil || len(dead) != 1 {
		t.Fatalf("looking for life must not hide the dead: %v, %v", dead, err)
	}
	for _, d := range append(dead, own) {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if instance.Alive(root, d.ID()) {
			t.Error("alive after Close")
		}
	}
}
