package workspace

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// versionOf returns the version of a file, and when it last changed.
func versionOf(fi fs.FileInfo) (version, time.Time) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return version{size: fi.Size(), modified: fi.ModTime().UnixNano()}, fi.ModTime()
	}
	changed := time.Unix(st.Ctim.Unix())
	return version{size: st.Size, modified: st.Mtim.Nano(), changed: st.Ctim.Nano(), inode: st.Ino}, changed
}

// tick returns the time that the kernel gives to a file that changes now, or an earlier one.
func tick() time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().Add(-maxTick)
	}
	return time.Unix(ts.Unix())
}
