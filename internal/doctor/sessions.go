package doctor

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

// SessionCost is what an idle session needs.
type SessionCost struct {
	Memory  int64 // bytes
	Threads int64
}

// The measured cost of a session after a Python run: where all sandboxes share the memory of its
// libraries, and where each has its own.
var (
	SharedSession   = SessionCost{Memory: 9 << 20, Threads: 12}
	SeparateSession = SessionCost{Memory: 120 << 20, Threads: 12}
)

// maxSuggested is the largest number of sessions that has been measured.
const maxSuggested = 1000

// SuggestSessions returns how many sessions fit on the machine (0: unknown) and the calculation, in
// a line. Half of memory and threads is a reserve for running code and everything else.
func (h Host) SuggestSessions(cost SessionCost) (n int, why string) {
	if h.OS != "linux" {
		return 0, ""
	}
	room := int64(math.MaxInt64)
	var parts []string
	if memory := h.Memory(); memory > 0 {
		fit := memory / 2 / cost.Memory
		room = min(room, fit)
		parts = append(parts, fmt.Sprintf("half of %.1f GB of memory is enough for %d idle sessions of %d MB",
			float64(memory)/(1<<30), fit, cost.Memory>>20))
	}
	if threads := h.threads(); threads > 0 {
		fit := threads / 2 / cost.Threads
		room = min(room, fit)
		parts = append(parts, fmt.Sprintf("half of %d threads for %d of %d threads", threads, fit, cost.Threads))
	}
	if len(parts) == 0 {
		return 0, ""
	}
	room = min(max(room, 1), maxSuggested)
	if room >= 100 {
		room -= room % 10
	}
	return int(room), strings.Join(parts, ", ")
}

// CheckSessions compares the setting with how many sessions fit.
func (h Host) CheckSessions(limit int, cost SessionCost) []sandbox.Check {
	n, why := h.SuggestSessions(cost)
	if n == 0 {
		return nil
	}
	detail := fmt.Sprintf("SANDBOX_MAX_SESSIONS is %d; this machine has room for about %d, if most of them are idle: %s", limit, n, why)
	if limit > 2*n { // the reserve is used up as well
		return []sandbox.Check{warn("sessions", detail, fmt.Sprintf("set SANDBOX_MAX_SESSIONS to %d or less", n))}
	}
	return []sandbox.Check{pass("sessions", detail)}
}

// Memory returns how much memory the server and its sandboxes may use: the machine's, or a cgroup's
// limit. 0: unknown.
func (h Host) Memory() int64 {
	var total int64
	for line := range strings.Lines(h.text("/proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			total = kb << 10
		}
	}
	return least(total, h.cgroupLimit("memory", "memory.max", "memory.limit_in_bytes"))
}

// threads returns how many threads there may be: the least of the limits of the kernel, the cgroup
// and a user other than root. 0: unknown.
func (h Host) threads() int64 {
	limit := h.cgroupLimit("pids", "pids.max", "pids.max")
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		limit = least(limit, number(h.line(file)))
	}
	if h.UID == 0 {
		return limit
	}
	for line := range strings.Lines(h.text("/proc/self/limits")) {
		if rest, ok := strings.CutPrefix(line, "Max processes"); ok {
			soft, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			limit = least(limit, number(soft))
		}
	}
	return limit
}

// cgroupLimit returns the smallest limit of a controller on the server's cgroup and those above it.
// 0: no limit.
func (h Host) cgroupLimit(controller, v2, v1 string) (limit int64) {
	own := h.ownCgroups()
	for key, file := range map[string]string{"": "/" + v2, controller: "/" + v1} {
		dir, ok := own[key]
		// A container sees its own cgroup as the root of the mount.
		for ; ok; dir = path.Dir(dir) {
			limit = least(limit, number(h.line(path.Join(cgroupMount, key, dir, file))))
			if dir == "" || dir == "/" {
				break
			}
		}
	}
	return limit
}

// number parses a limit. 0: no limit, as for "max", or not a number.
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// least returns the smaller of two limits, where 0 means no limit.
func least(a, b int64) int64 {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
