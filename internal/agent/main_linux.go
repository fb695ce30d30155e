package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/agent/prestart"
	"mcp-code-sandbox/internal/netguard"
	"mcp-code-sandbox/internal/wire"
)

const (
	// ConnFD is the descriptor of the agent's connection to the server.
	ConnFD = 3
	// ZygoteFD is the descriptor of the first zygote that Config announces.
	ZygoteFD = 7
)

// Main runs the agent of a sandbox that has capabilities in its own user namespace, until the
// server closes the connection. It is process 1 of the sandbox: when it ends, everything inside
// ends.
func Main(configJSON, version string) error {
	cfg, err := parseConfig(configJSON)
	if err != nil {
		return err
	}
	if cfg.Close > ConnFD {
		_ = unix.Close(cfg.Close)
	}
	if err := becomeProcess1(); err != nil {
		return err
	}
	if err := forbidUserNamespaces(); err != nil {
		return err
	}
	limitInotify()
	if err := confine.SeparateMounts(); err != nil {
		return err
	}
	empty, err := confine.EmptyNamespace()
	if err != nil {
		return err
	}
	if err := confine.MountProcDirs(); err != nil {
		return err
	}
	if err := blockNetworks(cfg.Unreachable); err != nil {
		return err
	}
	if err := closeOnExec(); err != nil {
		return err
	}
	if err := unix.SetNonblock(ConnFD, true); err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	launcher := prestart.NewNamespaces(cfg.settings(), empty)
	for i, z := range cfg.Zygotes {
		fd := ZygoteFD + i
		if err := unix.SetNonblock(fd, true); err != nil {
			return fmt.Errorf("zygote: %w", err)
		}
		w := &wire.Zygote{Name: z.Name, Env: z.Env, Reads: z.Reads, PerRun: z.PerRun}
		launcher.AdoptZygote(w, os.NewFile(uintptr(fd), "zygote"), z.Soon, z.OnRequest)
	}
	if cfg.Expect != nil {
		if err := expectWorkspace(); err != nil {
			return err
		}
		zygote := ""
		if len(cfg.Zygotes) > 0 { // the first zygote takes longest to fork
			zygote = cfg.Zygotes[0].Name
		}
		launcher.PrestartFirst(cfg.Expect.TmpBytes, zygote, cfg.Expect.First)
	}
	return serve(&cfg, launcher, os.NewFile(ConnFD, "server"), wire.Hello{Agent: version})
}

// MainLandlock runs the agent of a sandbox that grants no capability and no namespace, such as a
// container. It is process 1 there, and its connection is standard input and output. On a kernel
// without Landlock that grants namespaces to everybody, it starts a nested agent.
func MainLandlock(configJSON, version string) error {
	cfg, err := parseConfig(configJSON)
	if err != nil {
		return err
	}
	if err := checkSurroundings(); err != nil {
		return err
	}
	landlock, isolation := confine.LandlockVersion()
	if landlock == 0 && canNest() {
		return nest(configJSON)
	}
	if err := becomeProcess1(); err != nil {
		return err
	}
	if err := confine.IgnoreFaults(); err != nil {
		return err
	}
	conn, err := stdioConn()
	if err != nil {
		return err
	}
	return serve(&cfg, prestart.NewLandlock(cfg.settings(), landlock), conn, wire.Hello{Agent: version, Isolation: isolation})
}

// becomeProcess1 protects the process from hostile neighbours: nothing can read its memory or end
// it with a signal.
func becomeProcess1() error {
	runtime.GOMAXPROCS(1) // one processor needs fewer threads and wakes them less often
	if err := confine.MakeUnreadable(); err != nil {
		return err
	}
	return confine.IgnoreSignals()
}

// forbidUserNamespaces sets the limit of this user namespace to zero. The seccomp filter also
// forbids them; the limit holds even for a process that bypasses the filter.
func forbidUserNamespaces() error {
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return fmt.Errorf("forbid user namespaces: %w", err)
	}
	return nil
}

// limitInotify leaves inotify instances to other sandboxes: the host limits them per owner of user
// namespaces, and sandboxes share one. Kernels without the setting have no such limit.
func limitInotify() {
	_ = os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("16"), 0)
}

// blockNetworks adds unreachable routes, then drops the capability to remove them again: nothing
// else needs CAP_NET_ADMIN.
func blockNetworks(networks []string) error {
	if len(networks) > 0 {
		if err := netguard.Block(networks); err != nil {
			return err
		}
	}
	return confine.DropCapability(unix.CAP_NET_ADMIN)
}

// closeOnExec keeps runs from inheriting the agent's connection, and descriptors that the server
// inherited from an editor or a shell.
func closeOnExec() error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= ConnFD {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// stdioConn returns the connection of an agent that a container engine has started. Runs do not
// inherit it.
func stdioConn() (io.ReadWriteCloser, error) {
	if err := closeOnExec(); err != nil {
		return nil, err
	}
	for _, fd := range []int{0, 1} {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("connection: %w", err)
		}
	}
	return stdio{os.NewFile(0, "server"), os.NewFile(1, "server")}, nil
}

// stdio is a connection of two pipes.
type stdio struct{ in, out *os.File }

func (c stdio) Read(p []byte) (int, error)  { return c.in.Read(p) }
func (c stdio) Write(p []byte) (int, error) { return c.out.Write(p) }
func (c stdio) Close() error                { return errors.Join(c.in.Close(), c.out.Close()) }

// checkSurroundings refuses to start where MainLandlock could not isolate runs.
func checkSurroundings() error {
	if os.Getpid() != 1 {
		return errors.New("not process 1 of the sandbox: start the container without an init process (no --init)")
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		name, set, _ := strings.Cut(line, ":")
		if strings.HasPrefix(name, "Cap") && strings.Trim(set, "0\t \n") != "" {
			return fmt.Errorf("the sandbox grants capabilities (%s): drop all of them", strings.TrimSpace(line))
		}
	}
	probe := prestart.NewPrivateDir()
	if err := os.Mkdir(probe, 0o700); err != nil {
		return fmt.Errorf("mount a tmpfs at %s that the sandbox's user can write to: %w", confine.RunsDir, err)
	}
	return os.Remove(probe)
}
