package agent

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/wire"
)

// Some sandboxes have a kernel of their own, as gVisor's, that knows no Landlock but grants namespaces to everybody. There the agent
// of MainShared starts another in a user namespace, which has capabilities in it and isolates runs as [Main] does.

// nestedByNamespaces is what that agent says of what keeps its runs apart.
const nestedByNamespaces = "namespaces"

// nestedTry is the argument that makes a nested agent only confine itself as it would confine a run, and end.
const nestedTry = "try"

// nestedCapabilities are those that Main uses, too.
var nestedCapabilities = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP, unix.CAP_SYS_RESOURCE}

// canNest reports whether a process without capabilities may make namespaces here, and in them all that isolates a run. Engines
// forbid that on the host's own kernel.
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

// nest starts the nested agent on this one's connection and ends with it. Nothing of a run can name this process: it is outside
// of their pid namespaces.
func nest(configJSON string) error {
	signal.Notify(make(chan os.Signal, 1))
	cmd := nestedCommand(configJSON)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the agent in namespaces of its own: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil { // not before: its id maps could not be written
		return fmt.Errorf("become unreadable: %w", err)
	}
	return cmd.Wait()
}

// MainNested runs the agent that nest starts. It is process 1 of its pid namespace, and its end is the end of every run.
func MainNested(arg, version string) error {
	if arg == nestedTry {
		return confine("1048576", func() error { return nil })
	}
	cfg, err := parseConfig(arg)
	if err != nil {
		return err
	}
	spareThreads(agentSpare)
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("become unreadable: %w", err)
	}
	signal.Notify(make(chan os.Signal, 1))
	if err := nestedMounts(); err != nil {
		return err
	}
	conn, err := stdioConn()
	if err != nil {
		return err
	}
	a := &agent{cfg: cfg, starting: make(chan struct{}, maxStarting), leaving: make(chan struct{}, 1)}
	return a.serve(conn, wire.Hello{Agent: version, Isolation: nestedByNamespaces})
}

// nestedMounts takes from runs what their kernel mounts whatever the engine says, and what a run could leave for the next one.
func nestedMounts() error {
	if err := separateMounts(); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, path := range []string{RunsDir, "/sys", "/dev/net", "/dev/fuse", "/dev/char", "/dev/pts"} {
		if err := hide(path); err != nil {
			return err
		}
	}
	return nil
}
