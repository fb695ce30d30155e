//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// throughput lets clients run trivial Python one after the other, each in its own session.
func (b *bench) throughput(ctx context.Context) (*section, error) {
	jail, err := b.jail(ctx)
	if err != nil {
		return nil, err
	}
	w := works["python"]
	plain := b.plain(w)
	runIn := func(s *server) func(context.Context, int) error {
		return func(ctx context.Context, client int) error {
			_, err := s.run(ctx, fmt.Sprintf("client-%d", client), w.language, w.code)
			return err
		}
	}
	process := func(c contender) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			_, err := c.do(ctx)
			return err
		}
	}
	s := &section{Title: "Throughput, trivial Python", Header: []string{"runs per second", "plain", "bwrap", "warm jail", "to bwrap", "warm docker"}}
	ways := []func(context.Context, int) error{process(plain[0]), process(plain[1]), runIn(jail)}
	docker, err := b.docker(ctx)
	var none *noEngine
	switch {
	case errors.As(err, &none):
		s.Notes = append(s.Notes, none.Error())
	case err != nil:
		return nil, err
	default:
		ways = append(ways, runIn(docker.server))
	}
	const rounds = 3
	for _, clients := range []int{1, 2, 4, 16} {
		rates := make([][]float64, len(ways))
		for k, way := range ways { // the first run of a session is measured elsewhere
			for i := range clients {
				if err := way(ctx, i); err != nil {
					return nil, err
				}
			}
			rates[k] = make([]float64, rounds)
		}
		for i := range rounds {
			for k, way := range ways {
				if rates[k][i], err = rate(ctx, clients, b.spell(), way); err != nil {
					return nil, err
				}
			}
		}
		row := []string{fmt.Sprintf("%d at a time", clients)}
		medians := make([]float64, len(ways))
		for k := range ways {
			medians[k] = slices.Sorted(slices.Values(rates[k]))[rounds/2]
			row = append(row, fmt.Sprintf("%.0f", medians[k]))
			if k == 2 {
				row = append(row, times(medians[2]/medians[1]))
			}
		}
		s.row(row...)
	}
	return s, nil
}

// spell is how long one measurement of the throughput lasts.
func (b *bench) spell() time.Duration {
	if b.quick {
		return 400 * time.Millisecond
	}
	return 1500 * time.Millisecond
}

// rate lets clients repeat something for a while and returns how often per second they did it.
func rate(ctx context.Context, clients int, spell time.Duration, do func(context.Context, int) error) (float64, error) {
	var done atomic.Int64
	errs := make([]error, clients)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range clients {
		wg.Go(func() {
			for time.Since(start) < spell {
				if errs[i] = do(ctx, i); errs[i] != nil {
					return
				}
				done.Add(1)
			}
		})
	}
	wg.Wait()
	return float64(done.Load()) / time.Since(start).Seconds(), errors.Join(errs...)
}

// sessions measures runs in one of many open sessions while the others idle, and their memory.
// Plain Python takes its turn at each number, so a machine that became slower is not mistaken for
// the server.
func (b *bench) sessions(ctx context.Context) (*section, error) {
	s := &section{Title: "Open sessions, on the jail", Header: []string{"sessions open", "run in one of them", "p99", "in another one each time", "plain", "beside plain, to 1",
		"a session's own memory", "its agent", "server RSS", "server PSS", "processes, threads of a session", "CPU while all idle", "opened per second"},
		Notes: []string{"Open sessions: each has had a Python run and is idle. Memory is the proportional set size (PSS) of all processes below the server, per session; " +
			"*beside plain, to 1* is the ratio to plain Python in the same rounds, divided by that with one session."}}
	server, err := b.startServer(ctx, "sessions", "SANDBOX_BACKEND=jail")
	if err != nil {
		return nil, err
	}
	defer server.stop()
	w := works["python"]
	levels := []int{1, 100, 1000}
	if b.quick {
		levels = []int{1, 20, 100}
	}
	before, err := server.settled(ctx)
	if err != nil {
		return nil, err
	}
	var open int
	var first, threads float64
	for _, level := range levels {
		if err := room(float64(level-open) * threads); err != nil {
			s.Notes = append(s.Notes, fmt.Sprintf("%d open sessions were left out: %v", level, err))
			break
		}
		start := time.Now()
		if err := server.open(ctx, open, level); err != nil {
			return nil, err
		}
		opened := float64(level-open) / time.Since(start).Seconds()
		open = level
		use, err := server.settled(ctx)
		if err != nil {
			return nil, err
		}
		next := 0
		taken, err := measure(ctx, b.budget, []contender{
			b.plain(w)[0],
			{name: "one", n: b.scaled(w.rounds), want: w.want, do: func(ctx context.Context) ([]byte, error) {
				return server.run(ctx, openSession(0), w.language, w.code)
			}},
			{name: "another", n: b.scaled(w.rounds), want: w.want, do: func(ctx context.Context) ([]byte, error) {
				next += 7 // not in the order in which they were opened
				return server.run(ctx, openSession(next%level), w.language, w.code)
			}},
		})
		if err != nil {
			return nil, err
		}
		plain, one, another := taken[0], taken[1], taken[2]
		beside := float64(one.p50()) / float64(plain.p50())
		if first == 0 {
			first = beside
		}
		each := func(total, base int64) float64 { return float64(total-base) / float64(level) }
		own, agent := each(use.pss, before.pss), each(use.agents, before.agents)
		threads = each(int64(use.threads), int64(before.threads))
		s.row(fmt.Sprint(level), ms(one.p50()), ms(one.p99()), ms(another.p50()), ms(plain.p50()), times(beside/first), mb(own), mb(agent),
			mb(float64(use.serverRSS)), mb(float64(use.serverPSS)),
			fmt.Sprintf("%.1f, %.1f", each(int64(use.processes), int64(before.processes)), threads), fmt.Sprintf("%.1f %%", 100*use.cpu), fmt.Sprintf("%.0f", opened))
		s.set(fmt.Sprintf("sessions %d to 1", level), beside/first)
		if level == levels[len(levels)-1] && !b.quick {
			s.set("memory session", own)
			s.set("memory agent", agent)
			s.set("memory server", float64(use.serverRSS))
		}
	}
	start := time.Now()
	server.stop()
	s.Notes = append(s.Notes, fmt.Sprintf("Ending the server with %d open sessions took %.1f s.", open, time.Since(start).Seconds()))
	return s, nil
}

func openSession(i int) string { return fmt.Sprintf("open-%d", i) }

// open opens sessions from one number to another, a few at a time, with a run in each.
func (s *server) open(ctx context.Context, from, to int) error {
	const atOnce = 4
	errs := make([]error, atOnce)
	var next atomic.Int64
	next.Store(int64(from))
	var wg sync.WaitGroup
	for k := range atOnce {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= to {
					return
				}
				if _, errs[k] = s.run(ctx, openSession(i), "python", trivial); errs[k] != nil {
					errs[k] = fmt.Errorf("session %d of %d: %w", i, to, errs[k])
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
