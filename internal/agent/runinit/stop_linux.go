package runinit

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// maxDying is the memory of a program that nobody waits for while the kernel frees it. It counts
// against the next run until then.
const maxDying = 32 << 20

// awaitStop returns how a booted program ended. To end a process takes milliseconds, most of them
// in the kernel. So a program that has nothing left to do may stop itself, with its exit status as
// its name. All its threads have stopped then, and it is killed: none of its code can run again.
func (p *program) awaitStop() (wire.Exit, error) {
	proc.ReserveThreads(waitThreads)
	for {
		ws, ru, err := awaitStatus(p.pid, syscall.WUNTRACED)
		if err != nil {
			return wire.Exit{}, err
		}
		exit := ExitOf(ws)
		if ws.Stopped() {
			var ok bool
			if exit.Code, ok = exitName(p.pid); !ok {
				continue // it stopped for a reason of its own
			}
			if err := p.kill(&ru); err != nil {
				return wire.Exit{}, err
			}
		}
		exit.MaxRSSB = ru.Maxrss << 10
		if p.dying { // otherwise it is counted with the children
			exit.UserUS, exit.SysUS = ru.Utime.Nano()/1000, ru.Stime.Nano()/1000
		}
		return exit, nil
	}
}

// kill ends the stopped program. It waits for the end, and updates the usage, unless the program is
// the last of the run and cheap to free.
func (p *program) kill(ru *syscall.Rusage) (err error) {
	p.dying = memoryStatus(p.pid, "RssAnon:") <= maxDying && isCheapToFree() && isLast(p.pid)
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil || p.dying {
		return err
	}
	_, *ru, err = awaitStatus(p.pid, 0)
	return err
}

// exitName returns the exit status in the name of a process, such as "exit 0".
func exitName(pid int) (code int, ok bool) {
	name, err := proc.ReadSmall(fmt.Sprintf("/proc/%d/comm", pid), make([]byte, 32))
	if err != nil {
		return 0, false
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(string(name)), "exit ")
	n, err := strconv.ParseUint(text, 10, 8)
	return int(n), ok && err == nil
}

// isLast reports whether a stopped process and run-init are the only ones of the run. A process can
// hide from the list by forking, so none may have been created meanwhile.
func isLast(pid int) bool {
	dir, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(dir)
	before, last := lastPID(), true
	err = proc.EachNumber(dir, 4<<10, func(n int) bool {
		last = n == 1 || n == pid
		return last
	})
	return err == nil && last && before > 0 && before == lastPID()
}

// lastPID returns the newest pid of run-init's pid namespace, or 0 if the kernel does not say.
func lastPID() int {
	text, _ := proc.ReadSmall("/proc/loadavg", make([]byte, 128))
	fields := strings.Fields(string(text))
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[len(fields)-1])
	return n
}
