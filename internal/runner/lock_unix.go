//go:build linux || darwin

package runner

import (
	"os"
	"syscall"
)

// lockDir waits for the exclusive right to change the environments in dir.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(dir+"/.lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
