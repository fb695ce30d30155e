package prestart

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
)

const (
	// sweepTimeout is how long the processes of an ended run may take to die. A fork bomb with a
	// small CPU share takes seconds. A server that wants an answer sooner ends the sandbox itself.
	sweepTimeout = 30 * time.Second
	// maxUncertain limits the reads of a process list that changes meanwhile, because of other runs
	// or a stray that forks and exits quickly. Each read finds such a stray with a probability well
	// above one half.
	maxUncertain = 20
)

// sweep kills every stray, a process that belongs to no run, until none is left. It reports whether
// it succeeded. docs/agent.md explains why no stray escapes, and why signals alternate.
func (l *Landlock) sweep(deadline time.Time) bool {
	stopped := false
	defer func() {
		if stopped { // also a run that has begun meanwhile
			l.mu.Lock()
			defer l.mu.Unlock()
			_ = unix.Kill(-1, unix.SIGCONT)
		}
	}()
	seen := map[int]bool{}
	pause := 100 * time.Microsecond
	for round, uncertain := 0, 0; time.Now().Before(deadline); round++ {
		l.mu.Lock()
		alone := len(l.inits) == 0
		switch {
		case alone && len(l.kept) > 0:
			_ = unix.Kill(-1, unix.SIGSTOP)
			stopped = true
		case alone && killAll():
			l.mu.Unlock()
			return true
		}
		strays, certain := l.straysLocked()
		fresh := false
		for _, pid := range strays {
			fresh = fresh || !seen[pid]
			seen[pid] = true
		}
		sig := unix.SIGKILL
		if fresh && !alone && round%4 != 0 {
			sig = unix.SIGSTOP
		}
		for _, pid := range strays {
			_ = unix.Kill(pid, sig)
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // fails for a process that is not yet the agent's child
		}
		if alone {
			l.continueKeptLocked()
		}
		l.mu.Unlock()
		switch {
		case len(strays) > 0:
			uncertain = 0
			time.Sleep(pause)
			pause = min(2*pause, 5*time.Millisecond)
		case certain:
			return true
		default:
			if uncertain++; uncertain == maxUncertain {
				return true
			}
		}
	}
	return false
}

// killAll kills and reaps every process but the agent. It reports whether there was none.
func killAll() bool {
	err := unix.Kill(-1, unix.SIGKILL)
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil || pid <= 0 {
			break
		}
	}
	return err == unix.ESRCH
}

// straysLocked lists the processes that descend from the agent but not from a run-init. It is not
// certain that these are all if a process exited while the list was read.
func (l *Landlock) straysLocked() (strays []int, certain bool) {
	parents := map[int]int{}
	certain = eachProcess(func(pid int) bool {
		parent, ok := parentOf(pid)
		if ok {
			parents[pid] = parent
		}
		return ok
	})
	for pid := range parents {
		stray, known := l.isStray(pid, parents)
		certain = certain && known
		if stray {
			strays = append(strays, pid)
		}
	}
	return strays, certain
}

func (l *Landlock) isStray(pid int, parents map[int]int) (stray, certain bool) {
	self := os.Getpid()
	for range len(parents) + 1 {
		if _, kept := l.kept[pid]; kept || pid == self || l.inits[pid] {
			return false, true
		}
		parent, ok := parents[pid]
		switch {
		case !ok:
			return false, false // its parent has exited; the next look finds it under another
		case parent == self:
			return true, true
		case parent == 0:
			return false, true // an operator started it in the container
		}
		pid = parent
	}
	return false, false
}

// eachProcess calls f with each pid as soon as the kernel reports it: at the end of a longer list,
// its first entries are out of date. It returns whether all calls returned true.
func eachProcess(f func(pid int) bool) bool {
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	all := true
	const oneOrTwo = 64 // bytes
	err = proc.EachNumber(fd, oneOrTwo, func(pid int) bool {
		all = f(pid) && all
		return true
	})
	return err == nil && all
}

// parentOf returns the pid of a process's parent.
func parentOf(pid int) (int, bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var buf [512]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil || n <= 0 {
		return 0, false
	}
	// "<pid> (<any name>) <state> <parent> ..."
	stat := buf[:n]
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	return parent, err == nil
}
