package cgroup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/sandbox"
)

// Version 1 does not count the buffers of TCP and UDP sockets as memory. They have a separate
// limit, which is a fraction of the memory limit. Unix sockets and pipes count as memory.
const (
	tcpLimit    = "memory.kmem.tcp.limit_in_bytes"
	tcpFraction = 4
)

// Group is one group. A nil Group limits nothing, and has no counters.
type Group struct {
	dirs map[string]string // by controller; version 2 has one directory for all, and may lack cpu
	home map[string]string // version 1: the groups to which the starting thread returns

	memoryBytes int64 // its limit; zero: none
}

func (g *Group) isV2() bool { return g.home == nil }

func (g *Group) file(controller, name string) string { return filepath.Join(g.dirs[controller], name) }

func (g *Group) write(controller, name string, value any) error {
	return os.WriteFile(g.file(controller, name), fmt.Append(nil, value), 0)
}

func (g *Group) limit(l sandbox.Limits) error {
	g.memoryBytes = l.MemoryBytes
	var errs []error
	set := func(controller, name string, value any) {
		errs = append(errs, g.write(controller, name, value))
	}
	// Swap would only move the memory limit. Kernels without swap accounting have no file for it.
	switch {
	case l.MemoryBytes <= 0:
	case g.isV2():
		set("memory", "memory.max", l.MemoryBytes)
		_ = g.write("memory", "memory.swap.max", 0)
	default:
		set("memory", "memory.limit_in_bytes", l.MemoryBytes)
		_ = g.write("memory", "memory.memsw.limit_in_bytes", l.MemoryBytes)
		if _, err := os.Stat(g.file("memory", tcpLimit)); err == nil { // otherwise LimitsSockets is false
			set("memory", tcpLimit, l.MemoryBytes/tcpFraction)
		}
	}
	if l.PIDs > 0 {
		set("pids", "pids.max", l.PIDs)
	}
	const period = 100_000 // microseconds
	quota := int64(l.CPUs * period)
	switch {
	case quota <= 0 || g.dirs["cpu"] == "":
	case g.isV2():
		set("cpu", "cpu.max", fmt.Sprintf("%d %d", quota, period))
	default:
		set("cpu", "cpu.cfs_period_us", period)
		set("cpu", "cpu.cfs_quota_us", quota)
	}
	return errors.Join(errs...)
}

// Start calls fork so that the process it starts is in the group from its first instruction. The
// caller's goroutine must be locked to its thread: version 1 moves the thread into the group and
// back.
func (g *Group) Start(attr *syscall.SysProcAttr, fork func() error) error {
	if g == nil {
		return fork()
	}
	if g.isV2() {
		dir, err := os.Open(g.dirs["memory"])
		if err != nil {
			return err
		}
		defer dir.Close()
		attr.UseCgroupFD = true
		attr.CgroupFD = int(dir.Fd())
		return fork()
	}
	move := func(dirs map[string]string) error {
		for _, dir := range dirs {
			if err := os.WriteFile(filepath.Join(dir, "tasks"), []byte("0"), 0); err != nil {
				return err
			}
		}
		return nil
	}
	err := move(g.dirs)
	if err == nil {
		err = fork()
	}
	return errors.Join(err, move(g.home))
}

