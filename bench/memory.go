//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// use is what a server and the processes below it use of the machine.
type use struct {
	processes, threads   int   // below the server
	pss, agents          int64 // of all of them; of the agents alone
	serverRSS, serverPSS int64
	cpu                  float64 // processors in use, of the server and all below it
	hidden               bool    // memory is not known: the kernel shows it to root only
}

// memory formats an amount of memory.
func (u use) memory(v float64) string {
	if u.hidden {
		return "not shown"
	}
	return mb(v)
}

// settled measures once the server's processes have stopped changing, when background work after a
// run has ended.
func (s *server) settled(ctx context.Context) (use, error) {
	const looks, every = 40, 500 * time.Millisecond
	last, same := -1, 0
	for range looks {
		pids, err := s.descendants()
		if err != nil {
			return use{}, err
		}
		if len(pids) == last {
			same++
		} else {
			last, same = len(pids), 0
		}
		if same == 2 {
			break
		}
		select {
		case <-ctx.Done():
			return use{}, ctx.Err()
		case <-time.After(every):
		}
	}
	return s.use(ctx)
}

func (s *server) use(ctx context.Context) (use, error) {
	var u use
	pids, err := s.descendants()
	if err != nil {
		return u, err
	}
	const spell = 2 * time.Second
	before := processorTicks(append(pids, s.cmd.Process.Pid))
	select {
	case <-ctx.Done():
		return u, ctx.Err()
	case <-time.After(spell):
	}
	u.cpu = float64(processorTicks(append(pids, s.cmd.Process.Pid))-before) / ticksPerSecond / spell.Seconds()
	for _, pid := range pids {
		m, err := memoryOf(pid)
		switch {
		case gone(err):
			continue
		case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
			u.hidden = true
		case err != nil:
			return u, err
		}
		u.processes++
		u.threads += m.threads
		u.pss += m.pss
		if m.agent {
			u.agents += m.pss
		}
	}
	m, err := memoryOf(s.cmd.Process.Pid)
	u.serverPSS, u.serverRSS = m.pss, m.rss
	return u, err
}

// gone reports whether a process ended while it was inspected.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// parentsOf returns the parent of every process of the machine, without those that have ended.
func parentsOf() (map[int]int, error) {
	parent := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		var state string
		var ppid int
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		if _, err := fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &ppid); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if state != "Z" {
			parent[pid] = ppid
		}
	}
	return parent, nil
}

