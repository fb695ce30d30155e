package jail

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// cgroups limits sandboxes by control groups, version 2 or 1, whichever is writable. It is written
// by hand because the libraries for it bring D-Bus and eBPF along and cannot start a process inside
// a version 1 group without a moment outside it.
type cgroups struct {
	prefix string // of the names of this instance's groups
	// v2 is the directory that holds this instance's groups, or empty.
	v2 string
	// v1 maps a controller to the directory that holds this instance's groups.
	v1 map[string]string
	// looseTCP says that version 1 is without a limit for the buffers of sockets, which its memory
	// limit leaves out.
	looseTCP bool
	// why is the reason why there are no cgroups.
	why error
}

var controllers = []string{"memory", "pids", "cpu"}

// accounting is version 1's controller of CPU time, which is often one with cpu.
const (
	accounting     = "cpuacct"
	accountingFile = "cpuacct.usage"
)

const groupName = "mcp-code-sandbox-"

// Version 1 counts the buffers of TCP and UDP sockets apart from all other memory: they have a
// limit of their own, which is a part of the memory limit. Unix sockets and pipes count as memory.
const (
	tcpLimit = "memory.kmem.tcp.limit_in_bytes"
	tcpPart  = 4
)

// findCgroups looks for a hierarchy in which this process may make groups. It tries by making one.
func findCgroups(instance string) *cgroups {
	c := &cgroups{prefix: groupName + instance + "-"}
	err2 := c.findV2(instance)
	if err2 == nil {
		return c
	}
	err1 := c.findV1()
	if err1 == nil {
		return c
	}
	c.why = fmt.Errorf("cgroup v2: %w; cgroup v1: %w", err2, err1)
	return c
}

func (c *cgroups) available() bool { return c.why == nil }

func (c *cgroups) String() string {
	switch {
	case c.v2 != "":
		return "version 2 at " + c.v2
	case c.v1 != nil:
		return "version 1 at " + c.v1["memory"]
	}
	return "none: " + c.why.Error()
}

func (c *cgroups) findV2(instance string) error {
	const mount = "/sys/fs/cgroup"
	if _, err := os.Stat(mount + "/cgroup.controllers"); err != nil {
		return errors.New("not mounted at " + mount)
	}
	own, err := ownCgroup("")
	if err != nil {
		return err
	}
	// At the top where root may do so; else below the group that was delegated to this process,
	// after moving this process into a leaf: a group with processes of its own cannot hand out
	// controllers.
	var errs []error
	for _, base := range []string{mount, mount + own} {
		if base == mount+own && base != mount {
			_ = moveToLeaf(base)
		}
		dir := filepath.Join(base, groupName+instance)
		if err := prepareV2(base, dir); err != nil {
			errs = append(errs, err)
			continue
		}
		c.v2 = dir
		return nil
	}
	return errors.Join(errs...)
}

func prepareV2(base, dir string) error {
	if err := enableControllers(base); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := enableControllers(dir); err != nil {
		_ = os.Remove(dir)
		return err
	}
	return nil
}

func enableControllers(dir string) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	for _, name := range controllers {
		if !hasWord(string(have), name) {
			if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
				return err
			}
		}
	}
	return nil
}

