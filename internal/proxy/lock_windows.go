package proxy

import (
	"math"
	"os"

	"golang.org/x/sys/windows"
)

// lockOffset is beyond every line: a locked range cannot be read by others.
const lockOffset = math.MaxUint32

func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{OffsetHigh: lockOffset})
}

func unlockFile(f *os.File) {
	_ = windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{OffsetHigh: lockOffset})
}
