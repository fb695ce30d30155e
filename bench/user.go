//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/proc"
)

// ordinaryUser starts programs as a user without rights, for a bench that runs as root. The account
// and its subordinate ids exist only in the mount namespace of one thread, and end with it.
type ordinaryUser struct {
	uid    uint32
	home   string
	thread *proc.Thread
}

const (
	// userID and firstSubordinate are ids that no distribution assigns.
	userID           = 59321
	firstSubordinate = 2_000_000_000
	subordinates     = 65536
)

// newOrdinaryUser makes the user's home in dir. The user can reach the needed paths, even if they
// are below directories of root's.
func newOrdinaryUser(dir string, needed []string) (*ordinaryUser, error) {
	u := &ordinaryUser{uid: userID, home: filepath.Join(dir, "home"), thread: proc.NewThread()}
	err := u.makeDir(u.home)
	if err == nil {
		err = u.thread.Do(func() error { return u.enterOwnMounts(filepath.Join(dir, "etc"), needed) })
	}
	if err != nil {
		u.close()
		return nil, fmt.Errorf("a mount namespace for the user: %w", err)
	}
	return u, nil
}

// start starts a command as the user. A nil user starts it as the user of this process. A command
// with a Pdeathsig gets the signal when the user is closed.
func (u *ordinaryUser) start(cmd *exec.Cmd) error {
	if u == nil {
		return cmd.Start()
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.uid, Gid: u.uid}
	return u.thread.Do(cmd.Start)
}

// environ returns the variables of the user's programs.
func (u *ordinaryUser) environ() []string {
	if u == nil {
		return os.Environ()
	}
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "XDG_") && !strings.HasPrefix(kv, "DBUS_") {
			env = append(env, kv)
		}
	}
	return append(env, "HOME="+u.home, "USER=bench", "LOGNAME=bench")
}

// makeDir makes a directory that belongs to the user.
func (u *ordinaryUser) makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if u == nil {
		return nil
	}
	return os.Chown(dir, int(u.uid), int(u.uid))
}

func (u *ordinaryUser) close() {
	if u != nil {
		u.thread.Close()
	}
}

// enterOwnMounts moves the calling thread to a mount namespace where the user has an account, and
// where the needed paths can be reached. The files of the account are written to etc.
func (u *ordinaryUser) enterOwnMounts(etc string, needed []string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := u.addAccount(etc); err != nil {
		return err
	}
	return openPaths(needed)
}

// addAccount covers the account files of the machine with copies that have a line for the user. A
// file that the machine lacks is left out: without subuid, the user has no subordinate ids.
func (u *ordinaryUser) addAccount(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ids := fmt.Sprintf("bench:%d:%d", firstSubordinate, subordinates)
	for name, line := range map[string]string{
		"passwd": fmt.Sprintf("bench:x:%d:%[1]d::%s:/bin/sh", u.uid, u.home),
		"group":  fmt.Sprintf("bench:x:%d:", u.uid),
		"subuid": ids,
		"subgid": ids,
	} {
		text, err := os.ReadFile("/etc/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		if len(text) > 0 && text[len(text)-1] != '\n' {
			text = append(text, '\n')
		}
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, append(text, line+"\n"...), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, "/etc/"+name, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("/etc/%s: %w", name, err)
		}
	}
	return nil
}

// openPaths covers every directory above the paths that only its owner may enter with an empty one,
// and mounts the paths there again.
func openPaths(paths []string) error {
	covers := map[string]bool{}
	for _, path := range paths {
		closed, err := closedAbove(path)
		if err != nil {
			return err
		}
		if closed != "" {
			covers[closed] = true
		}
	}
	for cover := range covers {
		if err := coverExcept(cover, paths); err != nil {
			return fmt.Errorf("opening what is needed in %s: %w", cover, err)
		}
	}
	return nil
}

// closedAbove returns the topmost directory above a path that others may not enter, or nothing.
func closedAbove(path string) (string, error) {
	parent := filepath.Dir(path)
	if parent == path {
		return "", nil
	}
	if above, err := closedAbove(parent); above != "" || err != nil {
		return above, err
	}
	info, err := os.Stat(parent)
	if err != nil || info.Mode().Perm()&0o001 != 0 {
		return "", err
	}
	return parent, nil
}

// coverExcept hides a directory except for the paths in it.
func coverExcept(dir string, paths []string) error {
	kept := map[string]int{} // path to a detached copy of its mount
	defer func() {
		for _, fd := range kept {
			_ = unix.Close(fd)
		}
	}()
	for _, path := range paths {
		if !strings.HasPrefix(path, dir+"/") {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		kept[path] = fd
	}
	if err := unix.Mount("bench", dir, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	for path, fd := range kept {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}
