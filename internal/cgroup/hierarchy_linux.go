package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

const (
	mount     = "/sys/fs/cgroup"
	groupName = "mcp-code-sandbox-"
)

var controllers = []string{"memory", "pids", "cpu"}

// accounting is version 1's controller of CPU time, which is often mounted together with cpu.
const (
	accounting     = "cpuacct"
	accountingFile = "cpuacct.usage"
)

// Hierarchy is where one server instance makes its groups.
type Hierarchy struct {
	prefix string            // of the names of this instance's groups
	v2     string            // version 2: the directory that holds the groups
	v1     map[string]string // version 1: that directory by controller
	scope  string            // the unit that systemd made for this process
	noUnit error             // why systemd made none
	// looseTCP says that version 1 cannot limit socket buffers, which its memory limit leaves out.
	looseTCP bool
	looseCPU bool  // version 2 has no cpu controller here
	err      error // why no cgroups can be made
}

// Find looks for a hierarchy in which this process may make groups, by making one. If there is
// none, it asks the user's systemd for one. bus is the socket of the message bus on which to ask;
// "" means not to.
func Find(instance, bus string) *Hierarchy {
	h := &Hierarchy{prefix: groupName + instance + "-"}
	err2 := h.findV2(instance, bus)
	if err2 == nil {
		return h
	}
	if err1 := h.findV1(); err1 != nil {
		h.err = fmt.Errorf("cgroup v2: %w; cgroup v1: %w", err2, err1)
	}
	return h
}

// Available reports whether groups can be made.
func (h *Hierarchy) Available() bool { return h.err == nil }

// LimitsSockets reports whether the memory limit also bounds socket buffers.
func (h *Hierarchy) LimitsSockets() bool { return !h.looseTCP }

// LimitsCPU reports whether groups limit CPU time.
func (h *Hierarchy) LimitsCPU() bool { return !h.looseCPU }

// Scope returns the unit that systemd made for this process, or why it did not. It returns neither
// if Find did not ask.
func (h *Hierarchy) Scope() (unit string, err error) { return h.scope, h.noUnit }

func (h *Hierarchy) String() string {
	switch {
	case h.v2 != "" && h.scope != "":
		return "version 2 at " + h.v2 + ", delegated by systemd"
	case h.v2 != "":
		return "version 2 at " + h.v2
	case h.v1 != nil:
		return "version 1 at " + h.v1["memory"]
	}
	return "none: " + h.err.Error()
}

func (h *Hierarchy) findV2(instance, bus string) error {
	if _, err := os.Stat(mount + "/cgroup.controllers"); err != nil {
		return errors.New("not mounted at " + mount)
	}
	// Root may use the top. Others use the group that was delegated to this process.
	top := h.makeHome(mount, instance)
	if top == nil {
		return nil
	}
	own := h.prepareOwn(instance)
	if own != nil && bus != "" {
		scope := groupName + instance + ".scope"
		if h.noUnit = enterScope(bus, scope); h.noUnit == nil {
			h.scope = scope
			own = h.prepareOwn(instance)
		}
	}
	if own != nil {
		return fmt.Errorf("%w; %w", top, own)
	}
	return nil
}

// prepareOwn prepares the group of this process. The process moves into a leaf first: a group that
// holds processes cannot enable controllers for its children.
func (h *Hierarchy) prepareOwn(instance string) error {
	own, err := ownGroup("")
	if err != nil {
		return err
	}
	if err := moveToLeaf(mount + own); err != nil {
		return err
	}
	return h.makeHome(mount+own, instance)
}

// makeHome makes a directory in base for the instance's groups.
func (h *Hierarchy) makeHome(base, instance string) error {
	dir := filepath.Join(base, groupName+instance)
	if err := prepareV2(base, dir); err != nil {
		return err
	}
	enabled, _ := readWords(filepath.Join(dir, "cgroup.subtree_control"))
	h.v2, h.looseCPU = dir, !slices.Contains(enabled, "cpu")
	return nil
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

// enableControllers enables the controllers for the children of dir. Only cpu may be missing: some
// versions of systemd delegate only the others to users.
func enableControllers(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := readWords(file)
	if err != nil {
		return err
	}
	for _, name := range controllers {
		if slices.Contains(enabled, name) {
			continue
		}
		err := os.WriteFile(file, []byte("+"+name), 0)
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case missing && name == "cpu":
		case missing:
			return fmt.Errorf("%s has no %s controller", dir, name)
		case err != nil:
			return err
		}
	}
	return nil
}