// Entries returns files to which a process with one thread writes "0" to enter the group. Version 2
// has none: call Add. A process that another one moves has to wait until no process of the machine
// forks or exits, and those of a full group may take seconds.
func (g *Group) Entries() (files []*os.File, err error) {
	if g == nil || g.isV2() {
		return nil, nil
	}
	for _, dir := range g.dirs {
		f, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// Add moves a process into the group.
func (g *Group) Add(pid int) error {
	if g == nil {
		return nil
	}
	for controller := range g.dirs {
		if err := g.write(controller, "cgroup.procs", pid); err != nil {
			return err
		}
		if g.isV2() {
			break // all controllers share the directory
		}
	}
	return nil
}

// Usage reads the group's counters.
func (g *Group) Usage() (u sandbox.Usage, err error) {
	if g == nil {
		return u, errors.ErrUnsupported
	}
	events := "memory.oom_control"
	if g.isV2() {
		events = "memory.events"
	}
	u.OOMKills, _ = proc.ReadCounter(g.file("memory", events), "oom_kill")
	if g.SocketsExceeded() {
		u.OOMKills++ // by WatchSockets
	}
	pids, _ := readNumber(g.file("pids", "pids.current"))
	u.PIDs = int(pids)
	u.PIDsRefused, _ = proc.ReadCounter(g.file("pids", "pids.events"), "max")
	return u, nil
}

// CPUTime returns the CPU time of the group's processes, including those that have ended.
func (g *Group) CPUTime() (time.Duration, error) {
	switch {
	case g == nil:
		return 0, errors.ErrUnsupported
	case g.isV2():
		n, _ := proc.ReadCounter(g.file("memory", "cpu.stat"), "usage_usec") // also without the cpu controller
		return time.Duration(n) * time.Microsecond, nil
	}
	n, err := readNumber(filepath.Join(cmp.Or(g.dirs[accounting], g.dirs["cpu"]), accountingFile))
	return time.Duration(n), err
}

// Weigh sets the group's weight to a fraction of a new group's. The kernel bounds how small it can
// be.
func (g *Group) Weigh(share float64) error {
	switch {
	case g == nil || g.dirs["cpu"] == "":
		return errors.ErrUnsupported
	case g.isV2():
		return g.write("cpu", "cpu.weight", max(int(100*share), 1))
	}
	return g.write("cpu", "cpu.shares", max(int(1024*share), 2))
}

// Forking counts the running processes that have both a running parent and a child. Programs that
// divide work wait for their children instead.
func (g *Group) Forking() (n int, err error) {
	if g == nil {
		return 0, errors.ErrUnsupported
	}
	procs, err := os.ReadFile(g.file("pids", "cgroup.procs"))
	busy, parent, hasChild := map[string]bool{}, map[string]string{}, map[string]bool{}
	for pid := range strings.FieldsSeq(string(procs)) {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat") // "<pid> (<any name>) <state> <parent> ..."
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) < 2 {
			continue // it has ended
		}
		busy[pid] = f[0] == "R" || f[0] == "D" // D: a fork waits for a lock in the kernel
		parent[pid], hasChild[f[1]] = f[1], true
	}
	for pid := range hasChild {
		if busy[pid] && busy[parent[pid]] {
			n++
		}
	}
	return n, err
}

// Kill kills all processes of the group except one. A process that is being killed cannot fork, so
// one pass is enough.
func (g *Group) Kill(except int) {
	if g != nil {
		killProcesses(g.dirs["pids"], except)
	}
}

// Close kills the group's processes and removes it.
func (g *Group) Close() {
	if g == nil {
		return
	}
	for _, dir := range g.dirs {
		killGroup(dir)
	}
	g.Remove()
}

// Remove removes the group after its processes have ended.
func (g *Group) Remove() {
	if g == nil {
		return
	}
	for _, dir := range g.dirs {
		removeGroup(dir)
	}
}

// removeGroup retries for two seconds: the kernel may need a moment to release ended processes.
func removeGroup(dir string) {
	deadline := time.Now().Add(2 * time.Second)
	for wait := time.Millisecond; ; wait *= 2 {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) || time.Now().After(deadline) {
			return
		}
		killGroup(dir)
		time.Sleep(min(wait, 50*time.Millisecond))
	}
}

func killGroup(dir string) {
	if os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) != nil {
		killProcesses(dir, 0)
	}
}

// killProcesses kills all processes in a directory except one, and never this process.
func killProcesses(dir string, except int) {
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for p := range strings.FieldsSeq(string(procs)) {
		if pid, err := strconv.Atoi(p); err == nil && pid > 1 && pid != except && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// readNumber reads a file that holds one number.
func readNumber(path string) (uint64, error) {
	text, err := proc.ReadSmall(path, make([]byte, 64))
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
}
