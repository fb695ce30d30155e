package runner

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testedDriver speaks to a driver as run-init does, without a sandbox.
type testedDriver struct {
	t       *testing.T
	cmd     *exec.Cmd
	channel *os.File
	lines   *bufio.Scanner
	n       int
	data    string
	early   bool // an interrupt comes before the driver reads the cell
}

func startNodeDriver(t *testing.T, language string) *testedDriver {
	t.Helper()
	return startDriver(t, append(nodeProgram(t, "driver.cjs", "--expose-internals"), language))
}

func startDriver(t *testing.T, command []string, env ...string) *testedDriver {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "driver"), os.NewFile(uintptr(fds[1]), "test")
	defer theirs.Close()
	d := &testedDriver{t: t, channel: ours, lines: bufio.NewScanner(ours), data: t.TempDir()}
	d.cmd = exec.Command(command[0], command[1:]...)
	d.cmd.Dir = d.data
	d.cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=/tmp"}, env...)
	d.cmd.ExtraFiles = []*os.File{theirs} // descriptor 3
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ours.Close()
		_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
		_ = d.cmd.Wait()
	})
	if got := d.line(); got != "ready" && got != "ready repeat" {
		t.Fatalf("the driver said %q", got)
	}
	return d
}

// line returns the driver's next line, or "" when it has ended.
func (d *testedDriver) line() string {
	d.t.Helper()
	if err := d.channel.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		d.t.Fatal(err)
	}
	if !d.lines.Scan() {
		if err := d.lines.Err(); errors.Is(err, os.ErrDeadlineExceeded) {
			d.t.Fatalf("cell %d: the driver says nothing", d.n)
		}
		return ""
	}
	return d.lines.Text()
}

type cellResult struct {
	stdout, stderr string
	shown          []string // MIME types
	exit           int      // -1: the interpreter has ended
}

// marker in a cell's output asks for an interrupt.
const marker = "interrupt me\n"

// run runs a cell to its end. Like the agent, it drops output that is not in the pipes when the
// result comes.
func (d *testedDriver) run(code string) cellResult {
	d.t.Helper()
	d.n++
	dir := d.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "code"), []byte(code), 0o600); err != nil {
		d.t.Fatal(err)
	}
	if d.early {
		if err := os.WriteFile(filepath.Join(dir, "interrupted"), nil, 0o600); err != nil {
			d.t.Fatal(err)
		}
	}
	var out, errs strings.Builder
	var pumps sync.WaitGroup
	var readers []*os.File
	for name, to := range map[string]*strings.Builder{"stdout": &out, "stderr": &errs} {
		path := filepath.Join(dir, name)
		if err := unix.Mkfifo(path, 0o600); err != nil {
			d.t.Fatal(err)
		}
		r, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			d.t.Fatal(err)
		}
		defer r.Close()
		w, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			d.t.Fatal(err)
		}
		defer w.Close()
		readers = append(readers, r)
		pumps.Go(func() {
			buf := make([]byte, 64<<10)
			asked := false
			for {
				n, err := r.Read(buf)
				to.Write(buf[:n])
				if !asked && strings.Contains(to.String()[:min(to.Len(), 100)], marker) {
					asked = true
					d.awaitBlocked()
					_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGINT)
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					to.WriteString(leftover(r))
				}
				if err != nil {
					return
				}
			}
		})
	}
	if _, err := fmt.Fprintf(d.channel, "execute %d %s\n", d.n, dir); err != nil {
		d.t.Fatal(err)
	}
	line := d.line()
	var shown []string
	for ; strings.HasPrefix(line, "display ") || strings.HasPrefix(line, "settle "); line = d.line() {
		f := strings.Fields(line)
		if f[0] == "display" {
			shown = append(shown, f[2])
			f = f[1:]
		}
		_ = os.Remove(filepath.Join(dir, f[2]))
	}
	now := time.Now()
	for _, r := range readers {
		_ = r.SetReadDeadline(now)
	}
	pumps.Wait()
	res := cellResult{stdout: out.String(), stderr: errs.String(), shown: shown, exit: -1}
	if line == "" || strings.HasPrefix(line, "exit ") {
		return res
	}
	var n int
	if _, err := fmt.Sscanf(line, "result %d %d", &n, &res.exit); err != nil || n != d.n {
		d.t.Fatalf("the driver said %q of cell %d", line, d.n)
	}
	return res
}

