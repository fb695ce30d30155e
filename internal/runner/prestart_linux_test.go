package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// prestarted is a launcher that waits for its run, with its helper. The test does run-init's part.
type prestarted struct {
	cmd, helper *exec.Cmd
	conn        *os.File // the launcher's standard input
	file        string
	out, errs   bytes.Buffer
}

// prestart starts a helper, unless it is empty, and a launcher.
func prestart(t *testing.T, dir, file string, helper, command []string) *prestarted {
	t.Helper()
	p := &prestarted{file: file}
	ours, theirs := socketPair(t)
	p.conn = ours
	p.cmd = exec.CommandContext(t.Context(), command[0], append(command[1:], file)...)
	p.cmd.Dir, p.cmd.Env = dir, []string{"PATH=/usr/bin:/bin", "HOME=/tmp", "BEFORE=1"}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = theirs, &p.out, &p.errs
	if len(helper) > 0 {
		its, programs := socketPair(t)
		p.helper = exec.CommandContext(t.Context(), helper[0], helper[1:]...)
		p.helper.Stdin, p.helper.Stdout = its, its
		if err := p.helper.Start(); err != nil {
			t.Fatal(err)
		}
		_ = its.Close()
		defer programs.Close()
		p.cmd.ExtraFiles = []*os.File{programs}
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	p.expect(t, "ready\n")
	return p
}

func socketPair(t *testing.T) (a, b *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func (p *prestarted) expect(t *testing.T, line string) {
	t.Helper()
	got := make([]byte, len(line))
	if _, err := io.ReadFull(p.conn, got); err != nil || string(got) != line {
		t.Fatalf("it wrote %q, %v, want %q; stderr: %s", got, err, line, p.errs.String())
	}
}

// handOver gives the launcher its run.
func (p *prestarted) handOver(t *testing.T, code string) {
	t.Helper()
	if err := os.WriteFile(p.file, []byte(code), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(p.file) })
	request := map[string]any{"file": p.file, "env": map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/tmp"}}
	if err := json.NewEncoder(p.conn).Encode(request); err != nil {
		t.Fatal(err)
	}
	if err := unix.Shutdown(int(p.conn.Fd()), unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	p.expect(t, "taken\n")
}

// run hands over the run and waits for its end.
func (p *prestarted) run(t *testing.T, code string) (stdout, stderr string, exit int) {
	t.Helper()
	p.handOver(t, code)
	var exitErr *exec.ExitError
	if err := p.cmd.Wait(); err != nil && !errors.As(err, &exitErr) {
		t.Fatal(err)
	}
	if p.helper != nil {
		_ = p.helper.Wait()
	}
	return p.out.String(), p.errs.String(), p.cmd.ProcessState.ExitCode()
}

// waitingEsbuild returns the command of the helper in runner.json, for the tree of a launcher.
func waitingEsbuild(command []string) []string {
	return []string{"/bin/sh", filepath.Join(filepath.Dir(command[len(command)-1]), "esbuild.sh")}
}

// TestPrestartedLauncher: the waiting esbuild is used, and nothing depends on it.
func TestPrestartedLauncher(t *testing.T) {
	command := nodeProgram(t, "launch.cjs")
	tree := filepath.Dir(command[len(command)-1])
	// The libraries of this copy are missing, so the launcher cannot start an esbuild itself.
	without := t.TempDir()
	if err := copyFiles(os.DirFS(filepath.Dir(tree)), filepath.Base(tree), without, node.files...); err != nil {
		t.Fatal(err)
	}
	alone := append(slices.Clone(command[:len(command)-1]), filepath.Join(without, "launch.cjs"))

	data, tmp := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "lib.ts"), []byte("export enum E { A, B }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const code = "import { E } from './lib';\nconst n: number = E.B;\nconsole.log(n, process.env.BEFORE, process.argv.length)"
	for _, c := range []struct {
		name, code      string
		helper, command []string
		stdout, stderr  string // what it must contain
	}{
		{"the waiting esbuild compiles the program and its imports", code, waitingEsbuild(command), alone, "1 undefined 2\n", ""},
		{"only the waiting esbuild can", code, nil, alone, "", "esbuild does not start"},
		{"no helper", code, nil, command, "1 undefined 2\n", ""},
		{"a helper that ends", code, []string{"/bin/true"}, command, "1 undefined 2\n", ""},
		{"a helper that writes something else", code, []string{"/bin/sh", "-c", "printf '\\004\\000\\000\\0001.2.'; head -c 9; printf '\\001\\000\\000\\000x'"}, command, "1 undefined 2\n", ""},
		{"a helper that claims 4 GB", code, []string{"/bin/sh", "-c", "printf '\\377\\377\\377\\377'; exec cat >&2"}, command, "1 undefined 2\n", ""},
		{"imports at run time", "const { E } = await import('./lib');\nconsole.log(E.A)", waitingEsbuild(command), command, "0\n", ""},
		{"the descriptor is closed", "import fs from 'node:fs';\nlet socket: boolean;\ntry { socket = fs.fstatSync(3).isSocket() } catch { socket = false }\nconsole.log(socket)", waitingEsbuild(command), command, "false\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := prestart(t, data, filepath.Join(tmp, "main-1.ts"), c.helper, c.command)
			stdout, stderr, _ := p.run(t, c.code)
			if stdout != c.stdout || !strings.Contains(stderr, c.stderr) || c.stderr == "" && stderr != "" {
				t.Errorf("stdout %q, stderr %q; want %q, %q", stdout, stderr, c.stdout, c.stderr)
			}
		})
	}
	t.Run("esbuild ends while the program runs", func(t *testing.T) {
		p := prestart(t, data, filepath.Join(tmp, "main-1.ts"), waitingEsbuild(command), command)
		p.handOver(t, "setInterval(() => {}, 1000)")
		if err := p.helper.Wait(); err != nil {
			t.Error(err)
		}
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}