// descendants returns the processes below the server and those in a pid namespace of one of them.
func (s *server) descendants() ([]int, error) {
	parent, err := parentsOf()
	if err != nil {
		return nil, err
	}
	spaces := map[string]bool{}
	below := func(pid int) bool {
		p := parent[pid]
		for p > 1 && p != s.cmd.Process.Pid {
			p = parent[p]
		}
		return p == s.cmd.Process.Pid
	}
	for pid := range parent {
		if below(pid) {
			spaces[pidNamespace(pid)] = true
		}
	}
	delete(spaces, pidNamespace(os.Getpid()))
	delete(spaces, "")
	var pids []int
	for pid := range parent {
		if below(pid) || spaces[pidNamespace(pid)] {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// pidNamespace identifies the pid namespace of a process. It is empty if the process has ended.
func pidNamespace(pid int) string {
	name, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return name
}

// ticksPerSecond is USER_HZ, the unit of /proc/PID/stat on every architecture we build for.
const ticksPerSecond = 100

// processorTicks sums the processor time of the processes. A process that has ended counts as zero.
func processorTicks(pids []int) int64 {
	var sum int64
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		const utime, stime = 14 - 3, 15 - 3 // as proc(5) counts them, after the first two
		for _, f := range []int{utime, stime} {
			ticks, _ := strconv.ParseInt(fields[f], 10, 64)
			sum += ticks
		}
	}
	return sum
}

// memory is the memory of a process.
type memory struct {
	pss, rss int64
	threads  int
	agent    bool
}

// memoryOf inspects a process. If it is not permitted to, only the number of threads is known.
func memoryOf(pid int) (memory, error) {
	var m memory
	dir := fmt.Sprintf("/proc/%d", pid)
	rollup, hidden := os.ReadFile(dir + "/smaps_rollup")
	if hidden != nil && !errors.Is(hidden, fs.ErrPermission) {
		return m, fmt.Errorf("memory of %d: %w", pid, hidden)
	}
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		return m, fmt.Errorf("memory of %d: %w", pid, err)
	}
	command, err := os.ReadFile(dir + "/cmdline")
	if err != nil {
		return m, err
	}
	m.agent = bytes.HasPrefix(command, []byte("/.sandbox-agent"))
	for line := range strings.Lines(string(rollup) + string(status)) {
		var n int64
		if _, err := fmt.Sscanf(line, "Pss: %d kB", &n); err == nil {
			m.pss = n << 10
		} else if _, err := fmt.Sscanf(line, "Rss: %d kB", &n); err == nil {
			m.rss = n << 10
		} else if _, err := fmt.Sscanf(line, "Threads: %d", &n); err == nil {
			m.threads = int(n)
		}
	}
	return m, hidden
}

// pandasMemory measures the memory of sessions that have used pandas, and of notebooks with it.
func (b *bench) pandasMemory(ctx context.Context) (*section, error) {
	kinds, err := b.kinds(ctx)
	if err != nil {
		return nil, err
	}
	const open = 20
	s := &section{Title: "Memory of sessions with pandas", Header: []string{"each of " + fmt.Sprint(open), "own memory", "processes", "threads"},
		Notes: []string{"Memory of a *session*: idle after a run with pandas. Of a *notebook*: its interpreter holds pandas."}}
	for _, k := range kinds {
		for _, way := range []struct {
			name string
			run  func(ctx context.Context, session, language, code string) ([]byte, error)
		}{{"session", k.server.run}, {"notebook", k.server.cell}} {
			each, err := k.server.added(ctx, open, func(session string) error {
				_, err := way.run(ctx, session, "python", groupBy)
				return err
			})
			if err != nil {
				return nil, err
			}
			n := float64(open)
			s.row(way.name+" "+k.name, each.memory(float64(each.pss)/n), fmt.Sprintf("%.1f", float64(each.processes)/n), fmt.Sprintf("%.1f", float64(each.threads)/n))
			if !each.hidden {
				s.set("memory pandas "+way.name+" "+k.name, float64(each.pss)/n)
			}
		}
	}
	return s, nil
}

// added returns what new sessions use together, each opened by a run. It closes them.
func (s *server) added(ctx context.Context, sessions int, open func(session string) error) (use, error) {
	before, err := s.settled(ctx)
	if err != nil {
		return use{}, err
	}
	for i := range sessions {
		if err := open(fmt.Sprintf("memory-%d", i)); err != nil {
			return use{}, err
		}
	}
	after, err := s.settled(ctx)
	if err != nil {
		return use{}, err
	}
	for i := range sessions {
		if err := s.closeSession(ctx, fmt.Sprintf("memory-%d", i)); err != nil {
			return use{}, err
		}
	}
	return after.minus(before), nil
}

// minus returns what the processes below the server use more than before.
func (u use) minus(before use) use {
	return use{processes: u.processes - before.processes, threads: u.threads - before.threads, pss: u.pss - before.pss,
		agents: u.agents - before.agents, hidden: u.hidden || before.hidden}
}

// room returns an error if the machine cannot hold that many more threads, each of which takes a
// process id.
func room(more float64) error {
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return err
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	tasks, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil {
		return err
	}
	if need := len(tasks) + int(more); need > most*95/100 {
		return fmt.Errorf("they would bring the machine to %d threads, and it has %d process ids (sysctl kernel.pid_max)", need, most)
	}
	return nil
}
