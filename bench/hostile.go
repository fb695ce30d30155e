//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// hostileCode makes a third of the runs of the hostile load. Each is ended by its limits or after
// hostileTime.
var hostileCode = []struct{ name, code string }{
	{"fork bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"},
	{"memory bomb", "held = []\nwhile True: held.append(b'x' * (1 << 20))"},
	{"endless loop", "while True: pass"},
}

const (
	hostileClients = 16
	hostileTime    = time.Second
)

// innocents collects the runs of innocent code during one kind of phase.
type innocents struct {
	mu      sync.Mutex
	series  map[string][]time.Duration // by what was run
	all     []time.Duration
	failed  []error
	hostile int // hostile runs beside them
}

func (in *innocents) add(what string, took time.Duration, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err != nil {
		in.failed = append(in.failed, fmt.Errorf("%s after %v: %w", what, took.Round(time.Millisecond), err))
		return
	}
	in.series[what] = append(in.series[what], took)
	in.all = append(in.all, took)
}

// hostile lets 16 clients run innocent code, each in its own session and every fourth run in a new
// one. In every other phase a third of the runs are hostile; in the others the clients rest for as
// long.
func (b *bench) hostile(ctx context.Context) (*section, error) {
	s := &section{Title: "16 clients, a third of their runs hostile", Header: []string{"innocent runs", "p50", "p90", "p99", "worst", "n", "failed", "p50, p99 to calm"},
		Notes: []string{fmt.Sprintf("Hostile runs: fork bombs, memory bombs and endless loops, with a timeout of %v, in the sessions of the same clients; *calm* is the same load with a rest of that time in their place. Phases alternate.", hostileTime)}}
	own, err := b.own(ctx)
	if err != nil {
		return nil, err
	}
	server, err := b.startServer(ctx, own, "hostile")
	if err != nil {
		return nil, err
	}
	defer server.stop()
	rounds, spell := 3, 30*time.Second
	if b.quick {
		rounds, spell = 2, 8*time.Second
	}
	phases := []*innocents{{series: map[string][]time.Duration{}}, {series: map[string][]time.Duration{}}}
	server.load(ctx, &innocents{series: map[string][]time.Duration{}}, false, time.Second) // opens the sessions
	for range rounds {
		for k, in := range phases {
			server.load(ctx, in, k == 1, spell)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
	}
	calm, loaded := phases[0], phases[1]
	if len(calm.failed) > 0 {
		return nil, fmt.Errorf("without hostile runs: %w", calm.failed[0])
	}
	for k, in := range phases {
		for _, what := range []string{"trivial", "pandas", "new session"} {
			d := in.series[what]
			if len(d) == 0 {
				continue
			}
			row := []string{[]string{"calm: ", "beside hostile runs: "}[k] + what, ms(percentile(d, 50)), ms(percentile(d, 90)), ms(percentile(d, 99)), ms(percentile(d, 100)), fmt.Sprint(len(d)), "", ""}
			if k == 1 {
				c := calm.series[what]
				row[7] = times(float64(percentile(d, 50))/float64(percentile(c, 50))) + ", " + times(float64(percentile(d, 99))/float64(percentile(c, 99)))
			}
			s.row(row...)
		}
	}
	s.row("beside hostile runs: all", ms(percentile(loaded.all, 50)), ms(percentile(loaded.all, 90)), ms(percentile(loaded.all, 99)), ms(percentile(loaded.all, 100)),
		fmt.Sprint(len(loaded.all)), fmt.Sprint(len(loaded.failed)),
		times(float64(percentile(loaded.all, 50))/float64(percentile(calm.all, 50)))+", "+times(float64(percentile(loaded.all, 99))/float64(percentile(calm.all, 99))))
	s.set("hostile p99 "+own.name, float64(percentile(loaded.all, 99).Nanoseconds())/1e6)
	s.set("hostile failed "+own.name, float64(len(loaded.failed)))
	s.Notes = append(s.Notes, fmt.Sprintf("Beside them, %d hostile runs ended.", loaded.hostile))
	for _, err := range loaded.failed[:min(3, len(loaded.failed))] {
		s.Notes = append(s.Notes, "Failed: "+err.Error())
	}
	return s, nil
}

// load lets the clients run code for a while, and returns when the last run has ended.
func (s *server) load(ctx context.Context, in *innocents, hostile bool, spell time.Duration) {
	var wg sync.WaitGroup
	start := time.Now()
	for client := range hostileClients {
		session := fmt.Sprintf("client-%d", client)
		wg.Go(func() {
			for i := client; time.Since(start) < spell && ctx.Err() == nil; i++ {
				began := time.Now()
				_, err := s.run(ctx, session, "python", trivial)
				in.add("trivial", time.Since(began), err)
				if began = time.Now(); i%2 == 0 {
					_, err = s.run(ctx, session, "python", groupBy)
					in.add("pandas", time.Since(began), err)
				} else {
					_, err = s.call(ctx, "run", ranWell, map[string]any{"env": "python", "code": groupBy})
					in.add("new session", time.Since(began), err)
				}
				if hostile {
					s.attack(ctx, session, hostileCode[i%len(hostileCode)].code)
					in.mu.Lock()
					in.hostile++
					in.mu.Unlock()
					continue
				}
				select {
				case <-ctx.Done():
				case <-time.After(hostileTime):
				}
			}
		})
	}
	wg.Wait()
}

// attack runs hostile code and ignores how it ends.
func (s *server) attack(ctx context.Context, session, code string) {
	_, _ = s.call(ctx, "run_code", ranWell, map[string]any{"conversationId": session, "language": "python", "code": code,
		"timeout_seconds": hostileTime.Seconds()})
}
