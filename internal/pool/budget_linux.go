package pool

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
)

// Machine returns a Config's Budget for this machine. A processor is idle when, since it was last asked, at least half of
// one was; memory is free when a tenth of all, and 256 MB at least, can be had without swapping.
func Machine() func() (cpu, memory bool) {
	var busy, idle uint64
	return func() (bool, bool) {
		b, i, n := processors("/proc/stat")
		total, free := memory("/proc/meminfo")
		enough := total == 0 || free >= max(total/10, 256<<10)
		dt, di := b+i-busy-idle, i-idle
		if n > 0 && dt < 2*uint64(n) {
			return false, enough // too short to tell
		}
		busy, idle = b, i
		return 2*uint64(n)*di >= dt, enough
	}
}

// processors reads how much time they all have spent since the system's start, in ticks of a clock, and their number. The
// number is zero where that cannot be read.
func processors(path string) (busy, idle uint64, n int) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, 0
	}
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), " ")
		switch {
		case name == "cpu":
			for i, field := range strings.Fields(rest) {
				v, _ := strconv.ParseUint(field, 10, 64)
				switch i {
				case 3, 4: // idle, waiting for a disk
					idle += v
				case 0, 1, 2, 5, 6, 7: // the rest is counted in these already
					busy += v
				}
			}
		case strings.HasPrefix(name, "cpu"):
			n++
		}
	}
	return busy, idle, n
}

// memory reads how much there is and how much is free, in KB; zero where that cannot be read.
func memory(path string) (total, free uint64) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0
	}
	for sc := bufio.NewScanner(bytes.NewReader(text)); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		v, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		switch name {
		case "MemTotal":
			total = v
		case "MemAvailable":
			free = v
		}
	}
	return total, free
}
