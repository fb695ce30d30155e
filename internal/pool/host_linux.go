package pool

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const canRename = true

// renameNew renames a directory to a path that must not exist.
func renameNew(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

// Machine returns a Config's Budget for this machine. The processors count as idle if at least half
// of one processor was idle since the last call. Memory is free if a tenth of it, and at least 256
// MB, is available without swapping.
func Machine() func() (cpu, memory bool) {
	var busy, idle uint64
	return func() (bool, bool) {
		b, i, n := processors("/proc/stat")
		total, free := memory("/proc/meminfo")
		enough := total == 0 || free >= max(total/10, 256<<10)
		dt, di := b+i-busy-idle, i-idle
		if n > 0 && dt < 2*uint64(n) {
			return false, enough // too short to measure
		}
		busy, idle = b, i
		return 2*uint64(n)*di >= dt, enough
	}
}

// processors reads the clock ticks that all processors have been busy and idle since the system's
// start, and their number, which is zero if the file cannot be read.
func processors(path string) (busy, idle uint64, n int) {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, " ")
		switch {
		case name == "cpu":
			for i, field := range strings.Fields(rest) {
				v, _ := strconv.ParseUint(field, 10, 64)
				switch i {
				case 3, 4: // idle, waiting for a disk
					idle += v
				case 0, 1, 2, 5, 6, 7: // these include the others
					busy += v
				}
			}
		case strings.HasPrefix(name, "cpu"):
			n++
		}
	}
	return busy, idle, n
}

// memory reads the size of the memory and how much is available, in KB; zero if it cannot be read.
func memory(path string) (total, available uint64) {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		v, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch name {
		case "MemTotal":
			total = v
		case "MemAvailable":
			available = v
		}
	}
	return total, available
}
