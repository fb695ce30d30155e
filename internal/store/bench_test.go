package store

import (
	"fmt"
	"path/filepath"
	"testing"
)

// BenchmarkRecord measures what a run costs a database with as many results of its caller as are
// kept.
func BenchmarkRecord(b *testing.B) {
	for _, batch := range []int{1, 16} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			s, err := Open(b.Context(), filepath.Join(b.TempDir(), "state.db"))
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			n := 0
			next := func() (runs []Run, results []Result) {
				for range batch {
					n++
					id := fmt.Sprint("run_", n)
					runs = append(runs, Run{ID: id, Caller: "local", Session: "s", Runner: "shell", Started: now})
					results = append(results, Result{ID: id, Caller: "local", Session: "s", Started: now, Ended: now, Data: make([]byte, 600)})
				}
				return runs, results
			}
			for n < 500 {
				runs, results := next()
				if err := s.Record(b.Context(), runs, results, 500, nil); err != nil {
					b.Fatal(err)
				}
			}
			first := n
			for b.Loop() {
				runs, results := next()
				var trim []string
				if n%32 == 0 {
					trim = []string{"local"}
				}
				if err := s.Record(b.Context(), runs, results, 500, trim); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n-first), "ns/run")
		})
	}
}
