package confine

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limit is an rlimit on the processes of a run.
type Limit struct {
	Name     string
	Resource int
	Max      uint64
}

// earlyLimits hold for every process of every run, from before run-init drops its privileges.
var earlyLimits = []Limit{
	{"RLIMIT_CORE", unix.RLIMIT_CORE, 1}, // 0 would still start the host's crash handler, as host root
	{"RLIMIT_SIGPENDING", unix.RLIMIT_SIGPENDING, 1024},
	{"RLIMIT_MEMLOCK", unix.RLIMIT_MEMLOCK, 64 << 10},
	{"RLIMIT_MSGQUEUE", unix.RLIMIT_MSGQUEUE, 0},
}

// OpenFiles also limits the descriptors in flight over sockets, which the kernel counts per uid.
// Run-init sets it only after it has sent its own descriptors, so that the descriptors another run
// has in flight cannot make it fail.
var OpenFiles = Limit{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, 4096}

// FixedLimits are earlyLimits and OpenFiles.
var FixedLimits = append(slices.Clone(earlyLimits), OpenFiles)

// SetLimits lowers the limits of the calling process. Programs that it starts inherit them.
func SetLimits(limits ...Limit) error {
	for _, l := range settable(limits) {
		var old syscall.Rlimit
		if err := syscall.Getrlimit(l.Resource, &old); err != nil {
			return fmt.Errorf("read %s: %w", l.Name, err)
		}
		v := min(l.Max, old.Max)
		if err := syscall.Setrlimit(l.Resource, &syscall.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("set %s: %w", l.Name, err)
		}
	}
	return nil
}

// SetLimitsOf lowers the limits of another process.
func SetLimitsOf(pid int, limits ...Limit) error {
	for _, l := range limits {
		var old unix.Rlimit
		err := unix.Prlimit(pid, l.Resource, nil, &old)
		if err == nil {
			v := min(l.Max, old.Max)
			err = unix.Prlimit(pid, l.Resource, &unix.Rlimit{Cur: v, Max: v}, nil)
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", l.Name, err)
		}
	}
	return nil
}

// LimitsByName returns the limits that this kernel can set, as a zygote reads them.
func LimitsByName(limits []Limit) map[string]uint64 {
	named := map[string]uint64{}
	for _, l := range settable(limits) {
		named[l.Name] = l.Max
	}
	return named
}

// settable leaves out the limits that this kernel lets nobody set, not even to their current value.
// Linux can set all of them; gVisor has its own bounds instead (see SECURITY.md).
func settable(limits []Limit) []Limit {
	return slices.DeleteFunc(slices.Clone(limits), func(l Limit) bool {
		if l.Resource != unix.RLIMIT_SIGPENDING && l.Resource != unix.RLIMIT_MSGQUEUE {
			return false
		}
		var now syscall.Rlimit
		return syscall.Getrlimit(l.Resource, &now) == nil && errors.Is(syscall.Setrlimit(l.Resource, &now), unix.EPERM)
	})
}
