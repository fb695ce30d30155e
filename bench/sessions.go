//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var sessionsHeader = []string{"sessions open", "run in one of them", "p99", "in another one each time", "plain", "beside plain, to 1",
	"a session's own memory", "its agent", "server RSS", "server PSS", "processes, threads of a session", "CPU while all idle",
	"opened per second", "bare bwrap"}

const sessionsNote = "Open sessions: each has had a Python run and is idle. Memory is the proportional set size (PSS) of all processes below the server, per session; " +
	"*beside plain, to 1* is the ratio to plain Python in the same rounds, divided by that with one session; " +
	"*bare bwrap* is the floor of *opened per second*: sandboxes of a bare bubblewrap with the same namespaces, beside the open sessions."

// sessions measures runs in one of many open sessions while the others idle, and their memory.
// Plain Python takes its turn at each number, so a machine that became slower is not mistaken for
// the server. Each kind has its own part: together they would be a crowd of twice the size.
func (b *bench) sessions(name string) func(context.Context) (*section, error) {
	return func(ctx context.Context) (*section, error) {
		s := &section{Title: "Open sessions, " + titles[name], Header: sessionsHeader, Notes: []string{sessionsNote}}
		k, ok, err := b.kindNamed(ctx, name)
		if err != nil || !ok {
			return s, err
		}
		if k.server, err = b.startServer(ctx, k, "sessions"); err != nil {
			return nil, err
		}
		defer k.server.stop()
		open, err := b.openLevels(ctx, s, k)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		k.server.stop()
		s.Notes = append(s.Notes, fmt.Sprintf("Ending %s with %d open sessions took %.1f s.", titles[name], open, time.Since(start).Seconds()))
		return s, nil
	}
}

// openLevels opens more and more sessions and measures at each level. It returns how many are open.
func (b *bench) openLevels(ctx context.Context, s *section, k kind) (open int, err error) {
	levels := []int{1, 100, 1000}
	if b.quick {
		levels = []int{1, 20, 100}
	}
	before, err := k.server.settled(ctx)
	if err != nil {
		return 0, err
	}
	var first, threads float64
	for _, level := range levels {
		if err := room(float64(level-open) * threads); err != nil {
			s.leaveOut(fmt.Sprintf("A crowd of %d open sessions", level), err)
			break
		}
		start := time.Now()
		if err := k.server.open(ctx, open, level); err != nil {
			return open, err
		}
		opened := float64(level-open) / time.Since(start).Seconds()
		bare, err := b.bareRate(ctx, k, min(level, 100))
		if err != nil {
			return open, err
		}
		open = level
		use, err := k.server.settled(ctx)
		if err != nil {
			return open, err
		}
		taken, err := b.runsAmong(ctx, k.server, level)
		if err != nil {
			return open, err
		}
		plain, one, another := taken[0], taken[1], taken[2]
		beside := one.medianMS() / plain.medianMS()
		if first == 0 {
			first = beside
		}
		more := use.minus(before)
		own, agent := float64(more.pss)/float64(level), float64(more.agents)/float64(level)
		threads = float64(more.threads) / float64(level)
		s.row(fmt.Sprint(level), ms(one.p50()), ms(one.p99()), ms(another.p50()), ms(plain.p50()), times(beside/first), use.memory(own), use.memory(agent),
			use.memory(float64(use.serverRSS)), use.memory(float64(use.serverPSS)),
			fmt.Sprintf("%.1f, %.1f", float64(more.processes)/float64(level), threads), fmt.Sprintf("%.1f %%", 100*use.cpu),
			fmt.Sprintf("%.0f", opened), fmt.Sprintf("%.0f", bare))
		s.set(fmt.Sprintf("sessions %d to 1 %s", level, k.name), beside/first)
		if level != 1000 {
			continue
		}
		for name, v := range map[string]float64{
			"sessions p50": one.medianMS(), "sessions p99": float64(one.p99().Nanoseconds()) / 1e6,
			"sessions opened": opened, "sessions bare": bare, "sessions threads": threads,
		} {
			s.set(name+" "+k.name, v)
		}
		if !use.hidden {
			s.set("memory session "+k.name, own)
			s.set("memory agent "+k.name, agent)
			s.set("memory server "+k.name, float64(use.serverRSS))
		}
	}
	return open, nil
}

// runsAmong measures plain Python, a run in one of the open sessions, and in another one each time.
func (b *bench) runsAmong(ctx context.Context, s *server, open int) ([]series, error) {
	w := works["python"]
	n := b.scaled(w.rounds)
	if open == 1000 {
		n = 300 // for the p99
	}
	next := 0
	return measure(ctx, b.budget, []contender{
		b.plain(w)[0],
		{name: "one", n: n, want: w.want, do: func(ctx context.Context) ([]byte, error) {
			return s.run(ctx, openSession(0), w.language, w.code)
		}},
		{name: "another", n: b.scaled(w.rounds), want: w.want, do: func(ctx context.Context) ([]byte, error) {
			next += 7 // not in the order in which they were opened
			return s.run(ctx, openSession(next%open), w.language, w.code)
		}},
	})
}

func openSession(i int) string { return fmt.Sprintf("open-%d", i) }

// open opens sessions from one number to another, with a run in each.
func (s *server) open(ctx context.Context, from, to int) error {
	return fewAtOnce(to-from, func(i int) error {
		if _, err := s.run(ctx, openSession(from+i), "python", trivial); err != nil {
			return fmt.Errorf("session %d of %d: %w", from+i, to, err)
		}
		return nil
	})
}

// fewAtOnce does something n times, four at a time. It stops at the first error of each.
func fewAtOnce(n int, do func(i int) error) error {
	const atOnce = 4
	errs := make([]error, atOnce)
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range atOnce {
		wg.Go(func() {
			for errs[k] == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				errs[k] = do(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// bareRate returns how many sandboxes of a bare bubblewrap the kind's user opens per second, with a
// process that waits in each.
func (b *bench) bareRate(ctx context.Context, k kind, n int) (float64, error) {
	argv := append(b.bubblewrap("/bin/sh"), "/bin/sh", "-c", "echo open; read -r end")
	ends := make([]func() error, n)
	start := time.Now()
	err := fewAtOnce(n, func(i int) (err error) {
		ends[i], err = k.hold(ctx, argv)
		return err
	})
	took := time.Since(start)
	for _, end := range ends {
		if end != nil {
			err = errors.Join(err, end())
		}
	}
	return float64(n) / took.Seconds(), err
}

// hold starts a program as the kind's user and returns when it has written a line. The program ends
// with its input, which end closes.
func (k kind) hold(ctx context.Context, argv []string) (end func() error, err error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := k.user.start(cmd); err != nil {
		return nil, err
	}
	end = func() error {
		_ = in.Close()
		_ = cmd.Wait() // a read at the end of the input fails
		return ctx.Err()
	}
	if _, err := io.ReadFull(out, make([]byte, len("open\n"))); err != nil {
		return end, fmt.Errorf("%s did not start: %w", argv[0], err)
	}
	return end, nil
}
