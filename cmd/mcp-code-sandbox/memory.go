package main

import (
	"log/slog"
	"math"
	"runtime/debug"
)

const (
	// leastMemoryLimit is the smallest soft limit of the Go runtime that is set: below it, the server
	// would collect garbage all the time.
	leastMemoryLimit = 256 << 20
	// leastResultMemory and mostResultMemory bound the default of SANDBOX_RESULT_MEMORY.
	leastResultMemory = 64 << 20
	mostResultMemory  = 1 << 30
)

// limitMemory sets a soft limit of the Go runtime, a quarter of total, unless the operator has set
// GOMEMLIMIT or total is not known (0). Sandboxes need the rest. undo restores the limit before it.
func limitMemory(env map[string]string, total int64, log *slog.Logger) (undo func()) {
	if env["GOMEMLIMIT"] != "" || total <= 0 {
		return func() {}
	}
	limit := max(total/4, leastMemoryLimit)
	before := debug.SetMemoryLimit(limit)
	if before != math.MaxInt64 { // somebody else has set one
		debug.SetMemoryLimit(before)
		return func() {}
	}
	log.Debug("set a soft memory limit", "bytes", limit, "memory", total)
	return func() { debug.SetMemoryLimit(before) }
}

// defaultResultMemory is the budget for what results hold in memory, where total is what there is;
// 0: not known.
func defaultResultMemory(total int64) int64 {
	return min(max(total/16, leastResultMemory), mostResultMemory)
}
