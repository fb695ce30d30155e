package main

import (
	"log/slog"
	"math"
	"runtime/debug"
)

const (
	// leastMemoryLimit is the smallest soft limit of the Go runtime. Below it, the server would
	// collect garbage all the time.
	leastMemoryLimit = 256 << 20
	// leastResultMemory and mostResultMemory bound the default of SANDBOX_RESULT_MEMORY.
	leastResultMemory = 64 << 20
	mostResultMemory  = 1 << 30
)

// limitMemory sets the Go runtime's soft limit to a quarter of total, which leaves the rest to
// sandboxes, unless GOMEMLIMIT is set or total is unknown (0). undo restores the previous limit.
func limitMemory(env map[string]string, total int64, log *slog.Logger) (undo func()) {
	if env["GOMEMLIMIT"] != "" || total <= 0 {
		return func() {}
	}
	limit := max(total/4, leastMemoryLimit)
	before := debug.SetMemoryLimit(limit)
	if before != math.MaxInt64 { // another part of the program has set one
		debug.SetMemoryLimit(before)
		return func() {}
	}
	log.Debug("set a soft memory limit", "bytes", limit, "memory", total)
	return func() { debug.SetMemoryLimit(before) }
}

// defaultResultMemory returns the memory budget of results on a machine with total bytes (0:
// unknown).
func defaultResultMemory(total int64) int64 {
	return min(max(total/16, leastResultMemory), mostResultMemory)
}
