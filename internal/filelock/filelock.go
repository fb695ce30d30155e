// Package filelock provides exclusive locks on open files, for processes that share a directory.
// The kernel releases a lock when the file is closed, however the process ends.
package filelock

import (
	"errors"
	"os"
)

// ErrLocked says that another process, or another open file of this one, holds the lock.
var ErrLocked = errors.New("locked")

// Lock waits for the lock of f.
func Lock(f *os.File) error { return lock(f) }

// TryLock takes the lock of f. It returns ErrLocked instead of waiting.
func TryLock(f *os.File) error { return tryLock(f) }

// Unlock releases the lock of f.
func Unlock(f *os.File) error { return unlock(f) }
