package jail_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// prepare starts a sandbox without a workspace. It ends with the test.
func prepare(t *testing.T, b sandbox.Preparer) sandbox.Prepared {
	t.Helper()
	p, err := b.Prepare(t.Context(), sandbox.Spec{ID: sandboxtest.ID(), Limits: sandbox.Limits{TmpBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close(context.Background()) })
	return p
}

// TestAttach: a sandbox whose workspace is attached has the same mounts as one that was started
// with it.
func TestAttach(t *testing.T) {
	b := open(t, t.TempDir(), sandboxtest.ID())
	h := harness(t, b)
	if os.Geteuid() != 0 {
		if _, err := b.Prepare(t.Context(), sandbox.Spec{ID: sandboxtest.ID()}); !errors.Is(err, errors.ErrUnsupported) {
			t.Fatalf("an ordinary user's jail: %v", err)
		}
		return
	}
	if gives() {
		t.Skip("two sandboxes use a workspace: TestUIDsOnDisk")
	}
	ws := sandboxtest.Workspace(t, h.Owner)
	if err := os.WriteFile(filepath.Join(ws, "old"), []byte("kept\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before := sandboxtest.Start(t, h, sandbox.Spec{Workspace: ws})
	p := prepare(t, b)
	if err := p.Attach(t.Context(), ws); err != nil {
		t.Fatal(err)
	}
	late := &sandboxtest.Sandbox{Sandbox: p, Conn: wire.NewConn(p.Conn(), wire.ServerSide, nil), Workspace: ws}
	t.Cleanup(func() { _ = late.Conn.Close() })
	// The first run gets a run-init from before the workspace came, the second one from after.
	for range 2 {
		run := sandboxtest.Shell(`pwd; cat old; for d in /data /mnt/data /workspace; do echo > $d/new && ls $d; done; rm new`)
		run.Limits.TmpBytes = 1 << 20
		res := late.Run(t, run)
		if want := "/data\nkept\n" + strings.Repeat("new\nold\n", 3); string(res.Stdout) != want || res.Exit.Code != 0 {
			t.Errorf("%+v: %s%s", res.Exit, res.Stdout, res.Stderr)
		}
	}
	// Flags and root of each of the three mounts, for the agent and for runs. The last line is the
	// topmost mount.
	mounted := func(agent string) (found []string) {
		text, err := os.ReadFile(agent + "/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		last := map[string]string{}
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "shared:") {
				t.Errorf("a mount is shared: %s", line)
			}
			f := strings.Fields(line)
			last[f[4]] = strings.Join(f[3:6], " ")
		}
		return []string{last["/data"], last["/mnt/data"], last["/workspace"]}
	}
	agents := agentsOf(t, before.Workspace)
	if len(agents) != 2 {
		t.Fatalf("agents: %v", agents)
	}
	if got, want := mounted(agents[1]), mounted(agents[0]); !slices.Equal(got, want) || !strings.Contains(got[0], "nosuid,nodev") {
		t.Errorf("mounts:\n%q want:\n%q", got, want)
	}
	if err := p.Attach(t.Context(), ws); err == nil {
		t.Error("attached twice")
	}
}

// TestAttachRefusals: Attach fails in bounded time and leaves nothing behind.
func TestAttachRefusals(t *testing.T) {
	needRoot(t, "only root's sandboxes can be prepared")
	b := open(t, t.TempDir(), sandboxtest.ID())
	h := harness(t, b)
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(os.Symlink("/etc", link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx  context.Context
		path string
		want error
	}{
		"missing":   {t.Context(), filepath.Join(dir, "missing"), os.ErrNotExist},
		"link":      {t.Context(), link, nil},
		"file":      {t.Context(), file, nil},
		"cancelled": {cancelled, sandboxtest.Workspace(t, h.Owner), context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			err := prepare(t, b).Attach(tt.ctx, tt.path)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("Attach: %v", err)
			}
		})
	}
	t.Run("ended", func(t *testing.T) {
		p := prepare(t, b)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Attach(t.Context(), sandboxtest.Workspace(t, h.Owner)); err == nil {
			t.Error("attached to a sandbox that has ended")
		}
	})
	t.Run("deaf agent", func(t *testing.T) {
		needMachineRoot(t, "finds the agent by its cgroup")
		p := prepare(t, b)
		freeze(t, p.ID())
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := p.Attach(ctx, sandboxtest.Workspace(t, h.Owner)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Attach: %v", err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestFailedStarts: a failed start leaves no descriptor open.
func TestFailedStarts(t *testing.T) {
	needRoot(t, "shared zygotes enter sandboxes of another uid")
	b := open(t, t.TempDir(), sandboxtest.ID())
	z := zygoteHarness(t, b).Zygote
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close what is forgotten
	const n = 5
	descriptors := func() int {
		for range n {
			spec := sandbox.Spec{ID: sandboxtest.ID(), Workspace: filepath.Join(t.TempDir(), "missing"),
				Zygotes: []sandbox.Zygote{{Name: z.Name, Argv: z.Argv, Source: z.Source}}}
			if _, err := b.Start(t.Context(), spec); err == nil {
				t.Fatal("started without a workspace")
			}
		}
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(open)
	}
	if before, after := descriptors(), descriptors(); after >= before+n {
		t.Errorf("%d descriptors, and %d after %d more failures", before, after, n)
	}
}

// freeze stops the agent of a sandbox with a signal.
func freeze(t *testing.T, id string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		groups, _ := os.ReadFile(path)
		argv, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if !strings.Contains(string(groups), id) || !strings.HasPrefix(string(argv), "/.sandbox-agent\x00") {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGSTOP)
		}
		if err != nil {
			t.Fatal(err)
		}
		await(t, "the agent to stop", func() bool { // each of its threads does by itself
			threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
			return !slices.ContainsFunc(threads, func(thread string) bool { return !strings.HasPrefix(status(thread, "State"), "T") })
		})
		return
	}
	t.Fatal("the agent was not found")
}

// await polls until holds returns true.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(30 * time.Second); !holds(); {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("timed out: waited for " + what)
		}
	}
}

// reads reports whether a process is blocked in a read.
func reads(pid int) bool {
	call, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	return strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_READ)+" ")
}
