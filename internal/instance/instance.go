// Package instance tells the living servers on one root from the dead.
//
// Each process holds the lock of a directory of its own for life; the kernel lets go of it however the
// process ends. Whoever can take another's lock knows its owner to be dead and may remove what it left.
// The package knows no sandbox: what else a dead instance left is for the caller to remove.
package instance

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	directory = "instances"
	lockName  = "lock"
	gateName  = ".gate"
)

// errLocked is what tryLock returns when somebody else holds the lock.
var errLocked = errors.New("locked")

// Instance is one process's directory, or a dead one's that this process has taken over. Either way its lock is
// held, so no other process touches it.
type Instance struct {
	id   string
	dir  string
	lock *os.File
}

// ID is unique on the root, of [0-9a-f].
func (i *Instance) ID() string { return i.id }

// Dir is the instance's own directory.
func (i *Instance) Dir() string { return i.dir }

// Close removes the directory with all that is in it, and gives the lock back. It does so behind the gate, so
// that nobody meets a half-removed directory.
func (i *Instance) Close() error {
	gate, err := openGate(filepath.Dir(i.dir))
	if err != nil {
		i.lock.Close()
		return err
	}
	defer gate.Close()
	if closeBeforeRemove {
		i.lock.Close()
	}
	err = os.RemoveAll(i.dir)
	i.lock.Close()
	return err
}

// Abandon gives the lock back and leaves the directory, for another attempt later.
func (i *Instance) Abandon() { i.lock.Close() }

// Acquire makes a directory <root>/instances/<id> and takes its lock.
func Acquire(root string) (*Instance, error) {
	parent := filepath.Join(root, directory)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("make the instance directory: %w", err)
	}
	// Between mkdir and lock a directory looks dead; the gate keeps everybody else from looking.
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
		err = tryLock(f)
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

// Dead takes over every instance on root whose process has ended. The caller removes what they left
// elsewhere, then calls Close on each (or Abandon if that failed).
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
		switch err := tryLock(f); {
		case errors.Is(err, errLocked):
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

// openGate waits for the lock that orders Acquire, Dead and Close among processes. It is held for moments only.
func openGate(parent string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(parent, gateName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the instance gate: %w", err)
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock the instance gate: %w", err)
	}
	return f, nil
}
