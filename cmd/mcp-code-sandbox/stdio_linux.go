package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/mcpserver"
	"mcp-code-sandbox/internal/window"
)

// linger is how long a shared server stays when its last window has gone.
const linger = time.Minute

// sharedDir is the directory of the shared servers' sockets in the data directory.
const sharedDir = "stdio"

// sharedListener is the descriptor of a shared server's socket: the first after stderr.
const sharedListener = 3

func openWindows(s *settings) (*window.Dir, error) {
	if err := makeRoot(s.Root); err != nil {
		return nil, err
	}
	return window.OpenDir(filepath.Join(s.Root, sharedDir))
}

// serveWindow connects the client to the server that windows of the same settings share.
func serveWindow(ctx context.Context, inv *invocation) error {
	dir, err := openWindows(inv.settings)
	if err != nil {
		return err
	}
	defer dir.Close()
	logs := window.NewLogs(inv.stderr)
	defer logs.Close()
	debug.SetGCPercent(20) // this process does little, and there may be many
	debug.FreeOSMemory()   // what parsing the settings took
	relay := mcpserver.Relay{
		MaxLineBytes: httpapi.MCPBodyLimit(int64(inv.settings.MaxUploadBytes)),
		Join: func(ctx context.Context) (mcpserver.Upstream, error) {
			id, environ, err := identify(inv) // runners may have changed since the last time
			if err != nil {
				return nil, err
			}
			start := func(l, stderr *os.File) error { return startShared(inv, id, environ, l, stderr) }
			c, err := dir.Join(ctx, id, start, logs)
			if err != nil {
				return nil, err // not a nil pointer in an interface
			}
			return c, nil
		},
	}
	err = relay.Run(ctx, inv.stdin, inv.stdout)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// startShared starts this program as a shared server, in a session of its own.
func startShared(inv *invocation, id string, environ []string, l, stderr *os.File) error {
	cmd := inv.command(append([]string{"--shared-server=" + id}, inv.args...), environ, l, stderr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Run() // it starts the server and exits; see serveShared
}

// command returns this program as a command, with l as its first descriptor after stderr.
func (p program) command(args, environ []string, l, stderr *os.File) *exec.Cmd {
	return &exec.Cmd{
		Path: p.self, Args: append([]string{p.name}, args...), Env: environ, Stderr: stderr, ExtraFiles: []*os.File{l},
	}
}

// serveShared is a shared server. The process that a window starts is the leader of a session. It
// starts the server and exits, so that the server is not a window's child: some clients kill the
// whole tree.
func serveShared(ctx context.Context, inv *invocation) error {
	l := os.NewFile(sharedListener, "listener")
	if isSessionLeader() {
		return inv.command(inv.args, inv.environ(), l, os.Stderr).Start()
	}
	dir, err := openWindows(inv.settings)
	if err != nil {
		return err
	}
	windows, err := window.NewServer(dir, inv.shared, l)
	if err != nil {
		return err
	}
	if err := os.Chdir(inv.settings.Root); err != nil { // a window's directory may be removed
		windows.Fail(err)
		return err
	}
	inv.stderr, inv.keepReady = windows, true
	f, err := openFrontend(ctx, inv, nil)
	if err != nil {
		windows.Fail(err)
		return nil
	}
	f.tasks.start(f.warm)
	go f.serveHTTP()
	f.log.Info("[MCP] serving windows on stdin and stdout; file links at "+f.base, "instance", f.instance.ID())
	windows.Serve(ctx, linger, f.mcp.ServeStdio)
	f.log.Info("shutting down")
	return errors.Join(f.close(), windows.Close())
}

// isSessionLeader reports whether this process only starts a shared server.
func isSessionLeader() bool {
	sid, err := unix.Getsid(0)
	return err == nil && sid == os.Getpid()
}

// stopShared ends the shared servers on the data directory.
func stopShared(ctx context.Context, inv *invocation) error {
	if _, err := os.Stat(filepath.Join(inv.settings.Root, sharedDir)); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintln(inv.stdout, "No server is shared on "+inv.settings.Root+".")
		return nil
	}
	dir, err := openWindows(inv.settings)
	if err != nil {
		return err
	}
	defer dir.Close()
	n, err := dir.Stop(ctx)
	fmt.Fprintf(inv.stdout, "Ended %s.\n", counted(n, "shared server", "shared servers"))
	return err
}
