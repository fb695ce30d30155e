// Package instance tells the living servers on one root from the dead.
//
// Each process holds the lock of its own directory for life; the kernel releases it however the
// process ends. If another process can take the lock, the owner is dead, and what it left may be
// removed. The package only knows directories: the caller removes everything else.
package instance

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"mcp-code-sandbox/internal/filelock"
)

const (
	directory = "instances"
	lockName  = "lock"
	gateName  = ".gate"
)

// Instance is the directory of one process, or that of a dead one which this process has taken
// over. Its lock is held, so that no other process touches it.
type Instance struct {
	id   string
	dir  string
	lock *os.File
}

// ID is unique on the root and consists of [0-9a-f].
func (i *Instance) ID() string { return i.id }

// Dir returns the instance's directory.
func (i *Instance) Dir() string { return i.dir }

// Close removes the directory and releases the lock. It holds the gate, so that nobody finds a
// half-removed directory.
func (i *Instance) Close() error {
	gate, err := openGate(filepath.Dir(i.dir))
	if err != nil {
		i.lock.Close()
		return err
	}
	defer gate.Close()
	if runtime.GOOS == "windows" { // which cannot remove an open file
		i.lock.Close()
	}
	err = os.RemoveAll(i.dir)
	i.lock.Close()
	return err
}

// Abandon releases the lock and leaves the directory for a later attempt.
func (i *Instance) Abandon() { i.lock.Close() }

// Acquire makes a directory <root>/instances/<id> and locks it.
func Acquire(root string) (*Instance, error) {
	parent := filepath.Join(root, directory)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("make the instance directory: %w", err)
	}
	// Between mkdir and lock the directory looks dead; the gate keeps others from looking.
	gate, err := openGate(parent)
	if err != nil {
		return nil, err
	}
	defer gate.Close()

	raw := make([]byte, 6)
	rand.Read(raw)
	id := hex.EncodeToString(raw)
	dir := filepath.Join(parent, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the instance directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = filelock.TryLock(f)
		if err != nil {
			f.Close()
		}
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("lock the instance directory: %w", err)
	}
	fmt.Fprintf(f, "%d\n", os.Getpid()) // for people only
	return &Instance{id: id, dir: dir, lock: f}, nil
}

// Dead takes over every instance on root that has ended. The caller removes what it left elsewhere,
// and then calls Close, or Abandon if that failed.
func Dead(root string) ([]*Instance, error) {
	parent := filepath.Join(root, directory)
	if _, err := os.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	gate, err := openGate(parent)
	if err != nil {
		return nil, err
	}
	defer gate.Close()

	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	var dead []*Instance
	var errs []error
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		// O_CREATE: a process that died between mkdir and lock left no lock file.
		f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		switch err := filelock.TryLock(f); {
		case errors.Is(err, filelock.ErrLocked):
			f.Close()
		case err != nil:
			f.Close()
			errs = append(errs, err)
		default:
			dead = append(dead, &Instance{id: e.Name(), dir: dir, lock: f})
		}
	}
	return dead, errors.Join(errs...)
}

// Alive reports whether the process of an instance on root is alive. In doubt it returns true, also
// while another process cleans up after the instance: a wrong answer costs the living more.
func Alive(root, id string) bool {
	if id == "" || strings.Trim(id, "0123456789abcdef") != "" {
		return false // not a valid id
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
	return filelock.TryLock(f) != nil
}

// Dir returns the directory of an instance on root.
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

// openGate waits for the lock that orders Acquire, Dead and Close among processes. They hold it
// briefly.
func openGate(parent string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(parent, gateName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the instance gate: %w", err)
	}
	if err := filelock.Lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the instance gate: %w", err)
	}
	return f, nil
}
