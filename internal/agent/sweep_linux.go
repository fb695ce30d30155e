package agent

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sweepTimeout is how long the processes of an ended run may take to die. A bomb under a small share of a busy
	// machine's CPUs takes seconds; a server that wants an answer sooner ends the sandbox itself.
	sweepTimeout = 30 * time.Second
	// maxUncertain bounds the looks at a process list that changes while it is read: by runs beside, or by a stray that
	// forks and ends faster than it can be looked at. Each look finds such a stray with a chance far over one half.
	maxUncertain = 20
)

// sweep kills every stray, a process that belongs to no living run, until there is none. It says whether it succeeded.
//
// No process can be overlooked for good: one that is killed leaves its children to the agent, and a look that
// found a process gone before it could be read proves nothing. Against those who multiply, signals alternate:
// a stopped process does not make room under the limit of processes for a new one, but can be
// continued by another; a killed one cannot. Where no run is left, one call kills all, and no fork gets past it; that
// includes what an operator has put into the sandbox as its user. Where a zygote is left, one call stops all, and only it and what
// it has made for the next run go on before the end.
func (s *shared) sweep(deadline time.Time) bool {
	stopped := false
	defer func() {
		if stopped { // also those that are neither strays nor kept, whoever may have begun a run meanwhile
			s.mu.Lock()
			defer s.mu.Unlock()
			_ = unix.Kill(-1, unix.SIGCONT)
		}
	}()
	seen := map[int]bool{}
	pause := 100 * time.Microsecond
	for round, uncertain := 0, 0; time.Now().Before(deadline); round++ {
		s.mu.Lock()
		alone := len(s.inits) == 0
		switch {
		case alone && len(s.kept) > 0:
			_ = unix.Kill(-1, unix.SIGSTOP)
			stopped = true
		case alone && killAll():
			s.mu.Unlock()
			return true
		}
		strays, certain := s.strays()
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
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // fails for those that are not yet the agent's
		}
		if alone {
			s.goOn()
		}
		s.mu.Unlock()
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

// killAll kills and reaps everything but the agent, which has no run. It says whether there was nothing.
func killAll() bool {
	err := unix.Kill(-1, unix.SIGKILL)
	for {
		if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err != nil || pid <= 0 {
			break
		}
	}
	return err == unix.ESRCH
}

// strays lists the processes whose ancestors lead to the agent past no living run's init. It is not certain
// that these are all if a process went while the list was read. s.mu is held.
func (s *shared) strays() (strays []int, certain bool) {
	parents := map[int]int{}
	certain = eachProcess(func(pid int) bool {
		parent, ok := parentOf(pid)
		if ok {
			parents[pid] = parent
		}
		return ok
	})
	for pid := range parents {
		stray, known := s.isStray(pid, parents)
		certain = certain && known
		if stray {
			strays = append(strays, pid)
		}
	}
	return strays, certain
}

func (s *shared) isStray(pid int, parents map[int]int) (stray, certain bool) {
	self := os.Getpid()
	for range len(parents) + 1 {
		if _, kept := s.kept[pid]; kept || pid == self || s.inits[pid] {
			return false, true
		}
		parent, ok := parents[pid]
		switch {
		case !ok:
			return false, false // its parent has gone; the next look finds it under another
		case parent == self:
			return true, true
		case parent == 0:
			return false, true // the engine's operator put it here
		}
		pid = parent
	}
	return false, false
}

// eachProcess calls f with the number of each process, as soon as the kernel has told it. It returns whether all
// calls did.
func eachProcess(f func(pid int) bool) bool {
	fd, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	all := true
	var names []string
	buf := make([]byte, 64) // of one or two processes: by the end of a longer list its first ones are old
	for {
		n, err := unix.Getdents(fd, buf)
		switch {
		case err == unix.EINVAL && len(buf) < 1024: // a longer name, before the processes
			buf = make([]byte, 1024)
			continue
		case err != nil:
			return false
		case n == 0:
			return all
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				all = f(pid) && all
			}
		}
	}
}

// parentOf reads the number of a process's parent.
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
