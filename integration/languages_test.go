//go:build linux

package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// program is a piece of code and its expected outcome.
type program struct {
	name     string
	language string
	code     string
	output   string   // all of it, where it is not empty
	contains []string // parts of the output
	fails    bool
	exitCode int
}

func (p program) check(t *testing.T, r runResult) {
	t.Helper()
	if r.Success == p.fails || r.ExitCode != p.exitCode || r.Cause != "" {
		t.Errorf("success is %t, exit code %d, cause %q; want %t, %d and none\n%s", r.Success, r.ExitCode, r.Cause, !p.fails, p.exitCode, r.Output)
	}
	if p.output != "" && r.Output != p.output {
		t.Errorf("printed %q, want %q", r.Output, p.output)
	}
	for _, part := range p.contains {
		if !strings.Contains(r.Output, part) {
			t.Errorf("printed %q, want %q in it", r.Output, part)
		}
	}
}

// TestLanguages runs typical programs of each language in the real jail. The programs of a session
// share its files.
func TestLanguages(t *testing.T) {
	s := serve(t)
	sessions := []struct {
		name     string
		programs []program
	}{
		{"python", pythonPrograms},
		{"typescript", typescriptPrograms},
		{"javascript", javascriptPrograms},
		{"shell", shellPrograms},
	}
	for _, session := range sessions {
		t.Run(session.name, func(t *testing.T) {
			for _, p := range session.programs {
				t.Run(p.name, func(t *testing.T) {
					p.check(t, s.run(t, session.name, p.language, p.code))
				})
			}
		})
	}
}

var pythonPrograms = []program{
	{name: "libraries", language: "python", code: `
import numpy, pandas, matplotlib, seaborn, scipy, scipy.optimize, openpyxl, reportlab, pyarrow, pyarrow.parquet, requests, psycopg2
print(numpy.arange(4).sum(), round(scipy.optimize.brentq(lambda x: x * x - 2, 0, 2), 3))
`, output: "6 1.414\n"},
	{name: "a plot without warnings", language: "python", code: `
import warnings; warnings.simplefilter("error", UserWarning)
import matplotlib.pyplot as plt, seaborn as sns
sns.lineplot(x=[1, 2, 3], y=[1, 4, 9])
plt.title("Über \u03b1")
plt.savefig("/data/plot.png")
print(open("/data/plot.png", "rb").read(8))
`, output: "b'\\x89PNG\\r\\n\\x1a\\n'\n"},
	{name: "a PDF", language: "python", code: `
from reportlab.pdfgen import canvas
c = canvas.Canvas("report.pdf")
c.drawString(72, 720, "Hello")
c.save()
print(open("/data/report.pdf", "rb").read(5).decode())
`, output: "%PDF-\n"},
	{name: "an xlsx and a parquet round trip", language: "python", code: `
import pandas as pd
df = pd.DataFrame({"name": ["Ann", "Bo"], "n": [1, 2]})
df.to_excel("t.xlsx", index=False)
df.to_parquet("t.parquet")
print(pd.read_excel("t.xlsx").equals(df), pd.read_parquet("t.parquet").equals(df))
`, output: "True True\n"},
	{name: "a module for the next run", language: "python", code: `open("helper.py", "w").write("def twice(x): return 2 * x\n")`},
	{name: "the next run", language: "python", code: `import helper; print(helper.twice(21))`, output: "42\n"},
	{name: "an error with the line", language: "python", code: "x = 1\n\nx / 0\n", fails: true, exitCode: 1,
		contains: []string{"line 3", "x / 0", "ZeroDivisionError"}},
	{name: "a syntax error", language: "python", code: "def f(:\n", fails: true, exitCode: 1, contains: []string{"line 1", "SyntaxError"}},
	{name: "its own exit code", language: "python", code: `import sys; print("bye"); sys.exit(3)`, fails: true, exitCode: 3, output: "bye\n"},
	{name: "standard input is empty", language: "python", code: `import sys; print(repr(sys.stdin.read()))`, output: "''\n"},
	{name: "stderr after stdout", language: "python", code: `import sys; print("err", file=sys.stderr); print("out")`, output: "out\n\nerr\n"},
	{name: "threads and processes", language: "python", code: `
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
if __name__ == "__main__":
    for pool in (ThreadPoolExecutor, ProcessPoolExecutor):
        with pool(4) as p: print(sum(p.map(abs, range(10))))
`, output: "45\n45\n"},
}

