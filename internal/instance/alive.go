package instance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Alive reports whether the process of an instance on root is still there. One that another process is cleaning up after may
// seem alive for a moment more.
func Alive(root, id string) bool {
	if id == "" || strings.Trim(id, "0123456789abcdef") != "" {
		return false // no id of ours
	}
	parent := filepath.Join(root, directory)
	gate, err := openGate(parent)
	if err != nil {
		return false
	}
	defer gate.Close()
	f, err := os.OpenFile(filepath.Join(parent, id, lockName), os.O_RDWR, 0o600)
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(tryLock(f), errLocked)
}
