package runner

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/runners"
)

// nodeProgram copies this tree's programs next to installed libraries, and returns the command that
// starts one.
func nodeProgram(t *testing.T, name string, flags ...string) []string {
	t.Helper()
	dir := os.Getenv("SANDBOX_TEST_RUNNERS")
	s, err := readStamp(filepath.Join(dir, "node"))
	if dir == "" || err != nil || !s.Complete {
		skip(t, "no Node environment: run make test, or set SANDBOX_TEST_RUNNERS to a directory that has been prepared")
	}
	env := t.TempDir()
	if err := copyFiles(runners.Files, "node", env, node.files...); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "node", "node_modules"), filepath.Join(env, "node_modules")); err != nil {
		t.Fatal(err)
	}
	flags = append([]string{s.Interpreter.Path, "--experimental-vm-modules", "--disable-warning=ExperimentalWarning"}, flags...)
	return append(flags, filepath.Join(env, name))
}

// skip skips a test that this machine cannot run, or fails it if it must.
func skip(t *testing.T, reason string) {
	t.Helper()
	if os.Getenv("REQUIRE_ALL") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// The launcher runs outside a sandbox here, which makes no difference to it. A prestarted one with
// a waiting esbuild has the same results, down to the last byte.
func TestLauncher(t *testing.T) {
	command := nodeProgram(t, "launch.cjs")
	data, tmp := t.TempDir(), t.TempDir()
	for name, content := range map[string]string{
		"x.json":                      `{"k": "from json", "list": [1, 2]}`,
		"lib.ts":                      "export const add = (a: number, b: number): number => a + b;\nexport type T = string;\nexport function fail(): never {\n  throw new Error('in lib');\n}\n",
		"old.js":                      "exports.kind = 'commonjs'; exports.dir = __dirname;\n",
		"new.js":                      "import { add } from './lib';\nexport const three = add(1, 2);\n",
		"pair/index.ts":               "export { three } from '../new.js';\n",
		"broken.js":                   "export const a = ;\n",
		"node_modules/mine/index.js":  "module.exports = 'my own package';\n",
		"cycle-a.ts":                  "import { b } from './cycle-b'; export const a = () => 'a'; export const ab = () => a() + b();\n",
		"cycle-b.ts":                  "import { a } from './cycle-a'; export const b = () => 'b' + a();\n",
		"node_modules/@me/p/index.js": "module.exports = 'scoped';\n",
	} {
		path := filepath.Join(data, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	if err := os.Mkdir(filepath.Join(tmp, "waiting"), 0o755); err != nil {
		t.Fatal(err)
	}
	const ts, js = "ts", "js"
	for _, c := range []struct {
		name, ext, code string
		stdout          string // exact
		stderr          string // must be contained, with DATA for the directory; empty: stderr is empty
		exit            int
	}{
		{"types and enums", ts, "enum C { Red = 1, Blue }\ninterface I { a: number }\nconst i: I = { a: 2 } as I;\nconsole.log(C.Blue, C[1], i.a satisfies number)", "2 Red 2\n", "", 0},
		{"namespace and parameter properties", ts, "namespace N { export const x = 1 }\nclass P { constructor(private readonly y: number) {} get() { return this.y } }\nconsole.log(N.x, new P(2).get())", "1 2\n", "", 0},
		{"standard decorators", ts, "function d(f: any, c: ClassMethodDecoratorContext) { return function (this: any) { return c.name.toString() + f.call(this) } }\nclass A { @d m() { return 1 } }\nconsole.log(new A().m())", "m1\n", "", 0},
		{"experimental decorators", ts, "function d(t: any, key: string, p: PropertyDescriptor) { const f = p.value; p.value = function () { return key + f.call(this) } }\nclass A { @d m() { return 1 } }\nconsole.log(new A().m())", "m1\n", "", 0},
		{"parameter decorators", ts, "const seen: any[] = [];\nfunction d(t: any, k: any, i: number) { seen.push(i) }\nclass A { m(@d a: any, @d b: any) {} }\nconsole.log(seen.length)", "2\n", "", 0},
		{"JSX", ts, "const React = { createElement: (t: string, p: any, ...c: any[]) => `${t}:${p.id}:${c}` };\nconsole.log(<b id=\"x\">hi</b>)", "b:x:hi\n", "", 0},
		{"JSX with a pragma", ts, "/** @jsx h */\nconst h = (t: string) => t;\nconsole.log(<br />)", "br\n", "", 0},
		{"casts and generics are no JSX", ts, "const id = <T>(x: T): T => x;\nconsole.log(<number>id<number>(3))", "3\n", "", 0},
		{"JSX in JavaScript", js, "const React = { createElement: (t) => t };\nconsole.log(<i>x</i>)", "i\n", "", 0},
		{"top-level await", ts, "const v: number = await Promise.resolve(5);\nconsole.log(v)", "5\n", "", 0},
		{"top-level await in JavaScript", js, "await (async () => console.log('called'))();", "called\n", "", 0},
		{"import and require together", ts, "import { sep } from 'path';\nimport * as fs from 'node:fs/promises';\nconst os = require('os');\nconsole.log(sep, typeof fs.readFile, typeof os.cpus)", "/ function function\n", "", 0},
		{"import and require together, JavaScript", js, "import { sep } from 'path';\nconst { join } = require('path');\nconsole.log(join('a', 'b') === 'a' + sep + 'b')", "true\n", "", 0},
		{"require of its own making", js, "import { createRequire } from 'module';\nconst require = createRequire(import.meta.url);\nconsole.log(require('./x.json').k)", "from json\n", "", 0},
		{"JSON", ts, "import data from './x.json';\nimport { k } from './x.json';\nimport other from './x.json' with { type: 'json' };\nconsole.log(data.list.length, k, other === data, require('./x.json').k)", "2 from json true from json\n", "", 0},
		{"relative imports", ts, "import { add, T } from './lib';\nimport { add as byJS } from './lib.js';\nimport { three } from './pair';\nimport old, { kind } from './old.js';\nconst t: T = 'x';\nconsole.log(add(1, 1), add === byJS, three, kind, old.dir === __dirname, require('./lib').add(2, 2))", "2 true 3 commonjs true 4\n", "", 0},
		{"cyclic imports", ts, "import { ab } from './cycle-a';\nconsole.log(ab())", "aba\n", "", 0},
		{"dynamic imports", js, "Promise.all([import('./lib'), import('./lib.ts'), import('./x.json'), import('pg')]).then(([a, b, c, d]) => console.log(a === b, c.default.k, typeof d.Client))", "true from json function\n", "", 0},
		{"packages", ts, "import postgres from 'postgres';\nimport pg, { Client } from 'pg';\nimport csv from 'csv-parser';\nimport Papa from 'papaparse';\nconsole.log(typeof postgres, pg.Client === Client, typeof csv, Papa.parse('a,b').data[0].length, require('pg') === pg)", "function true function 2 true\n", "", 0},
		{"the user's own packages", ts, "import mine from 'mine';\nimport p from '@me/p';\nconsole.log(mine, p, require('mine'))", "my own package scoped my own package\n", "", 0},
		{"CommonJS script", js, "x = 5;\nmodule.exports = { x };\nif (require.main === module) console.log(this === exports, x, require('./old').kind, __dirname === process.cwd())", "true 5 commonjs true\n", "", 0},
		{"return at the top level", js, "console.log(1);\nreturn;\nconsole.log(2)", "1\n", "", 0},
		{"argv and import.meta", ts, "console.log(process.argv.length, process.argv[1] === __filename, import.meta.filename === __filename, import.meta.url === 'file://' + __filename, process.execArgv.length)", "2 true true true 0\n", "", 0},
		{"exit code", ts, "process.exit(7)", "", "", 7},
		{"exit code set", js, "process.exitCode = 3", "", "", 3},
		{"exit inside an await", ts, "await new Promise<void>(() => process.exit(0))", "", "", 0},

		{"error with the user's position", ts, "interface A {\n  x: number;\n}\nconst a: A = { x: 1 };\n\n  null!.foo;", "", "DATA/main-1.ts:6:9\n  null!.foo;\n        ^\n\nTypeError: Cannot read properties of null (reading 'foo')\n    at DATA/main-1.ts:6:9\n", 1},
		{"error in JavaScript", js, "function f() {\n  throw new RangeError('no');\n}\nf();", "", "DATA/main-1.js:2:9\n  throw new RangeError('no');\n        ^\n\nRangeError: no\n    at f (DATA/main-1.js:2:9)\n    at Object.<anonymous> (DATA/main-1.js:4:1)\n", 1},
		{"error in a callback", ts, "type T = string;\nsetTimeout((): void => {\n  throw new Error('later');\n}, 1);", "", "DATA/main-1.ts:3:9\n", 1},
		{"rejection", ts, "type T = string;\nasync function f(): Promise<void> { await null; throw new Error('async') }\nawait f();", "", "DATA/main-1.ts:2:55\n", 1},
		{"error in an imported file", ts, "import { fail } from './lib';\nfail();", "", "DATA/lib.ts:4:9\n  throw new Error('in lib');", 1},
		{"cause", ts, "type T = 1;\ntry { JSON.parse('{') } catch (e) { throw new Error('outer', { cause: e }) }", "", "[cause]: SyntaxError", 1},
		{"string thrown", ts, "throw 'a string'", "", "Uncaught 'a string'", 1},
		{"handled by the program", ts, "process.on('uncaughtException', (e: Error) => console.log('got', e.message));\nthrow new Error('x')", "got x\n", "", 0},
		{"await without end", ts, "await new Promise(() => {})", "", "never finished", 13},
		{"missing module", ts, "import { a } from './nowhere';\nconsole.log(a)", "", "Cannot find module './nowhere' imported from DATA/main-1.ts", 1},
		{"missing export", ts, "import { nothing } from './lib';\nconsole.log(nothing)", "", "does not provide an export named 'nothing'", 1},
		{"syntax error", ts, "const a = 1;\nlet x: = 5;", "", "Unexpected \"=\"\n\n    DATA/main-1.ts:2:7:\n      2 │ let x: = 5;", 1},
		{"syntax error in JavaScript", js, "const a = 1;\nlet x = ;", "", "DATA/main-1.js:2:8:", 1},
		{"syntax error in an imported file", js, "import './broken.js'", "", "DATA/broken.js:1:17:", 1},
		{"syntax error that names memory", ts, "let x: = 'out of memory'", "", "Unexpected \"=\"", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(tmp, "main-1."+c.ext)
			if err := os.WriteFile(file, []byte(c.code), 0o644); err != nil {
				t.Fatal(err)
			}
			stdout, stderr, exit := launch(t, data, append(command, file)...)
			prestarted := prestart(t, data, filepath.Join(tmp, "waiting", filepath.Base(file)), waitingEsbuild(command), command)
			if out, errs, code := prestarted.run(t, c.code); out != stdout || errs != stderr || code != exit {
				t.Errorf("prestarted: stdout %q, exit %d, stderr:\n%s\nwant %q, %d and:\n%s", out, code, errs, stdout, exit, stderr)
			}
			if stdout != c.stdout || exit != c.exit {
				t.Errorf("stdout %q, exit %d; want %q, %d\nstderr: %s", stdout, exit, c.stdout, c.exit, stderr)
			}
			want := strings.ReplaceAll(c.stderr, "DATA", data)
			if want == "" && stderr != "" || !strings.Contains(stderr, want) {
				t.Errorf("stderr:\n%s\nwant:\n%s", stderr, want)
			}
			if strings.Contains(stderr, ".cjs") || strings.Contains(stderr, "node:internal") {
				t.Errorf("stderr shows the launcher:\n%s", stderr)
			}
		})
	}
}

// TestLauncherCompilerOutOfMemory: source that exhausts the compiler's memory ends with a message.
// Here the shell sets the limit instead of the sandbox.
func TestLauncherCompilerOutOfMemory(t *testing.T) {
	command := nodeProgram(t, "launch.cjs")
	file := filepath.Join(t.TempDir(), "main-1.ts")
	if err := os.WriteFile(file, []byte(strings.Repeat("{", 50_000)+strings.Repeat("}", 50_000)), 0o644); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`ulimit -v %d && exec "$@"`, 2<<20)
	_, stderr, exit := launch(t, t.TempDir(), append([]string{"bash", "-c", script, "bash"}, append(command, file)...)...)
	if exit != 1 || !strings.Contains(stderr, "needs more memory to compile") {
		t.Errorf("exit %d, stderr: %.500s", exit, stderr)
	}
}

// TestLauncherCompilerAtProcessLimit: if Node starts but the compiler does not, the message names
// the limit.
func TestLauncherCompilerAtProcessLimit(t *testing.T) {
	if os.Geteuid() != 0 {
		skip(t, "needs root: the limit counts all processes of a uid, so the test takes an unused one")
	}
	command := nodeProgram(t, "launch.cjs")
	file := filepath.Join(t.TempDir(), "main-1.ts")
	if err := os.WriteFile(file, []byte("const works: number = 1; console.log(works)"), 0o644); err != nil {
		t.Fatal(err)
	}
	for limit := 20; limit > 0; limit-- { // the first that is too low: Node itself needs fewer
		limited := []string{"setpriv", "--reuid=54321", "--inh-caps=+dac_override", "--ambient-caps=+dac_override",
			"prlimit", "--core=0", fmt.Sprintf("--nproc=%d", limit)}
		stdout, stderr, exit := launch(t, "/", append(append(limited, command...), file)...)
		if stdout != "1\n" {
			if exit != 1 || !strings.Contains(stderr, "the process limit of the sandbox is reached") {
				t.Errorf("at %d processes: exit %d, stderr: %.500s", limit, exit, stderr)
			}
			return
		}
	}
	t.Error("no limit was too low")
}

func launch(t *testing.T, dir string, command ...string) (stdout, stderr string, exit int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/tmp"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exitErr *exec.ExitError
	if err != nil && !errors.As(err, &exitErr) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
