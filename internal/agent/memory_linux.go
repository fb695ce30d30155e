package agent

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// forgetPeak has the kernel measure a process's most memory anew from here on. Where that is not possible, peakMemory is the most
// since the process began.
func forgetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakMemory is the most memory that a process has had, in bytes; 0 where it cannot be told.
func peakMemory(pid int) int64 { return memoryOf(pid, "VmHWM:") }

// memoryOf is one of the numbers that the kernel tells about a process's memory.
func memoryOf(pid int, name string) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil || kb < 0 {
				return 0
			}
			return kb << 10
		}
	}
	return 0
}