var typescriptPrograms = []program{
	{name: "types, enums, generics", language: "typescript", code: `
interface Point { x: number; y?: number }
enum Color { Red, Green = "g".length + 4 }
const enum Small { One = 1 }
abstract class Shape<T extends Point> { constructor(protected readonly at: T) {} abstract area(): number }
class Square extends Shape<Point> { area(): number { return this.at.x ** 2 } }
namespace Util { export const id = <T,>(x: T): T => x }
const s = new Square({ x: 3 } satisfies Point);
console.log(Util.id(s.area()), Color[0], Color.Green, Small.One, (null as unknown as Point)?.x ?? "none");
`, output: "9 Red 5 1 none\n"},
	{name: "experimental decorators", language: "typescript", code: `
const seen: string[] = [];
function log(target: any, key: string, d: PropertyDescriptor) { seen.push(key); return d; }
class A { @log m() { return 1 } }
new A().m();
console.log(seen.join());
`, output: "m\n"},
	{name: "standard decorators", language: "typescript", code: `
function twice(f: (...a: any[]) => number, ctx: ClassMethodDecoratorContext) { return function (this: any, ...a: any[]) { return 2 * f.apply(this, a) } }
class A { @twice m(x: number) { return x } }
console.log(new A().m(21));
`, output: "42\n"},
	{name: "JSX", language: "typescript", code: `
const React = { createElement: (tag: string, props: object | null, ...kids: unknown[]) => ({ tag, props, kids }) };
const el = <div id="a">hi {1 + 1}</div>;
console.log(JSON.stringify(el));
`, output: `{"tag":"div","props":{"id":"a"},"kids":["hi ",2]}` + "\n"},
	{name: "top-level await", language: "typescript", code: `
const v: number = await new Promise<number>((ok) => setTimeout(() => ok(7), 5));
console.log(v);
`, output: "7\n"},
	{name: "import and require", language: "typescript", code: `
import { readFileSync } from "node:fs";
import path from "path";
const os = require("os");
const { default: util } = await import("node:util");
console.log(typeof readFileSync, path.join("a", "b"), typeof os.cpus, typeof util.format);
`, output: "function a/b function function\n"},
	{name: "packages", language: "typescript", code: `
import postgres from "postgres";
import pg, { Client } from "pg";
import csv from "csv-parser";
import Papa from "papaparse";
import { Readable } from "node:stream";
const rows: any[] = [];
for await (const row of Readable.from(["a,b\n1,2\n"]).pipe(csv())) rows.push(row);
console.log(typeof postgres, typeof pg.Pool, typeof Client, rows[0].b, Papa.parse("x,y\n1,2", { header: true }).data[0]);
`, output: "function function function 2 { x: '1', y: '2' }\n"},
	{name: "files to import", language: "shell", code: `
echo '{"answer": 42}' > x.json
echo 'export const name: string = "lib"; export default function f(n: number) { return n + 1 }' > lib.ts
mkdir -p sub && echo 'import f from "../lib"; export const g = (n: number): number => f(n) * 2;' > sub/more.ts
`},
	{name: "JSON and relative imports", language: "typescript", code: `
import data from './x.json';
import f, { name } from './lib';
import { g } from './sub/more.ts';
console.log(data.answer, name, f(1), g(2), require('./x.json').answer);
`, output: "42 lib 2 6 42\n"},
	{name: "a runtime error shows line and column", language: "typescript", code: `interface Nothing { here: string }
type Also<T> = T | undefined;

function boom(n: number): never {
  throw new RangeError("too much: " + n);
}
boom(5);
`, fails: true, exitCode: 1, contains: []string{":5:9", `throw new RangeError("too much: " + n);`, "RangeError: too much: 5", ":7:1"}},
	{name: "a syntax error shows the compiler's message", language: "typescript", code: "const a = 1;\nconst b = ;\n", fails: true, exitCode: 1,
		contains: []string{`Unexpected ";"`, "main", ":2:10"}},
	{name: "a rejected promise", language: "typescript", code: `await Promise.reject(new Error("no luck"));`, fails: true, exitCode: 1, contains: []string{"Error: no luck"}},
	{name: "a missing package", language: "typescript", code: `import x from "left-pad"; console.log(x)`, fails: true, exitCode: 1, contains: []string{"left-pad"}},
	{name: "an exit code", language: "typescript", code: `process.exit(4)`, fails: true, exitCode: 4},
}

var javascriptPrograms = []program{
	{name: "CommonJS", language: "javascript", code: `
const fs = require("fs");
module.exports = { a: 1 };
fs.writeFileSync("cjs.js", "exports.n = 5;");
console.log(require("./cjs.js").n, __dirname, typeof __filename, this === exports);
`, output: "5 /data string true\n"},
	{name: "ESM", language: "javascript", code: `
import fs, { readdirSync } from "fs";
export const x = 1;
fs.writeFileSync("esm.mjs", "export const n = 6; export default 7;");
const { n, default: d } = await import("./esm.mjs");
console.log(n, d, readdirSync(".").includes("esm.mjs"), import.meta.url.startsWith("file:///data/"));
`, output: "6 7 true true\n"},
	{name: "by its other name", language: "node", code: `console.log([1, 2, 3].at(-1), typeof require("pg").Client, typeof require("papaparse").parse, typeof require("csv-parser"), typeof require("postgres"))`,
		output: "3 function function function function\n"},
	{name: "a runtime error", language: "javascript", code: "let a;\n\n  a.b();\n", fails: true, exitCode: 1, contains: []string{":3:5", "TypeError"}},
	{name: "a syntax error", language: "javascript", code: "let a = 1;\nlet b = {;\n", fails: true, exitCode: 1, contains: []string{":2:9", "Expected identifier"}},
}

