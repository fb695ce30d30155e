package cgroup

import (
	"path/filepath"
	"time"
)

const (
	tcpUsage    = "memory.kmem.tcp.usage_in_bytes"
	tcpMaxUsage = "memory.kmem.tcp.max_usage_in_bytes"

	// socketsInterval is the time between two checks of WatchSockets. A group can exceed its limit
	// for that long.
	socketsInterval = 200 * time.Millisecond
)

// WatchSockets kills groups with sockets that hold more than the memory limit, until done is
// closed. Version 1 lets every socket without data exceed the limit by a segment of 64 KB, so
// thousands of connections can hold many times the limit.
func (h *Hierarchy) WatchSockets(done <-chan struct{}) {
	if h.v1 == nil || h.looseTCP {
		return
	}
	tick := time.NewTicker(socketsInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			h.killSocketHogs()
		}
	}
}

// killSocketHogs checks single groups only if their sockets together hold memory.
func (h *Hierarchy) killSocketHogs() {
	home := h.v1["memory"]
	if n, err := readNumber(filepath.Join(home, tcpUsage)); err == nil && n == 0 {
		return
	}
	groups, _ := filepath.Glob(filepath.Join(home, h.prefix+"*"))
	for _, dir := range groups {
		if exceedsMemory(dir) {
			killGroup(dir)
		}
	}
}

// SocketsExceeded reports whether the group's sockets have ever held more than its memory limit.
func (g *Group) SocketsExceeded() bool {
	if g == nil || g.isV2() || g.memoryBytes <= 0 {
		return false
	}
	n, err := readNumber(g.file("memory", tcpMaxUsage))
	return err == nil && n > uint64(g.memoryBytes)
}

// exceedsMemory reports whether the sockets of a version 1 group hold more than its memory limit.
func exceedsMemory(dir string) bool {
	limit, limitErr := readNumber(filepath.Join(dir, "memory.limit_in_bytes"))
	n, err := readNumber(filepath.Join(dir, tcpUsage))
	return limitErr == nil && err == nil && n > limit
}
