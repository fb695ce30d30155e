package agent

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
)

// grow has a zygote import what a run has just used, for the next one: the names in w.OnUse that the run's code mentions. What a run
// does has no other way to a zygote's memory than to choose among the runner's own libraries.
//
// The zygote goes on as it is, and forks a successor that imports and then takes its place, so that nobody waits. Where
// something is running there is none: its memory might be what a program that holds much has left.
func (zs *zygotes) grow(name string, code []byte) {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	w, living := zs.known[name], zs.living[name]
	if w == nil || len(living) == 0 {
		return
	}
	z := living[len(living)-1]
	more := slices.DeleteFunc(mentioned(code, w.OnUse), func(n string) bool { return z.extra[n] || zs.hopeless[n] })
	if len(more) == 0 || !z.idleNow() {
		return
	}
	ours, theirs, err := packetSocket()
	if err != nil {
		return
	}
	defer theirs.Close()
	next := &zygote{start: z.start, conn: ours, lone: true, extra: map[string]bool{}}
	maps.Copy(next.extra, z.extra)
	for _, n := range more {
		next.extra[n] = true
	}
	if z.send("grow "+strings.Join(more, " "), theirs) != nil {
		_ = ours.Close()
		return
	}
	zs.addLocked(name, next)
}

// removeLocked forgets a zygote that has ended. One that never came up would not do so next time either.
func (zs *zygotes) removeLocked(name string, z *zygote) {
	zs.living[name] = slices.DeleteFunc(zs.living[name], func(other *zygote) bool { return other == z })
	if !z.lone || z.isStarted() {
		return
	}
	if zs.hopeless == nil {
		zs.hopeless, zs.next = map[string]bool{}, map[string]time.Time{}
	}
	if maps.Copy(zs.hopeless, z.extra); z.proc != nil {
		zs.next[name] = time.Now().Add(zygotePause)
	}
}

// idleNow reports whether the zygote is ready and none of its children lives.
func (z *zygote) idleNow() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.started && !z.gone && len(z.children) == 0 && len(z.asked) == 0
}

func (z *zygote) isStarted() bool {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.started
}

// reap waits for a successor: its parent has left it to the agent, as process 1.
func (z *zygote) reap() {
	if z.pid <= 0 {
		return
	}
	_ = unix.Kill(z.pid, unix.SIGKILL)
	proc.AwaitExit(z.pid)
	_, _ = syscall.Wait4(z.pid, nil, 0, nil)
}

// mentioned are the modules all of whose names' parts are words of the code.
func mentioned(code []byte, modules []string) (found []string) {
	for _, m := range modules {
		if !slices.ContainsFunc(strings.Split(m, "."), func(part string) bool { return !hasWord(code, part) }) {
			found = append(found, m)
		}
	}
	return found
}

func hasWord(code []byte, word string) bool {
	letter := func(i int) bool {
		if i < 0 || i >= len(code) {
			return false
		}
		c := code[i]
		return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
	}
	for at := 0; ; {
		i := bytes.Index(code[at:], []byte(word))
		if i < 0 {
			return false
		}
		if at += i; !letter(at-1) && !letter(at+len(word)) {
			return true
		}
		at++
	}
}

// packetSocket makes the connection to a zygote.
func packetSocket() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs = os.NewFile(uintptr(fds[1]), "agent")
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		_ = theirs.Close()
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "zygote"), theirs, nil
}
