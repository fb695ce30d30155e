package main

import (
	"log/slog"
	"math"
	"runtime/debug"
	"testing"
)

// TestLimitMemory: without GOMEMLIMIT the server sets a soft limit, and undo removes it.
func TestLimitMemory(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	for _, c := range []struct {
		name  string
		env   map[string]string
		total int64
		want  int64
	}{
		{"a large machine", nil, 64 << 30, 16 << 30},
		{"a small container", nil, 300 << 20, 256 << 20},
		{"the operator's", map[string]string{"GOMEMLIMIT": "1GiB"}, 64 << 30, math.MaxInt64},
		{"off", map[string]string{"GOMEMLIMIT": "off"}, 64 << 30, math.MaxInt64},
		{"unknown", nil, 0, math.MaxInt64},
	} {
		undo := limitMemory(c.env, c.total, log)
		if got := debug.SetMemoryLimit(-1); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		undo()
		if got := debug.SetMemoryLimit(-1); got != math.MaxInt64 {
			t.Errorf("%s: %d is left", c.name, got)
		}
	}
	debug.SetMemoryLimit(1 << 30)
	limitMemory(nil, 64<<30, log)()
	if got := debug.SetMemoryLimit(-1); got != 1<<30 {
		t.Errorf("a limit that was there became %d", got)
	}
}

func TestDefaultResultMemory(t *testing.T) {
	for total, want := range map[int64]int64{0: 64 << 20, 512 << 20: 64 << 20, 4 << 30: 256 << 20, 128 << 30: 1 << 30} {
		if got := defaultResultMemory(total); got != want {
			t.Errorf("of %d: %d, want %d", total, got, want)
		}
	}
}