func moveToLeaf(base string) error {
	leaf := filepath.Join(base, "mcp-code-sandbox-server")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

func (c *cgroups) findV1() error {
	dirs := map[string]string{}
	for _, name := range controllers {
		own, err := ownCgroup(name)
		if err != nil {
			return err
		}
		dir := filepath.Join("/sys/fs/cgroup", name, own)
		if name == "cpu" {
			if _, err := os.Stat(dir); err != nil {
				dir = filepath.Join("/sys/fs/cgroup/cpu,cpuacct", own)
			}
		}
		try := filepath.Join(dir, c.prefix+"try")
		if err := os.Mkdir(try, 0o755); err != nil {
			return err
		}
		if name == "memory" {
			_, err := os.Stat(filepath.Join(try, tcpLimit))
			c.looseTCP = err != nil
		}
		if err := os.Remove(try); err != nil {
			return err
		}
		dirs[name] = dir
	}
	c.v1 = dirs
	c.addAccounting()
	return nil
}

// addAccounting adds the controller that counts CPU time, where version 1 has it apart from cpu.
func (c *cgroups) addAccounting() {
	if _, err := os.Stat(filepath.Join(c.v1["cpu"], accountingFile)); err == nil {
		return
	}
	own, err := ownCgroup(accounting)
	if err != nil {
		return
	}
	dir := filepath.Join("/sys/fs/cgroup", accounting, own)
	try := filepath.Join(dir, c.prefix+"try")
	if os.Mkdir(try, 0o755) == nil && os.Remove(try) == nil {
		c.v1[accounting] = dir
	}
}

// ownCgroup is this process's group in the hierarchy of a controller, "" being version 2.
func ownCgroup(controller string) (string, error) {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		id, rest, _ := strings.Cut(sc.Text(), ":")
		names, path, _ := strings.Cut(rest, ":")
		if controller == "" && id == "0" || controller != "" && hasWord(strings.ReplaceAll(names, ",", " "), controller) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s controller", controller)
}

func hasWord(s, word string) bool {
	for _, w := range strings.Fields(s) {
		if w == word {
			return true
		}
	}
	return false
}

// cgroup is the group of one sandbox. A nil *cgroup limits nothing.
type cgroup struct {
	dirs map[string]string // by controller; the same directory for all on version 2
	home map[string]string // version 1: where the starting thread goes back to
}

// create makes a group with the limits. On error nothing is left.
func (c *cgroups) create(id string, l sandbox.Limits) (_ *cgroup, err error) {
	if !c.available() {
		return nil, nil
	}
	g := &cgroup{dirs: map[string]string{}}
	defer func() {
		if err != nil {
			g.remove()
		}
	}()
	if c.v2 != "" {
		dir := filepath.Join(c.v2, c.prefix+id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		for _, name := range controllers {
			g.dirs[name] = dir
		}
	} else {
		g.home = c.v1
		for name, home := range c.v1 {
			dir := filepath.Join(home, c.prefix+id)
			if err := os.Mkdir(dir, 0o755); err != nil {
				return nil, err
			}
			g.dirs[name] = dir
		}
	}
	return g, g.limit(l)
}

func (g *cgroup) v2() bool { return g.home == nil }

func (g *cgroup) limit(l sandbox.Limits) error {
	const period = 100_000
	quota := int64(l.CPUs * period)
	var set [][3]string // controller, file, value
	if l.MemoryBytes > 0 {
		max := strconv.FormatInt(l.MemoryBytes, 10)
		if g.v2() {
			set = append(set, [3]string{"memory", "memory.max", max})
		} else {
			set = append(set, [3]string{"memory", "memory.limit_in_bytes", max})
			if _, err := os.Stat(filepath.Join(g.dirs["memory"], tcpLimit)); err == nil { // else Probe says so
				set = append(set, [3]string{"memory", tcpLimit, strconv.FormatInt(l.MemoryBytes/tcpPart, 10)})
			}
		}
	}
	if l.PIDs > 0 {
		set = append(set, [3]string{"pids", "pids.max", strconv.Itoa(l.PIDs)})
	}
	if quota > 0 {
		if g.v2() {
			set = append(set, [3]string{"cpu", "cpu.max", fmt.Sprintf("%d %d", quota, period)})
		} else {
			set = append(set, [3]string{"cpu", "cpu.cfs_period_us", strconv.Itoa(period)},
				[3]string{"cpu", "cpu.cfs_quota_us", strconv.FormatInt(quota, 10)})
		}
	}
	for _, s := range set {
		if err := os.WriteFile(filepath.Join(g.dirs[s[0]], s[1]), []byte(s[2]), 0); err != nil {
			return err
		}
	}
	// Swap would only move the limit; kernels without swap accounting have no such file.
	if l.MemoryBytes > 0 {
		if g.v2() {
			_ = os.WriteFile(filepath.Join(g.dirs["memory"], "memory.swap.max"), []byte("0"), 0)
		} else {
			_ = os.WriteFile(filepath.Join(g.dirs["memory"], "memory.memsw.limit_in_bytes"), []byte(strconv.FormatInt(l.MemoryBytes, 10)), 0)
		}
	}
	return nil
}

// start calls fork so that the process it starts is in the group from its first instruction. It
// runs on the launcher's thread: version 1 moves that thread in and out again.
func (g *cgroup) start(attr *syscall.SysProcAttr, fork func() error) error {
	if g == nil {
		return fork()
	}
	if g.v2() {
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

// add moves a process into the group.
func (g *cgroup) add(pid int) error {
	if g == nil {
		return nil
	}
	if g.v2() {
		return os.WriteFile(filepath.Join(g.dirs["memory"], "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return err
		}
	}
	return nil
}

// usage reads the group's counters.
func (g *cgroup) usage() (sandbox.Usage, error) {
	if g == nil {
		return sandbox.Usage{}, errors.ErrUnsupported
	}
	var u sandbox.Usage
	events := "memory.oom_control"
	if g.v2() {
		events = "memory.events"
	}
	u.OOMKills = readCounter(filepath.Join(g.dirs["memory"], events), "oom_kill")
	if g.socketsExceeded() {
		u.OOMKills++ // by watchSockets
	}
	if text, err := os.ReadFile(filepath.Join(g.dirs["pids"], "pids.current")); err == nil {
		u.PIDs, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	u.PIDsRefused = readCounter(filepath.Join(g.dirs["pids"], "pids.events"), "max")
	return u, nil
}

// cpuTime is the CPU time that the group's processes have used, those that have ended included.
func (g *cgroup) cpuTime() (time.Duration, error) {
	if g == nil {
		return 0, errors.ErrUnsupported
	}
	if g.v2() {
		return time.Duration(readCounter(filepath.Join(g.dirs["cpu"], "cpu.stat"), "usage_usec")) * time.Microsecond, nil
	}
	text, err := os.ReadFile(filepath.Join(cmp.Or(g.dirs[accounting], g.dirs["cpu"]), accountingFile))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return time.Duration(n), err
}

// weigh gives the group a part of the weight that a new group has. The kernel bounds how small that
// can be.
func (g *cgroup) weigh(share float64) error {
	if g == nil {
		return errors.ErrUnsupported
	}
	file, full, least := "cpu.shares", 1024.0, 2
	if g.v2() {
		file, full, least = "cpu.weight", 100, 1
	}
	weight := max(int(full*share), least)
	return os.WriteFile(filepath.Join(g.dirs["cpu"], file), []byte(strconv.Itoa(weight)), 0)
}

// forking counts the processes that have children and compute, as their own parents do: those that
// divide work wait for it.
func (g *cgroup) forking() (int, error) {
	if g == nil {
		return 0, errors.ErrUnsupported
	}
	procs, err := os.ReadFile(filepath.Join(g.dirs["pids"], "cgroup.procs"))
	busy, parent, hasChild := map[string]bool{}, map[string]string{}, map[string]bool{}
	for pid := range strings.FieldsSeq(string(procs)) {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat") // "<pid> (<any name>) <state> <parent> ..."
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(f) < 2 {
			continue // it has ended
		}
		busy[pid] = f[0] == "R" || f[0] == "D" // D is for a lock of the kernel's, in a fork
		parent[pid], hasChild[f[1]] = f[1], true
	}
	n := 0
	for pid := range hasChild {
		if busy[pid] && busy[parent[pid]] {
			n++
		}
	}
	return n, err
}

// kill kills the group's processes but one. A process that is being killed forks no more, so one
// look is enough.
func (g *cgroup) kill(spared int) {
	if g == nil {
		return
	}
	procs, _ := os.ReadFile(filepath.Join(g.dirs["pids"], "cgroup.procs"))
	for p := range strings.FieldsSeq(string(procs)) {
		if pid, err := strconv.Atoi(p); err == nil && pid > 1 && pid != spared && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// remove deletes the group after its processes have ended. The kernel may need a moment to let go
// of them.
func (g *cgroup) remove() {
	if g == nil {
		return
	}
	for _, dir := range g.dirs {
		removeGroup(dir)
	}
}

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

// killGroup kills what is still in a group of ours.
func killGroup(dir string) {
	if os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) == nil {
		return
	}
	procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for _, p := range strings.Fields(string(procs)) {
		if pid, err := strconv.Atoi(p); err == nil && pid > 1 && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// homes lists the directories in which this instance makes groups, for the one that cleans up after
// it.
func (c *cgroups) homes() []string {
	if c.v2 != "" {
		return []string{c.v2}
	}
	return slices.Sorted(maps.Values(c.v1))
}

// close removes what the instance made for itself.
func (c *cgroups) close() {
	if c.v2 != "" {
		_ = os.Remove(c.v2)
	}
}

// reapGroups removes the groups of a dead instance below the directories it named.
func reapGroups(instance string, homes []string) {
	for _, home := range homes {
		if !strings.HasPrefix(home, "/sys/fs/cgroup/") || filepath.Clean(home) != home {
			continue
		}
		left, _ := filepath.Glob(filepath.Join(home, groupName+instance+"-*"))
		for _, dir := range left {
			removeGroup(dir)
		}
		if filepath.Base(home) == groupName+instance {
			removeGroup(home)
		}
	}
}

// readCounter reads a number from a file of "name value" lines.
func readCounter(path, name string) uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for _, line := range strings.Split(string(b), "\n") {
		if k, v, ok := strings.Cut(line, " "); ok && k == name {
			n, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}
