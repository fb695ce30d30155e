//go:build unix

package instance

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

const closeBeforeRemove = false

func tryLock(f *os.File) error {
	err := retry(f, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}

func lock(f *os.File) error { return retry(f, unix.LOCK_EX) }

func retry(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
