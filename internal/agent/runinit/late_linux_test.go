package runinit

import (
	"bytes"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// TestLatePipes: no output and no goroutine is lost when pipes are written, read and closed at the
// same time.
func TestLatePipes(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var l late
	var writers sync.WaitGroup
	var ends []*os.File
	for n := range maxLateCells {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, w)
		l.keep(n+1, r)
		writers.Go(func() {
			for range 100 {
				if _, err := w.Write([]byte("line\n")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	lines := bytes.Count(l.take(), []byte("line\n"))
	writers.Wait()
	lines += bytes.Count(l.take(), []byte("line\n"))
	if lines != 100*maxLateCells {
		t.Errorf("%d lines of %d", lines, 100*maxLateCells)
	}
	if got := l.take(); got != nil {
		t.Errorf("more: %q", got)
	}
	for _, w := range ends[:maxLateCells/2] {
		_ = w.Close() // the goroutine that follows the pipe closes it
	}
	l.close()
	for _, w := range ends[maxLateCells/2:] {
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("a pipe is open after close")
		}
		_ = w.Close()
	}
}