var shellPrograms = []program{
	{name: "pipes", language: "shell", code: `printf 'b\na\nc\n' | sort | tr -d '\n' | sed s/b/B/`, output: "aBc"},
	{name: "an exit code", language: "bash", code: "echo out; echo err >&2; exit 9", output: "out\n\nerr\n", fails: true, exitCode: 9},
	{name: "set -e", language: "shell", code: "set -e\necho one\nfalse\necho two", output: "one\n", fails: true, exitCode: 1},
	{name: "pipefail", language: "shell", code: "set -o pipefail; false | true", fails: true, exitCode: 1},
	{name: "bash, not sh", language: "shell", code: `a=(1 2 3); [[ ${#a[@]} == 3 ]] && diff <(echo x) <(echo x) && echo same`, output: "same\n"},
	{name: "a killed child", language: "shell", code: `bash -c 'kill -TERM $$' 2>/dev/null; echo $?`, contains: []string{"143\n"}},
	{name: "python and node are there", language: "shell", code: `python3 -c 'import pandas; print(1)' && node -e 'console.log(2)'`, output: "1\n2\n"},
	{name: "here", language: "shell", code: "pwd; id -u; cd /mnt/data && touch a && ls /workspace/a; hostname", output: "/data\n1000\n/workspace/a\nsandbox\n"},
}

// TestDeepNesting checks that code on which a compiler spends gigabytes ends the run and does not
// harm the server.
func TestDeepNesting(t *testing.T) {
	s := serve(t)
	s.run(t, "warm", "typescript", `console.log(1)`)
	before := s.memory(t)
	const n = 100_000
	for _, tt := range []struct{ name, language, code string }{
		{"open braces", "typescript", strings.Repeat("{", n)},
		{"nested braces", "typescript", strings.Repeat("{", n/2) + strings.Repeat("}", n/2)},
		{"open braces", "javascript", strings.Repeat("{", n)},
		{"nested arrays", "typescript", "const a = " + strings.Repeat("[", n/2-10) + strings.Repeat("]", n/2-10)},
		{"parentheses", "python", strings.Repeat("(", n/2) + strings.Repeat(")", n/2)},
		{"command substitutions", "shell", strings.Repeat("$(", n/2)},
	} {
		t.Run(tt.language+"/"+tt.name, func(t *testing.T) {
			began := time.Now()
			r := s.run(t, "deep", tt.language, tt.code)
			if r.Success || r.Output == "" && r.Hint == "" {
				t.Errorf("want a failure that says why: %+v", r)
			}
			if took := time.Since(began); took > 70*time.Second {
				t.Errorf("it took %v", took)
			}
			t.Logf("%v, exit code %d, cause %q, hint %q: %.200s", time.Since(began).Round(time.Millisecond), r.ExitCode, r.Cause, r.Hint, r.Output)
		})
	}
	if after := s.memory(t); after > before+64<<20 {
		t.Errorf("the server's memory grew from %d to %d MB", before>>20, after>>20)
	}
}

// TestFilesOfARun checks that the list includes sub-directories and that every link works.
func TestFilesOfARun(t *testing.T) {
	s := serve(t)
	r := s.run(t, "files", "python", `
import os
os.makedirs("plots/2024")
names = ["top.txt", "plots/a b.png", "plots/2024/ü#?&%.csv", "plots/2024/-rf", "100%41.txt", "a+b.txt", "semi;colon", "q'uote\".txt", ".hidden", "~home"]
for n in names: open(n, "w").write(n)
os.mkdir("empty")
`)
	want := []string{"top.txt", "plots/a b.png", "plots/2024/ü#?&%.csv", "plots/2024/-rf", "100%41.txt", "a+b.txt", "semi;colon", "q'uote\".txt", ".hidden", "~home"}
	if len(r.Files) != len(want) || r.FilesTruncated {
		t.Fatalf("%d files, want %d: %+v", len(r.Files), len(want), r.Files)
	}
	for _, f := range r.Files {
		if !slices.Contains(want, f.Name) {
			t.Errorf("unknown file %q", f.Name)
		}
		for _, url := range []string{f.URL, strings.Replace(f.URL, "/plots/", "/plots%2F", 1)} {
			if status, body := s.fetch(t, http.MethodGet, url, nil); status != http.StatusOK || string(body) != f.Name {
				t.Errorf("GET %s: %d %q, want the file's own name", url, status, body)
			}
		}
	}
	// A list is bounded, and says so.
	r = s.run(t, "many", "shell", `for i in $(seq 250); do echo $i > f$i; done; touch -d '+1 minute' f7`)
	if len(r.Files) != 200 || !r.FilesTruncated || r.Files[0].Name != "f7" {
		t.Errorf("250 files gave %d, truncated: %t, first %+v", len(r.Files), r.FilesTruncated, r.Files[0])
	}
}

// fetch sends a request as a browser or curl would, without a token.
func (s *server) fetch(t *testing.T, method, url string, body []byte, headers ...string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Add(name, value)
		if name == "Host" {
			req.Host = value
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(fmt.Errorf("%s %s: %w", method, url, err))
	}
	return resp.StatusCode, answer
}
