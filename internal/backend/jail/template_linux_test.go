package jail_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
	"mcp-code-sandbox/runners"
)

// zygoteHarness is a harness all of whose Python comes from zygotes.
func zygoteHarness(t *testing.T, b *jail.Backend) sandboxtest.Harness {
	t.Helper()
	h := harness(t, b)
	source, err := runners.Files.ReadFile("python/zygote.py")
	if err != nil {
		t.Fatal(err)
	}
	h.Zygote = &wire.Zygote{Name: "python", Argv: []string{"/usr/bin/python3"}, Source: source}
	h.Template = os.Geteuid() == 0 // others start their own
	return h
}

// templates finds the templates that this process has started: not their forks, and not bubblewrap.
func templates(t *testing.T) (found []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	parents := map[int]int{}
	for _, path := range stats {
		if stat, err := os.ReadFile(path); err == nil {
			fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	for pid, parent := range parents {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if parents[parent] == os.Getpid() && bytes.HasSuffix(cmdline, []byte("/.zygote.py\x00template\x00")) {
			found = append(found, pid)
		}
	}
	return found
}

func theTemplate(t *testing.T) int {
	t.Helper()
	found := templates(t)
	if len(found) != 1 {
		t.Fatalf("templates: %v", found)
	}
	return found[0]
}

// killed kills a process and returns when victim has ended.
func killed(t *testing.T, pid, victim int) {
	t.Helper()
	fd, err := unix.PidfdOpen(victim, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
		t.Fatalf("process %d lives on: %v", victim, err)
	}
}

// TestTemplateLife: a template may go at any time. Runs go on, and there is another one later.
func TestTemplateLife(t *testing.T) {
	needRoot(t, "templates enter sandboxes of another uid")
	for name, victim := range map[string]func(template int) int{
		"killed": func(template int) int { return template },
		"its bubblewrap killed": func(template int) int {
			stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", template))
			parent, _ := strconv.Atoi(strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1])
			return parent
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
			old := sandboxtest.Start(t, h, sandbox.Spec{})
			first := theTemplate(t)
			killed(t, victim(first), first)
			old.Probe(t, "") // from its zygote, still
			sandboxtest.Start(t, h, sandbox.Spec{}).Probe(t, "")
			sandboxtest.Start(t, h, sandbox.Spec{}).Probe(t, "")
			if again := theTemplate(t); again == first {
				t.Error("no new template was started")
			}
		})
	}
	t.Run("closed", func(t *testing.T) {
		for _, warm := range []bool{false, true} { // in mid-start, and at leisure
			b := open(t, t.TempDir(), sandboxtest.ID())
			h := zygoteHarness(t, b)
			z := h.Zygote
			b.Warm(sandbox.Spec{Zygote: &sandbox.Zygote{Name: z.Name, Argv: z.Argv, Source: z.Source}})
			if warm {
				_ = sandboxtest.Start(t, h, sandbox.Spec{}).Close(t.Context())
			}
			b.Close()
			if left := templates(t); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
	})
	t.Run("runner installed anew", func(t *testing.T) {
		h := zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID()))
		dir := filepath.Join(t.TempDir(), "runner")
		install := func(version string) {
			if err := os.Rename(dir, dir+"-old"); err != nil && version != "1" {
				t.Fatal(err)
			}
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "version"), []byte(version), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		var seen []int
		for _, version := range []string{"1", "2"} {
			install(version)
			b := sandboxtest.Start(t, h, sandbox.Spec{Mounts: []sandbox.Mount{{Source: dir, Target: "/opt/runner"}}})
			b.Probe(t, "v = open('/opt/runner/version').read()\nif v != '"+version+"': breach('is still version', v)")
			seen = append(seen, theTemplate(t))
		}
		if seen[0] == seen[1] {
			t.Error("the template is the old runner's")
		}
	})
	t.Run("fails", func(t *testing.T) {
		log := &lockedLog{wrote: make(chan struct{}, 1)}
		b, err := openLogging(t.TempDir(), sandboxtest.ID(), slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		h := harness(t, b)
		spec := sandbox.Spec{Zygote: &sandbox.Zygote{Name: "broken", Argv: []string{"/usr/bin/python3"}, Source: []byte("raise SystemExit('broken here')")}}
		sandboxtest.Start(t, h, spec).Alive(t)
		<-log.wrote
		sandboxtest.Start(t, h, spec).Alive(t)
		b.Close()
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "broken here") {
			t.Errorf("%d warnings: %s", n, log)
		}
	})
}

type lockedLog struct {
	wrote chan struct{}
	mu    sync.Mutex
	b     bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
