package agent

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestEmpty: whatever a run has left in its directory goes, and nothing that it points at.
func TestEmpty(t *testing.T) {
	outside := t.TempDir()
	keep := filepath.Join(outside, "keep")
	if err := os.WriteFile(keep, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.Symlink(outside, "link"))
	do(os.Symlink("/", "root"))
	do(os.Symlink("link", ".moved-1"))
	do(unix.Mkfifo("pipe", 0))
	do(os.WriteFile("file", nil, 0))
	for i := range 1000 { // longer than a path can be
		name := fmt.Sprint("file", i%2)
		do(os.WriteFile(name, nil, 0))
		do(os.Mkdir("deep", 0o700))
		do(unix.Chdir("deep"))
	}
	do(os.Symlink(outside, "link"))
	do(os.Chmod(".", 0))
	do(unix.Chdir(dir))
	do(os.Chmod("deep", 0))
	do(os.Chmod(".", 0))

	empty(dir)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if fi, err := os.Stat(keep); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("a file that a link pointed at: %v, %v", fi, err)
	}

	do(os.Symlink(outside, filepath.Join(dir, "instead")))
	empty(filepath.Join(dir, "instead"))
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("a link in the directory's place was followed: %v", err)
	}
}

// TestSharedFilter: limits and priorities are a process's own business, and nothing else is the filter's.
func TestSharedFilter(t *testing.T) {
	const allow = unix.SECCOMP_RET_ALLOW
	eperm := errno(unix.EPERM)
	prog := sharedFilter()
	for _, test := range []struct {
		name string
		nr   uint32
		args []uint64
		want uint32
	}{
		{"set an own limit", unix.SYS_PRLIMIT64, []uint64{0, unix.RLIMIT_NOFILE, 1 << 40}, allow},
		{"read another's limit", unix.SYS_PRLIMIT64, []uint64{1, unix.RLIMIT_NOFILE, 0, 1 << 40}, allow},
		{"set another's limit", unix.SYS_PRLIMIT64, []uint64{1, unix.RLIMIT_NOFILE, 1 << 40}, eperm},
		{"set another's limit from low memory", unix.SYS_PRLIMIT64, []uint64{1, unix.RLIMIT_NOFILE, 0x1000}, eperm},
		{"own priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 0, 5}, allow},
		{"own group's priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PGRP, 0, 5}, allow},
		{"another's priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_PROCESS, 1, 5}, eperm},
		{"everybody's priority", unix.SYS_SETPRIORITY, []uint64{unix.PRIO_USER, 0, 5}, eperm},
		{"own disk priority", unix.SYS_IOPRIO_SET, []uint64{1, 0, 5}, allow},
		{"another's disk priority", unix.SYS_IOPRIO_SET, []uint64{1, 1, 5}, eperm},
		{"everybody's disk priority", unix.SYS_IOPRIO_SET, []uint64{ioprioWhoUser, 0, 5}, eperm},
		{"something else", unix.SYS_KILL, []uint64{1, 9}, allow},
	} {
		data := make([]byte, 64)
		binary.LittleEndian.PutUint32(data[offNR:], test.nr)
		for i, a := range test.args {
			binary.LittleEndian.PutUint64(data[offArgs+8*i:], a)
		}
		if got, err := sandboxtest.RunBPF(prog, binary.LittleEndian, data); err != nil || got != test.want {
			t.Errorf("%s: %#x, %v, want %#x", test.name, got, err, test.want)
		}
	}
}
