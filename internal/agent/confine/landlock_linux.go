package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Landlock versions that matter here. Version 1 is not enough: it forbids moving a file from one
// directory to another.
const (
	landlockUsable  = 2
	landlockTrunc   = 3
	LandlockSignals = 6 // from here on, runs cannot signal each other
)

// landlockFiles are the rights that a run has only where a rule grants them. Listing a directory is
// not among them: a rule that let a program list / would let it list everything below.
const landlockFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
	unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
	unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
	unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK |
	unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER

// landlockOnFile are the rights that apply to something other than a directory.
const landlockOnFile = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_READ_FILE |
	unix.LANDLOCK_ACCESS_FS_TRUNCATE

// LandlockVersion returns the version of Landlock to use here, 0 if none, and a description for the
// log.
func LandlockVersion() (int, string) {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case errors.Is(e, unix.ENOSYS):
		return 0, "none: the kernel has no Landlock"
	case errors.Is(e, unix.EOPNOTSUPP):
		return 0, "none: Landlock is switched off in the kernel"
	case e != 0:
		return 0, fmt.Sprintf("none: Landlock is refused (%v); is it in the engine's seccomp profile?", e)
	case v < landlockUsable:
		return 0, fmt.Sprintf("none: Landlock %d is too old", v)
	case v < LandlockSignals:
		return int(v), fmt.Sprintf("landlock %d: files and memory; runs can signal each other before version %d", v, LandlockSignals)
	}
	return int(v), fmt.Sprintf("landlock %d", v)
}

// EnterLandlock confines the calling thread, and what it forks, where a program does not get its
// own namespaces. Version 0 leaves out the Landlock domain. There are no capabilities to drop.
func EnterLandlock(version int, private string) error {
	if err := noNewPrivileges(); err != nil {
		return err
	}
	if version > 0 {
		if err := enterDomain(version, private); err != nil {
			return err
		}
	}
	if err := PeerFilter().Install(); err != nil {
		return err
	}
	return RunFilter().Install()
}

// enterDomain enters a Landlock domain. Inside, nothing can read or trace a process outside, use
// another run's private directory, write below /proc (which holds the OOM score) or, from
// LandlockSignals on, signal a process outside.
func enterDomain(version int, private string) error {
	rules, err := NewDomain(version)
	if err != nil {
		return err
	}
	defer unix.Close(rules)
	if err := AllowPrivate(version, rules, private); err != nil {
		return err
	}
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(rules), 0, 0); e != 0 {
		return fmt.Errorf("enter a Landlock domain: %w", e)
	}
	return nil
}

// fileRights returns landlockFiles and the right that a newer version adds.
func fileRights(version int) uint64 {
	if version >= landlockTrunc {
		return landlockFiles | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	return landlockFiles
}

// NewDomain returns a descriptor of a domain's rules: all but the one for the private directory.
func NewDomain(version int) (_ int, err error) {
	attr := struct{ files, network, scoped uint64 }{files: fileRights(version)}
	if version >= LandlockSignals {
		attr.scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	// An older kernel accepts a longer struct if the fields that it does not know are zero.
	r, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if e != 0 {
		return -1, fmt.Errorf("make Landlock rules: %w", e)
	}
	rules := int(r)
	defer func() {
		if err != nil {
			_ = unix.Close(rules)
		}
	}()
	top, err := os.ReadDir("/")
	if err != nil {
		return -1, fmt.Errorf("make Landlock rules: %w", err)
	}
	for _, entry := range top {
		path := "/" + entry.Name()
		rights := attr.files
		switch {
		case path == RunsDir || entry.Type() == fs.ModeSymlink:
			continue
		case path == "/proc":
			rights &^= unix.LANDLOCK_ACCESS_FS_WRITE_FILE
		case !entry.IsDir():
			rights &= landlockOnFile
		}
		if err := allow(rules, path, rights); err != nil {
			return -1, err
		}
	}
	return rules, nil
}

// AllowPrivate adds the rule for the private directory.
func AllowPrivate(version, rules int, private string) error {
	return allow(rules, filepath.Clean(private), fileRights(version))
}

// allow grants rights on a path and everything below it. A path that cannot be opened needs no
// grant.
func allow(rules int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("add a Landlock rule for %s: %w", path, err)
	}
	defer unix.Close(fd)
	rule := struct {
		rights uint64
		fd     int32
	}{rights, int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(rules), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("add a Landlock rule for %s: %w", path, e)
	}
	return nil
}
