package jail

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// socketsInterval is how often watchSockets looks. What can be taken in the meantime is what the
// limit may be exceeded by.
const socketsInterval = 200 * time.Millisecond

// watchSockets kills, until done is closed, the groups whose sockets hold more than their memory
// limit. The kernel does not hold a socket without data to the limit on version 1: each may take a
// segment of 64 KB, and thousands of connections many times the limit.
func (c *cgroups) watchSockets(done <-chan struct{}) {
	tick := time.NewTicker(socketsInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			c.killSocketHogs()
		}
	}
}

// killSocketHogs looks at the groups one by one only while they hold something together.
func (c *cgroups) killSocketHogs() {
	home := c.v1["memory"]
	if n, ok := readBytes(filepath.Join(home, "memory.kmem.tcp.usage_in_bytes")); ok && n == 0 {
		return
	}
	groups, _ := filepath.Glob(filepath.Join(home, c.prefix+"*"))
	for _, dir := range groups {
		if exceedsMemory(dir, "memory.kmem.tcp.usage_in_bytes") {
			killGroup(dir)
		}
	}
}

// socketsExceeded reports whether the group's sockets have ever held more than its memory limit.
func (g *cgroup) socketsExceeded() bool {
	return g != nil && !g.v2() && exceedsMemory(g.dirs["memory"], "memory.kmem.tcp.max_usage_in_bytes")
}

// exceedsMemory reports whether a counter of sockets' memory is above the memory limit of a version
// 1 group.
func exceedsMemory(dir, counter string) bool {
	limit, ok := readBytes(filepath.Join(dir, "memory.limit_in_bytes"))
	if !ok {
		return false
	}
	n, ok := readBytes(filepath.Join(dir, counter))
	return ok && n > limit
}

func readBytes(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
