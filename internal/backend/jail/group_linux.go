package jail

import (
	"syscall"

	"mcp-code-sandbox/internal/sandbox"
)

// Group is a control group for processes that are not the jail's: those of environments that
// isolate themselves. What a killed server leaves in it is Reap's to remove, as with a sandbox's.
type Group struct{ g *cgroup }

// NewGroup makes a group with the limits. It is nil where there are no control groups.
func (b *Backend) NewGroup(id string, l sandbox.Limits) (*Group, error) {
	g, err := b.cgroups.create(id, l)
	if g == nil || err != nil {
		return nil, err
	}
	return &Group{g}, nil
}

// Start calls fork so that the process it starts is in the group from its first instruction. The
// caller's goroutine must be locked to its thread.
func (g *Group) Start(attr *syscall.SysProcAttr, fork func() error) error {
	return g.g.start(attr, fork)
}

// Usage reads the group's counters.
func (g *Group) Usage() (sandbox.Usage, error) { return g.g.usage() }

// Close kills what is in the group and removes it.
func (g *Group) Close() {
	for _, dir := range g.g.dirs {
		killGroup(dir)
	}
	g.g.remove()
}
