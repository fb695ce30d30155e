package agent

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/wire"
)

// A sandbox may have its own kernel, such as gVisor's, that lacks Landlock but grants namespaces to
// everybody. There MainLandlock starts a nested agent in a user namespace, which isolates runs as
// Main does.

// nestedTry is the argument that makes a nested agent confine itself like a run, and exit.
const nestedTry = "try"

// nestedCapabilities are the capabilities that Main also uses.
var nestedCapabilities = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP, unix.CAP_SYS_RESOURCE}

// canNest reports whether a process without capabilities can make namespaces here and confine a run
// in them. Engines forbid that on the host's own kernel.
func canNest() bool { return nestedCommand(nestedTry).Run() == nil }

func nestedCommand(arg string) *exec.Cmd {
	same := func(id int) []syscall.SysProcIDMap {
		return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
	}
	return &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{"nested", arg}, Dir: "/", Env: os.Environ(),
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC,
			UidMappings: same(os.Getuid()), GidMappings: same(os.Getgid()), AmbientCaps: nestedCapabilities,
		},
	}
}

// nest starts the nested agent on this agent's connection and ends with it. No process of a run can
// address this one, which is outside their pid namespaces.
func nest(configJSON string) error {
	signal.Notify(make(chan os.Signal, 1))
	cmd := nestedCommand(configJSON)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the agent in its own namespaces: %w", err)
	}
	if err := confine.MakeUnreadable(); err != nil { // not earlier, or the nested agent's id maps could not be written
		return err
	}
	return cmd.Wait()
}

// MainNested runs the nested agent. It is process 1 of its pid namespace: when it ends, every run
// ends.
func MainNested(arg, version string) error {
	if arg == nestedTry {
		return confine.EnterNamespaces("", "1048576", func() error { return nil })
	}
	cfg, err := parseConfig(arg)
	if err != nil {
		return err
	}
	if err := becomeProcess1(); err != nil {
		return err
	}
	if err := nestedMounts(); err != nil {
		return err
	}
	conn, err := stdioConn()
	if err != nil {
		return err
	}
	launcher := prestart.NewNamespaces(cfg.settings(), nil)
	return serve(&cfg, launcher, conn, wire.Hello{Agent: version, Isolation: "namespaces"})
}

// nestedMounts hides what this kernel mounts regardless of the engine's settings, and directories
// in which a run could leave files for the next one.
func nestedMounts() error {
	if err := confine.SeparateMounts(); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return confine.Hide(confine.RunsDir, "/sys", "/dev/net", "/dev/fuse", "/dev/char", "/dev/pts")
}
