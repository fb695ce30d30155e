package agent

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxTerminals bounds the pseudo-terminals of one run. The kernel has 4096 for the whole machine, and their buffers,
// some 40 KB each, are not counted as the sandbox's memory.
const maxTerminals = 32

// mountTerminals gives the run a /dev/pts that no other process has. A kernel that cannot leaves the run without
// terminals (the sandbox's /dev/pts is empty), which is no reason not to run it.
func mountTerminals() {
	const flags = unix.MS_NOSUID | unix.MS_NOEXEC
	err := unix.Mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666,mode=0620,max="+strconv.Itoa(maxTerminals))
	if errors.Is(err, unix.EINVAL) { // a kernel of the sandbox's own that does not know them all, and whose terminals are its own memory
		_ = unix.Mount("devpts", "/dev/pts", "devpts", flags, "newinstance,ptmxmode=0666")
	}
}
