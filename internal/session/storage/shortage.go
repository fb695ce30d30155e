package storage

import (
	"time"

	"mcp-code-sandbox/internal/workspace"
)

const (
	// minBytes and minFiles are the least growth that counts as filling a disk.
	minBytes = 1 << 20
	minFiles = 1000
	// recentMinutes is for how long growth counts against a caller while the disk is short.
	recentMinutes = 10
)

// Shortage is what a disk is short of.
type Shortage int

// The shortages.
const (
	None Shortage = iota
	OfBytes
	OfFiles
)

// ShortageOf returns what is missing for the reserve to stay free.
func ShortageOf(d workspace.Disk, reserve workspace.Usage) Shortage {
	switch {
	case d.FreeBytes < reserve.Bytes:
		return OfBytes
	case d.FreeFiles < int64(reserve.Files):
		return OfFiles
	}
	return None
}

// Free returns how much of the short resource the disk has left.
func (sh Shortage) Free(d workspace.Disk) int64 {
	if sh == OfFiles {
		return d.FreeFiles
	}
	return d.FreeBytes
}

// Of returns how much of the short resource a usage takes.
func (sh Shortage) Of(u workspace.Usage) int64 {
	if sh == OfFiles {
		return int64(u.Files)
	}
	return u.Bytes
}

// IsGrowth reports whether growth by n contributes to the shortage.
func (sh Shortage) IsGrowth(n int64) bool {
	return sh == OfBytes && n >= minBytes || sh == OfFiles && n >= minFiles
}

// Fastest returns the caller whose sessions have recently grown the most in the short resource, and
// by how much. It returns 0 if none has grown, and never the exempt caller.
func (a *Accounts) Fastest(sh Shortage) (fastest string, most int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for caller, acc := range a.callers {
		if n := sh.Of(acc.growth.sum()); caller != a.exempt && sh.IsGrowth(n) && n > most {
			fastest, most = caller, n
		}
	}
	return fastest, most
}

// recentGrowth is by how much a caller's sessions grew in each of the last minutes, less deletions.
type recentGrowth [recentMinutes]struct {
	minute int64 // since 1970
	use    workspace.Usage
}

func (g *recentGrowth) add(bytes int64, files int) {
	now := time.Now().Unix() / 60
	slot := &g[now%recentMinutes]
	if slot.minute != now {
		slot.minute, slot.use = now, workspace.Usage{}
	}
	slot.use.Bytes += bytes
	slot.use.Files += files
}

func (g *recentGrowth) sum() (sum workspace.Usage) {
	now := time.Now().Unix() / 60
	for _, slot := range g {
		if now-slot.minute < recentMinutes {
			sum.Bytes += slot.use.Bytes
			sum.Files += slot.use.Files
		}
	}
	return sum
}