func moveToLeaf(base string) error {
	pids, err := readWords(filepath.Join(base, "cgroup.procs"))
	self := strconv.Itoa(os.Getpid())
	switch {
	case err != nil:
		return err
	case !slices.Equal(pids, []string{self}):
		return fmt.Errorf("%s holds other processes", base)
	}
	leaf := filepath.Join(base, groupName+"server")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte(self), 0)
}

func readWords(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	return strings.Fields(string(text)), err
}

func (h *Hierarchy) findV1() error {
	dirs := map[string]string{}
	for _, name := range controllers {
		own, err := ownGroup(name)
		if err != nil {
			return err
		}
		dir := filepath.Join(mount, name, own)
		if name == "cpu" {
			if _, err := os.Stat(dir); err != nil {
				dir = filepath.Join(mount, "cpu,cpuacct", own)
			}
		}
		err = h.try(dir, func(group string) {
			if name == "memory" {
				_, err := os.Stat(filepath.Join(group, tcpLimit))
				h.looseTCP = err != nil
			}
		})
		if err != nil {
			return err
		}
		dirs[name] = dir
	}
	// If CPU time has its own hierarchy, make groups there as well.
	if _, err := os.Stat(filepath.Join(dirs["cpu"], accountingFile)); err != nil {
		if own, err := ownGroup(accounting); err == nil {
			dir := filepath.Join(mount, accounting, own)
			if h.try(dir, func(string) {}) == nil {
				dirs[accounting] = dir
			}
		}
	}
	h.v1 = dirs
	return nil
}

// try makes a group in dir, shows it to look and removes it.
func (h *Hierarchy) try(dir string, look func(group string)) error {
	group := filepath.Join(dir, h.prefix+"try")
	if err := os.Mkdir(group, 0o755); err != nil {
		return err
	}
	look(group)
	return os.Remove(group)
}

// ownGroup returns this process's group in the hierarchy of a version 1 controller, or, for "", of
// version 2.
func ownGroup(controller string) (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		id, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, path, _ := strings.Cut(rest, ":")
		if controller == "" && id == "0" || controller != "" && slices.Contains(strings.Split(names, ","), controller) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s controller", controller)
}

// Create makes a group with the limits. It returns nil if no groups can be made. On error it leaves
// nothing behind.
func (h *Hierarchy) Create(id string, l sandbox.Limits) (_ *Group, err error) {
	if !h.Available() {
		return nil, nil
	}
	g := &Group{dirs: map[string]string{}, home: h.v1}
	defer func() {
		if err != nil {
			g.Remove()
		}
	}()
	if h.v2 != "" {
		dir := filepath.Join(h.v2, h.prefix+id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		for _, name := range controllers {
			if name != "cpu" || h.LimitsCPU() {
				g.dirs[name] = dir
			}
		}
	}
	for name, home := range h.v1 {
		dir := filepath.Join(home, h.prefix+id)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		g.dirs[name] = dir
	}
	return g, g.limit(l)
}

// Homes lists the directories in which this instance makes groups, for Reap.
func (h *Hierarchy) Homes() []string {
	if h.v2 != "" {
		return []string{h.v2}
	}
	return slices.Sorted(maps.Values(h.v1))
}

// Close removes the instance's own directory.
func (h *Hierarchy) Close() {
	if h.v2 != "" {
		_ = os.Remove(h.v2)
	}
}

// Reap removes the groups of a dead instance in the directories that its Homes returned.
func Reap(instance string, homes []string) {
	for _, home := range homes {
		if !strings.HasPrefix(home, mount+"/") || filepath.Clean(home) != home {
			continue
		}
		groups, _ := filepath.Glob(filepath.Join(home, groupName+instance+"-*"))
		for _, dir := range groups {
			removeGroup(dir)
		}
		if filepath.Base(home) == groupName+instance {
			removeGroup(home)
		}
	}
}
