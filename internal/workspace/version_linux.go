package workspace

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// versionOf also returns when the file last changed.
func versionOf(fi fs.FileInfo) (version, time.Time) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return version{size: fi.Size(), modified: fi.ModTime().UnixNano()}, fi.ModTime()
	}
	changed := time.Unix(st.Ctim.Unix())
	return version{size: st.Size, modified: st.Mtim.Nano(), changed: st.Ctim.Nano(), inode: st.Ino}, changed
}

// tick is the time that the kernel would give to a file which changes now, or an earlier one.
func tick() time.Time {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) != nil {
		return time.Now().Add(-maxTick)
	}
	return time.Unix(ts.Unix())
}
