package runinit

import (
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

// memoryStatus reads a line of the process's status, such as "VmRSS:	    1234 kB".
func memoryStatus(pid int, name string) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return max(0, kb) << 10
		}
	}
	return 0
}
