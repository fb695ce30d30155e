package runinit

import (
	"os"
	"runtime"
	"testing"
)

// TestPeakMemory: the peak counts from the last reset.
func TestPeakMemory(t *testing.T) {
	const size = 64 << 20
	grow := func() {
		b := make([]byte, size)
		for i := 0; i < len(b); i += os.Getpagesize() {
			b[i] = 1
		}
		runtime.KeepAlive(b)
	}
	resetPeak(os.Getpid())
	before := peakMemory(os.Getpid())
	grow()
	if after := peakMemory(os.Getpid()); before <= 0 || after < before+size/2 {
		t.Errorf("%d, and %d after %d more", before, after, size)
	}
	if got := peakMemory(-1); got != 0 {
		t.Errorf("of no process: %d", got)
	}
}
