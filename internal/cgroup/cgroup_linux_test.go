package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
)

// TestCgroupV2 runs the code for version 2 on a directory of plain files, for machines that have
// version 1.
func TestCgroupV2(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"memory.max", "memory.swap.max", "pids.max", "cpu.max"} {
		write(name, "max\n")
	}
	g := &Group{dirs: map[string]string{"memory": dir, "pids": dir, "cpu": dir}}
	if err := g.limit(sandbox.Limits{MemoryBytes: 512 << 20, CPUs: 1.5, PIDs: 64}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"memory.max": "536870912", "memory.swap.max": "0", "pids.max": "64", "cpu.max": "150000 100000",
	} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != want || err != nil {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	write("memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n")
	write("pids.events", "max 7\n")
	want := sandbox.Usage{OOMKills: 2, PIDsRefused: 7}
	if got, err := g.Usage(); got != want || err != nil {
		t.Errorf("usage %+v, %v, want %+v", got, err, want)
	}

	write("cpu.stat", "usage_usec 7000\n")
	withoutCPU := &Group{dirs: map[string]string{"memory": dir, "pids": dir}}
	if err := withoutCPU.limit(sandbox.Limits{CPUs: 0.5}); err != nil {
		t.Errorf("limit without the cpu controller: %v", err)
	}
	if err := withoutCPU.Weigh(0.5); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("weigh without the cpu controller: %v", err)
	}
	if used, err := withoutCPU.CPUTime(); used != 7*time.Millisecond || err != nil {
		t.Errorf("CPU time without the cpu controller: %v, %v", used, err)
	}

	write("cgroup.subtree_control", "cpu\n")
	if err := enableControllers(dir); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control")); string(got) != "+pids" { // the last of "+memory", "+pids"
		t.Errorf("asked last for %q", got)
	}
	half := filepath.Join(dir, "half")
	if err := prepareV2(dir, half); err == nil {
		t.Error("a directory that is no cgroup is taken for one")
	}
	if _, err := os.Stat(half); err == nil {
		t.Error("a group that could not be prepared is left")
	}
}

// TestReapElsewhere: the list of a dead instance is text in a file; it leads nowhere but to
// cgroups.
func TestReapElsewhere(t *testing.T) {
	home := t.TempDir()
	victim := filepath.Join(home, groupName+"x-1")
	if err := os.Mkdir(victim, 0o700); err != nil {
		t.Fatal(err)
	}
	Reap("x", []string{home, "/sys/fs/cgroup/../../.." + home, "", "/"})
	if _, err := os.Stat(victim); err != nil {
		t.Errorf("reaped what is no cgroup: %v", err)
	}
}

// TestEntries: a process enters a version 1 group by itself, which takes no lock of the machine.
func TestEntries(t *testing.T) {
	memory, pids := t.TempDir(), t.TempDir()
	g := &Group{dirs: map[string]string{"memory": memory, "pids": pids}, home: map[string]string{}}
	if files, err := g.Entries(); err == nil {
		t.Errorf("entries of a group without tasks: %v", files)
	}
	for _, dir := range []string{memory, pids} {
		if err := os.WriteFile(filepath.Join(dir, "tasks"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := g.Entries()
	if err != nil || len(files) != 2 {
		t.Fatalf("entries: %v, %v", files, err)
	}
	for _, f := range files {
		if _, err := f.WriteString("0"); err != nil || f.Close() != nil {
			t.Error(err)
		}
	}
	for _, dir := range []string{memory, pids} {
		if text, _ := os.ReadFile(filepath.Join(dir, "tasks")); string(text) != "0" {
			t.Errorf("%s has %q", dir, text)
		}
	}
	v2 := &Group{dirs: g.dirs}
	for _, none := range []*Group{nil, v2} {
		if files, err := none.Entries(); len(files) > 0 || err != nil {
			t.Errorf("entries: %v, %v", files, err)
		}
	}
}
