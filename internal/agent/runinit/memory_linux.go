package runinit

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// resetPeak makes the kernel measure the peak memory of a process from now on. If the kernel
// cannot, peakMemory counts from the start of the process.
func resetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peakMemory returns the peak memory of a process in bytes, or 0 if it is not known.
func peakMemory(pid int) int64 { return memoryStatus(pid, "VmHWM:") }

// MemoryOf returns the memory of a process in bytes, or 0 if it has ended.
func MemoryOf(pid int) int64 { return memoryStatus(pid, "VmRSS:") }

// memoryStatus reads a line of the process's status.
func memoryStatus(pid int, name string) int64 {
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
