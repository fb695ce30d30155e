package instance

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Alive reports whether the process of an instance on root is still there. One that another process is cleaning up after may
// seem alive for a moment more, and so does one of which nothing can be learnt: the living lose more by a mistake than the dead.
func Alive(root, id string) bool {
	if id == "" || strings.Trim(id, "0123456789abcdef") != "" {
		return false // no id of ours
	}
	parent := filepath.Join(root, directory)
	gate, err := openGate(parent)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer gate.Close()
	f, err := os.OpenFile(filepath.Join(parent, id, lockName), os.O_RDWR, 0o600)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return tryLock(f) != nil
}

// Dir is the directory of an instance on root.
func Dir(root, id string) string { return filepath.Join(root, directory, id) }

// List returns the ids of the instances on root, living and dead.
func List(root string) (ids []string, err error) {
	entries, err := os.ReadDir(filepath.Join(root, directory))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids, err
}
