//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// contender is one way to do a piece of work, measured beside others.
type contender struct {
	name string
	n    int // measurements

	do     func(context.Context) ([]byte, error)
	want   string                      // what its output must have in it
	before func(context.Context) error // prepares, outside the measurement; may be nil
	after  func(context.Context) error // tidies up, outside the measurement; may be nil
	rest   time.Duration               // pause after it, for work that it has left in the background; pause when zero

	repeat int // how often one measurement does it, without a pause; zero: once. Its time is the mean
}

// pause lets background work of one measurement end before the next begins.
const pause = 10 * time.Millisecond

// series holds the measurements of one contender.
type series struct {
	name  string
	times []time.Duration
}

func (s series) p50() time.Duration { return percentile(s.times, 50) }
func (s series) p99() time.Duration { return percentile(s.times, 99) }

func (s series) medianMS() float64 { return float64(s.p50().Nanoseconds()) / 1e6 }

func percentile(d []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, len(s)*p/100)]
}

// warmUps is how often a contender runs before it is measured.
const warmUps = 2

// few is the minimum number of measurements of each contender, however long they take.
const few = 3

// measure lets the contenders take turns, so that a slow moment of the machine hits all of them.
// Every other round goes backwards, so that none always follows the same one and its background
// work. Rarer contenders are spread over the rounds. It stops when the time budget is used up.
func measure(ctx context.Context, budget time.Duration, contenders []contender) ([]series, error) {
	taken := make([]series, len(contenders))
	for k, c := range contenders {
		taken[k].name = c.name
		for range warmUps {
			if _, err := c.once(ctx); err != nil {
				return nil, err
			}
		}
	}
	rounds := slices.MaxFunc(contenders, func(a, b contender) int { return a.n - b.n }).n
	start := time.Now()
	for i := range rounds {
		if time.Since(start) > budget && !slices.ContainsFunc(taken, func(s series) bool { return len(s.times) < few }) {
			break
		}
		for k := range contenders {
			if i%2 == 1 {
				k = len(contenders) - 1 - k
			}
			c := contenders[k]
			if i*c.n/rounds == (i+1)*c.n/rounds {
				continue
			}
			took, err := c.once(ctx)
			if err != nil {
				return nil, err
			}
			taken[k].times = append(taken[k].times, took)
		}
	}
	return taken, nil
}

// alternate returns the first contenders of all lists, then the second ones, and so on.
func alternate(lists [][]contender) []contender {
	var all []contender
	for i := 0; ; i++ {
		before := len(all)
		for _, list := range lists {
			if i < len(list) {
				all = append(all, list[i])
			}
		}
		if len(all) == before {
			return all
		}
	}
}

// once takes one measurement, with its unmeasured preparation.
func (c *contender) once(ctx context.Context) (time.Duration, error) {
	repeat := max(1, c.repeat)
	var err error
	if c.before != nil {
		err = c.before(ctx)
	}
	start := time.Now()
	for i := 0; i < repeat && err == nil; i++ {
		var out []byte
		if out, err = c.do(ctx); err == nil && !bytes.Contains(out, []byte(c.want)) {
			err = fmt.Errorf("%q is not in its output: %.2000s", c.want, out)
		}
	}
	took := time.Since(start) / time.Duration(repeat)
	if err == nil && c.after != nil {
		err = c.after(ctx)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", c.name, err)
	}
	rest := c.rest
	if rest == 0 {
		rest = pause
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(rest):
		return took, nil
	}
}

// command runs a program to its end with an environment as bare as a sandbox's. One variable of the
// machine (NODE_EXTRA_CA_CERTS) can make an interpreter three times slower, and the server would
// look fast beside it.
func command(dir string, env []string, argv ...string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = dir
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LANG=C.UTF-8"}, env...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			said := bytes.TrimSpace(stderr.Bytes())
			return nil, fmt.Errorf("%w: %s", err, said[max(0, len(said)-500):])
		}
		return out, nil
	}
}