// awaitBlocked waits until the driver's main thread is in a system call, or for a moment if it
// computes. A signal between Python's last look for one and the system call would not wake it.
func (d *testedDriver) awaitBlocked() {
	for range 50 {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "S") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// leftover reads the rest of a pipe whose deadline has passed.
func leftover(r *os.File) string {
	var all strings.Builder
	raw, err := r.SyscallConn()
	if err != nil {
		return ""
	}
	_ = raw.Control(func(fd uintptr) {
		buf := make([]byte, 64<<10)
		for {
			n, _ := syscall.Read(int(fd), buf)
			if n <= 0 {
				return
			}
			all.Write(buf[:n])
		}
	})
	return all.String()
}

type driverCell struct {
	code   string
	stdout string // exact
	stderr string // must be contained; empty: stderr is empty
	exit   int
}

// Each case is a new interpreter and the cells that it runs.
func TestNodeDriver(t *testing.T) {
	const ts, js = "typescript", "javascript"
	const ping = "process.stdout.write('interrupt me\\n');\n"
	const interrupted = "Interrupted.\n"
	for _, c := range []struct {
		name, language string
		cells          []driverCell
	}{
		{"every kind of declaration, declared again as every other", js, redeclarations()},
		{"state", js, []driverCell{
			{"let a = 1, b; const {c, d: [e = 4]} = {c: 2, d: []}\nclass K { m() { return a } }\nf()\nfunction f() { return new K().m() }", "1\n", "", 0},
			{"a = 7; [f(), b, c, e]", "[ 7, undefined, 2, 4 ]\n", "", 0},
			{"for (var i = 0, j; i < 3; i++) { if (i) { var inner = i } }\nfor (var [k] of [[9]]);\nfor (const hidden of []);\n[i, j, k, inner, typeof hidden]", "[ 3, undefined, 9, 2, 'undefined' ]\n", "", 0},
			{"x = 1\n'use strict'; process.chdir('/'); undefined", "", "", 0},
			{"'use strict'\nlet s = x, [t] = [s]\nprocess.cwd() + t", "'/1'\n", "", 0},
			{"const Map = 1, Object = 2, crypto = require('crypto'); let Error = 3", "", "", 0},
			{"Map + Object + crypto.randomUUID().length + Error", "42\n", "", 0},
		}},
		{"values", js, []driverCell{
			{"1 + 1; // two", "2\n", "", 0},
			{"({a: [1], b: 'x'})", "{ a: [ 1 ], b: 'x' }\n", "", 0},
			{"'text'", "'text'\n", "", 0},
			{"undefined", "", "", 0},
			{"console.log('printed')", "printed\n", "", 0},
			{"const p = 1\nclass Q {}\n(p, 2)", "2\n", "", 0},
			{"Promise.resolve(5).then((x) => x + 1)", "6\n", "", 0},
			{"`a\nimport x from 'y'`", "\"a\\nimport x from 'y'\"\n", "", 0},
			{"", "", "", 0},
			{"process.exitCode = 3; undefined", "", "", 3},
			{"return 4", "4\n", "", 0},
		}},
		{"modules", js, []driverCell{
			{"const fs = require('fs'); fs.writeFileSync('lib.js', 'import { k } from \"./x.json\"; export const v = k; export default function named() {}'); fs.writeFileSync('x.json', '{\"k\": 1}')", "", "", 0},
			{"console.log(v, ns.v, named.name, j.k, sep)\nimport named, { v } from './lib.js'; import * as ns from './lib'\nimport j from './x.json' with { type: 'json' }\nimport { sep } from 'path'", "1 1 named 1 /\n", "", 0},
			{"v + require('./x.json').k + (await import('./lib.js')).v", "3\n", "", 0},
			{"import postgres from 'postgres'; import pg, { Client } from 'pg'; import csv from 'csv-parser'; import Papa from 'papaparse'\n[typeof postgres, pg.Client === Client, typeof csv, Papa.parse('a,b').data[0].length, require('pg') === pg]", "[ 'function', true, 'function', 2, true ]\n", "", 0},
			{"process.chdir('/'); const late = () => import('./lib.js'); (await late()).v", "1\n", "", 0},
			{"[import.meta.filename === __filename, require.main === module, (() => import.meta.main)()]", "[ true, true, true ]\n", "", 0},
			{"import { gone } from './later.js'", "", "Cannot find module './later.js' imported from <cell 7>", 1},
			{"fs.writeFileSync(__dirname + '/later.js', 'export const gone = ;')", "", "", 0},
			{"import { gone } from './later.js'", "", "/later.js:1:20:", 1},
			{"fs.writeFileSync(__dirname + '/later.js', 'export const gone = 1')", "", "", 0},
			{"import { gone } from './later.js'; gone", "1\n", "", 0},
			{"import { nothing } from './lib.js'", "", "SyntaxError: The requested module './lib.js' does not provide an export named 'nothing'", 1},
			{"export const out = 1; export default class { }\nexport { out as o }\nout", "1\n", "", 0},
		}},
		{"TypeScript", ts, []driverCell{
			{"enum C { Red = 1, Blue }\ninterface I { a: number }\nnamespace N { export const x = 1 }\nconst i: I = { a: 2 }, id = <T,>(x: T): T => x;\n[C.Blue, C[1], i.a, N.x, id<number>(3)]", "[ 2, 'Red', 2, 1, 3 ]\n", "", 0},
			{"enum C { Green }\nC", "{ '0': 'Green', Green: 0 }\n", "", 0},
			{"require('fs').writeFileSync('lib.ts', 'export type T = string; export const add = (a: number, b: number): number => a + b;\\nexport function fail(): never { throw new Error(\"in lib\") }')", "", "", 0},
			{"import { add, fail, T } from './lib';\nimport type { T as U } from './lib'", "", "", 0},
			{"const t: T = 'used later'; add(1, 2)", "3\n", "", 0},
			{"type X = 1\nfail()", "", "DATA/lib.ts:2:39\n", 1},
			{"function d(f: any, c: ClassMethodDecoratorContext) { return function (this: any) { return c.name.toString() + f.call(this) } }\nclass A { @d m() { return 1 } }", "", "", 0},
			{"class B { @d n() { return 2 } }\n[new A().m(), new B().n()]", "[ 'm1', 'n2' ]\n", "", 0},
			{"function old(t: any, key: string, p: PropertyDescriptor) { const f = p.value; p.value = function () { return key + f.call(this) } }\nclass O { @old m() { return 1 } }\nnew O().m()", "'m1'\n", "", 0},
			{"const React = { createElement: (t: string, p: any, ...c: any[]) => `${t}:${p.id}:${c}` };\n<b id=\"x\">hi</b>", "'b:x:hi'\n", "", 0},
			{"let v: number = await Promise.resolve(5)\nv", "5\n", "", 0},
			{"const v = 1;\nlet y: = 5;", "", "<cell 12>:2:7:", 1},
			{"v", "5\n", "", 0},
			{"interface A {\n  x: number;\n}\nconst a: A = { x: 1 };\n\n  null!.foo;", "", "<cell 14>:6:9\n  null!.foo;\n        ^\n\nTypeError: Cannot read properties of null (reading 'foo')\n    at <cell 14>:6:9\n", 1},
		}},
		{"JSX in JavaScript", js, []driverCell{{"const React = { createElement: (t) => t };\n<i>x</i>", "'i'\n", "", 0}}},
		{"errors", js, []driverCell{
			{"let a = 1\nlet b = ;", "", "<cell 1>:2:8:", 1},
			{"typeof a", "'undefined'\n", "", 0},
			{"function f() {\n  throw new RangeError('no');\n}", "", "", 0},
			{"let {x} = {x: 1}, y; f()", "", "<cell 3>:2:9\n  throw new RangeError('no');\n        ^\n\nRangeError: no\n    at f (<cell 3>:2:9)\n    at <cell 4>:1:22\n", 1},
			{"async function g() { await null; f() }\nawait g()", "", "    at async <cell 5>:2:1\n", 1},
			{"throw 'a string'", "", "Uncaught 'a string'", 1},
			{"throw { get stack() { throw 1 } }", "", "cannot be shown", 1},
			{"new Error('shown').message", "'shown'\n", "", 0},
			{"let u = u2", "", "ReferenceError: u2 is not defined\n    at <cell 9>:1:", 1},
			{"u", "", "ReferenceError: u is not defined", 1},
			{"await new Promise(() => {})", "", "never finished", 13},
		}},
		{"callbacks of other cells", js, []driverCell{
			{"setInterval(() => console.log('tick'), 50); setTimeout(() => { throw new Error('late') }, 50); undefined", "", "", 0},
			{"await new Promise((r) => setTimeout(r, 200)); 'mine alone'", "'mine alone'\n", "<cell 1>:1:70", 0},
			{"setTimeout(() => { throw new Error('own') }, 1); await new Promise(() => {})", "", "Error: own", 1},
			{"Promise.reject(new Error('unhandled')); 1", "", "Error: unhandled\n    at <cell 4>:1:16\n", 1},
			{"process.on('uncaughtException', (e) => console.log('handled', e.message)); setTimeout(() => { throw new Error('x') }, 1); await new Promise((r) => setTimeout(r, 20)); 0", "handled x\n0\n", "", 0},
			{"process.removeAllListeners('uncaughtException'); 0", "0\n", "", 0},
			{"setTimeout(() => { throw new Error('still caught') }, 1); await new Promise((r) => setTimeout(r, 200))", "", "still caught", 1},
		}},
		{"output", js, []driverCell{
			{"const { execSync, spawn } = require('child_process'); console.error('err'); process.stdout.write('out\\n'); require('fs').writeSync(1, 'raw\\n'); execSync('echo child', { stdio: 'inherit' })", "out\nraw\nchild\nnull\n", "err\n", 0},
			{"process.stdout.end('ended\\n'); process.stdout.destroy(); console.log('not')", "ended\nnot\n", "", 0},
			{"const w = new (require('worker_threads').Worker)(\"console.log('from a worker')\", { eval: true }); await new Promise((r) => w.on('exit', r))", "from a worker\n0\n", "", 0},
			{"execSync('test -e /proc/self/fd/3 || echo none').toString()", "'none\\n'\n", "", 0},
			{"const kid = spawn('sh', ['-c', 'read x; echo late'], { stdio: ['pipe', 'inherit', 'inherit'] }); 0", "0\n", "", 0},
			{"kid.stdin.end('go\\n'); await new Promise((r) => kid.on('exit', r)) // nobody reads its pipe", "null\n", "", 0},
			{"require('fs').closeSync(1); console.log('closed')", "closed\n", "", 0},
			{"require('fs').closeSync(0); require('fs').closeSync(2); console.error('closed')", "", "closed\n", 0},
			{"require('fs').writeSync(1, 'and again\\n'); console.error('err')", "and again\n", "err\n", 0},
		}},
		{"interrupts", js, []driverCell{
			{"let kept = 'kept'; const sleep = (ms) => new Promise((r) => setTimeout(r, ms)); 0", "0\n", "", 0},
			{ping + "while (true) {}", marker, interrupted, 130},
			{ping + "await new Promise((r) => setTimeout(r, 60000))", marker, interrupted, 130},
			{"import { sep } from 'path';\n" + ping + "for (;;) {}", marker, interrupted, 130},
			{"await sleep(1)\n" + ping + "for (;;) {}", marker, interrupted, 130},
			{"setTimeout(() => {\n" + ping + "for (;;) {} }, 1)\nawait new Promise(() => {})", marker, interrupted, 130},
			{ping + "for (;;) await null", marker, interrupted, 130},
			{ping + "/^(a+)+$/.test('a'.repeat(40) + 'b')", marker, interrupted, 130},
			{ping + "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)", marker, interrupted, 130},
			{"require('child_process').execSync('echo interrupt me; exec sleep 60', { stdio: 'inherit' })", marker, interrupted, 130},
			{ping + "try { for (;;) {} } finally { for (;;) {} }", marker, interrupted, 130},
			{"await sleep(1); kept", "'kept'\n", "", 0},
			{"process.kill(process.pid, 'SIGINT'); await sleep(60000)", "", interrupted, 130},
		}},
		{"exit", js, []driverCell{{"console.log('last words'); process.exit(7)", "last words\n", "", -1}}},
		{"exit in a promise", ts, []driverCell{{"process.on('exit', () => console.log('handler'));\nawait new Promise<void>(() => process.exit(0))", "handler\n", "", -1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			startNodeDriver(t, c.language).expectCells(c.cells, ".cjs", "node:internal/process")
		})
	}
}

// expectCells runs cells. Their errors must not show the driver, whose files have the given names.
func (d *testedDriver) expectCells(cells []driverCell, own ...string) {
	d.t.Helper()
	for i, cell := range cells {
		got := d.run(cell.code)
		late := strings.Join(lateOutput.FindAllString(got.stdout, -1), "")
		got.stdout = lateOutput.ReplaceAllString(got.stdout, "")
		if got.stdout != cell.stdout || got.exit != cell.exit {
			d.t.Errorf("cell %d: stdout %q, exit %d; want %q, %d\n%s\nstderr: %s", i+1, got.stdout, got.exit, cell.stdout, cell.exit, cell.code, got.stderr)
		}
		if want := strings.ReplaceAll(cell.stderr, "DATA", d.data); want == "" && got.stderr != "" || !strings.Contains(got.stderr+late, want) {
			d.t.Errorf("cell %d: stderr:\n%s\nlate: %s\nwant:\n%s", i+1, got.stderr, late, want)
		}
		for _, name := range own {
			if strings.Contains(got.stderr, name) {
				d.t.Errorf("cell %d: stderr shows the driver:\n%s", i+1, got.stderr)
			}
		}
		if got.exit == -1 && i+1 < len(cells) {
			d.t.Fatal("the interpreter has ended")
		}
	}
}

// redeclarations declares names of each kind and then again of each kind.
func redeclarations() []driverCell {
	kinds := []struct{ code, shown string }{
		{"let X = 1", "1"},
		{"const X = 2", "2"},
		{"var X = 3", "3"},
		{"function X() {}", "[Function: X]"},
		{"async function X() {}", "[AsyncFunction: X]"},
		{"class X {}", "[class X]"},
		{"let {a: X, ...restX} = {a: 4}", "4"},
		{"import { sep as X } from 'path'", "/"},
		{"export const X = 5", "5"},
	}
	var first, second, third strings.Builder
	var shown []string
	for i, a := range kinds {
		for j, b := range kinds {
			name := fmt.Sprintf("v%d%d", i, j)
			first.WriteString(strings.ReplaceAll(a.code, "X", name) + "\n")
			second.WriteString(strings.ReplaceAll(b.code, "X", name) + "\n")
			fmt.Fprintf(&third, "console.log(%s)\n", name)
			shown = append(shown, strings.ReplaceAll(b.shown, "X", name)+"\n")
		}
	}
	return []driverCell{{first.String(), "", "", 0}, {second.String(), "", "", 0}, {third.String(), strings.Join(shown, ""), "", 0}}
}

// TestEarlyInterrupt: an interrupt that a driver could not notice yet ends the cell, not the state.
func TestEarlyInterrupt(t *testing.T) {
	for name, c := range map[string]struct {
		driver                 *testedDriver
		keep, wait, want, show string
	}{
		"python": {startPythonDriver(t), "kept = 'kept'", "import time\ntime.sleep(60)", "KeyboardInterrupt\n", "kept"},
		"node":   {startNodeDriver(t, "javascript"), "let kept = 'kept'", "for (;;) {}", "Interrupted.\n", "kept"},
		"shell":  {startShellDriver(t), "kept=\"'kept'\"", "sleep 60", "", "echo $kept"},
	} {
		t.Run(name, func(t *testing.T) {
			c.driver.run(c.keep)
			c.driver.early = true
			if got := c.driver.run(c.wait); got.exit != 130 || got.stderr != c.want {
				t.Errorf("interrupted: %+v", got)
			}
			c.driver.early = false
			if got := c.driver.run(c.show); got.stdout != "'kept'\n" || got.exit != 0 {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
}

// TestShellDriverHidesItself: what a cell traces or traps is the cell's own code.
func TestShellDriverHidesItself(t *testing.T) {
	d := startShellDriver(t)
	for _, cell := range []struct{ code, stdout, stderr string }{
		{"set -x", "", ""},
		{"echo a", "a\n", "++ echo a\n"}, // a cell is sourced
		{"set +x", "", "++ set +x\n"},
		{"trap 'echo returned' RETURN", "returned\n", ""},
		{"echo b", "b\nreturned\n", ""},
	} {
		if got := d.run(cell.code); got.stdout != cell.stdout || got.stderr != cell.stderr || got.exit != 0 {
			t.Errorf("%s: %+v", cell.code, got)
		}
	}
}

func startShellDriver(t *testing.T) *testedDriver {
	t.Helper()
	source, err := filepath.Abs("../../runners/shell/driver.sh")
	if err != nil {
		t.Fatal(err)
	}
	return startDriver(t, []string{"/bin/bash", source})
}

func TestNodeDriverFlood(t *testing.T) {
	d := startNodeDriver(t, "javascript")
	const size = 10 << 20
	for _, code := range []string{
		"process.stdout.write('x'.repeat(10 << 20)); undefined",
		"for (let i = 0; i < 10 << 10; i++) console.log('x'.repeat(1023))",
		"require('child_process').execSync(\"head -c 10485760 /dev/zero\", { stdio: 'inherit' }); undefined",
	} {
		if got := d.run(code); len(got.stdout) != size || got.stderr != "" || got.exit != 0 {
			t.Errorf("%s: %d bytes, exit %d, stderr %q", code, len(got.stdout), got.exit, got.stderr)
		}
	}
}

// lateOutput matches what callbacks of earlier cells print.
var lateOutput = regexp.MustCompile(`(?s)\[late output of cell \d+\]\n.*?\[end of late output\]\n`)
