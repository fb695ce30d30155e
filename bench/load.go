//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// repeater is something that clients do again and again.
type repeater struct {
	name string
	do   func(ctx context.Context, client int) error
}

// throughput lets clients run trivial Python one after the other, each in its own session.
func (b *bench) throughput(ctx context.Context) (*section, error) {
	kinds, err := b.kinds(ctx)
	if err != nil {
		return nil, err
	}
	w := works["python"]
	s := &section{Title: "Throughput, trivial Python", Header: []string{"runs per second", "plain", "bwrap"}}
	var list []repeater
	for _, c := range b.plain(w) {
		list = append(list, repeater{c.name, func(ctx context.Context, _ int) error {
			_, err := c.do(ctx)
			return err
		}})
	}
	docker, err := b.docker(ctx, s)
	if err != nil {
		return nil, err
	}
	if docker != nil {
		kinds = append(slices.Clone(kinds), kind{name: dockerKind, server: docker.server})
	}
	for _, k := range kinds {
		s.Header = append(s.Header, "warm "+k.name, "to plain")
		list = append(list, repeater{k.name, func(ctx context.Context, client int) error {
			_, err := k.server.run(ctx, fmt.Sprintf("client-%d", client), w.language, w.code)
			return err
		}})
	}
	for _, clients := range []int{1, 2, 4, 16} {
		rates, err := b.rates(ctx, clients, list)
		if err != nil {
			return nil, err
		}
		row := []string{fmt.Sprintf("%d at a time", clients)}
		for k, r := range list {
			row = append(row, fmt.Sprintf("%.0f", rates[k]))
			if k > 1 {
				row = append(row, times(rates[k]/rates[0]))
			}
			s.set(fmt.Sprintf("throughput %d %s", clients, r.name), rates[k])
		}
		s.row(row...)
	}
	return s, nil
}

// rates returns the median of how often per second each repeater is done. They take turns.
func (b *bench) rates(ctx context.Context, clients int, list []repeater) ([]float64, error) {
	const rounds = 3
	taken := make([][]float64, len(list))
	for _, r := range list { // the first run of a session is measured elsewhere
		for i := range clients {
			if err := r.do(ctx, i); err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
		}
	}
	for range rounds {
		for k, r := range list {
			rate, err := rate(ctx, clients, b.spell(), r.do)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			taken[k] = append(taken[k], rate)
		}
	}
	medians := make([]float64, len(list))
	for k := range list {
		medians[k] = slices.Sorted(slices.Values(taken[k]))[rounds/2]
	}
	return medians, nil
}

// backToBack compares runs that follow each other at once with runs after a pause, in one session.
func (b *bench) backToBack(ctx context.Context) (*section, error) {
	kinds, err := b.kinds(ctx)
	if err != nil {
		return nil, err
	}
	const burst, rest = 20, 10 * pause
	w := works["python"]
	plain := b.plain(w)[0]
	plain.n, plain.repeat, plain.rest = b.scaled(20), burst, rest
	var lists [][]contender
	for _, k := range kinds {
		do := func(ctx context.Context) ([]byte, error) {
			return k.server.run(ctx, "back-to-back", w.language, w.code)
		}
		lists = append(lists, []contender{
			{name: "paced " + k.name, n: 4 * plain.n, want: w.want, rest: rest, do: do},
			{name: "burst " + k.name, n: plain.n, want: w.want, rest: rest, do: do, repeat: burst},
		})
	}
	taken, err := measure(ctx, b.budget, append([]contender{plain}, alternate(lists)...))
	if err != nil {
		return nil, err
	}
	s := &section{Title: "Trivial Python in one session, back to back", Header: []string{"each run", "p50", "p99", "n", "to plain", "to paced"},
		Notes: []string{fmt.Sprintf("*burst* is the mean of %d runs without a pause, *paced* a run after %v.", burst, rest)}}
	medians := map[string]float64{}
	for _, t := range taken {
		medians[t.name] = t.medianMS()
		row := []string{t.name, ms(t.p50()), ms(t.p99()), fmt.Sprint(len(t.times))}
		if t.name != plain.name {
			row = append(row, times(medians[t.name]/medians[plain.name]))
		}
		s.row(row...)
		s.set("back to back "+t.name, medians[t.name])
	}
	for i, row := range s.Rows {
		if name, ok := strings.CutPrefix(row[0], "burst "); ok {
			s.Rows[i] = append(row, times(medians[row[0]]/medians["paced "+name]))
		}
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
