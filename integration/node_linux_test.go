package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/jpeg"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// nodeRun is a JavaScript or TypeScript cell as the page gets it.
type nodeRun struct {
	ExitCode int `json:"exit_code"`
	Cause    string
	Stdout   string
	Stderr   string
	Displays []struct {
		MIMEType string `json:"mime_type"`
		Text     string
		Plain    string
	}
	Outputs []struct {
		Type, Text, File string
		Index            *int
	}

	text string // for models
}

// order returns what was printed and shown, in order: text with its stream, a table's text, an
// image's file.
func (r nodeRun) order() (order []string) {
	for _, p := range r.Outputs {
		switch p.Type {
		case "display":
			order = append(order, "table: "+r.Displays[*p.Index].Plain)
		case "image":
			order = append(order, "image: "+p.File[strings.LastIndex(p.File, ".")+1:])
		default:
			order = append(order, p.Type+": "+p.Text)
		}
	}
	return order
}

func (s *server) nodeCell(t *testing.T, cs *mcp.ClientSession, args map[string]any) (r nodeRun) {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: args, Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
	if err != nil || res.IsError {
		t.Fatalf("%v: %+v, %v", args["code"], res, err)
	}
	b, err := json.Marshal(res.Meta["mcp-code-sandbox/run"])
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			r.text += text.Text
		}
	}
	return r
}

// TestNodeValues checks what cells in JavaScript and TypeScript show: tables, images, and nothing
// for timers, in order with what they print.
func TestNodeValues(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-06-18")
	const box = "┌─────────┬───┐\n│ (index) │ a │\n├─────────┼───┤\n│ 0       │ 1 │\n└─────────┴───┘\n"
	var photo bytes.Buffer
	if err := jpeg.Encode(&photo, image.NewGray(image.Rect(0, 0, 4, 4)), nil); err != nil {
		t.Fatal(err)
	}
	images := map[string]string{
		"png":  "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC",
		"jpg":  base64.StdEncoding.EncodeToString(photo.Bytes()),
		"gif":  "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7",
		"webp": "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==",
	}
	for _, env := range []string{"javascript", "typescript"} {
		run := func(code string) nodeRun {
			t.Helper()
			return s.nodeCell(t, cs, map[string]any{"session": env, "env": env, "code": code})
		}
		wantOrder := func(code string, want ...string) nodeRun {
			t.Helper()
			r := run(code)
			if got := r.order(); r.ExitCode != 0 || !slices.Equal(got, want) {
				t.Errorf("%s: %s\ngot %q (exit %d)\nwant %q", env, code, got, r.ExitCode, want)
			}
			return r
		}
		wantOrder("console.log('one'); console.error('two'); console.log('three'); console.warn('four'); console.table([{ a: 1 }]); process.stdout.write('five'); process.stderr.write('six');\n[{ b: 2 }]",
			"stdout: one\n", "stderr: two\n", "stdout: three\n", "stderr: four\n", "stdout: "+box, "table: "+box, "stdout: five", "stderr: six", "stdout: [ { b: 2 } ]\n", "table: [ { b: 2 } ]\n")
		r := wantOrder("[{ name: '<b>x</b>', n: 1.5 }, { name: 'é', extra: [1, { deep: {} }] }]",
			"stdout: [ { name: '<b>x</b>', n: 1.5 }, { name: 'é', extra: [ 1, [Object] ] } ]\n", "table: [ { name: '<b>x</b>', n: 1.5 }, { name: 'é', extra: [ 1, [Object] ] } ]\n")
		for _, part := range []string{"<th>name</th><th>n</th><th>extra</th>", "<td>&lt;b&gt;x&lt;/b&gt;</td><td>1.5</td><td></td>", "<td>é</td><td></td><td>[ 1, { deep: {} } ]</td>"} {
			if len(r.Displays) != 1 || !strings.Contains(r.Displays[0].Text, part) {
				t.Errorf("%s: a table without %s: %+v", env, part, r.Displays)
			}
		}
		if strings.Contains(r.text, "<td>") || !strings.Contains(r.text, "name: '<b>x</b>'") {
			t.Errorf("%s: a model gets %q", env, r.text)
		}
		wantOrder("console.group('g'); console.table([{ a: 1 }]); console.groupEnd()", "stdout: g\n  "+strings.ReplaceAll(strings.TrimSuffix(box, "\n"), "\n", "\n  ")+"\n",
			"table:   "+strings.ReplaceAll(strings.TrimSuffix(box, "\n"), "\n", "\n  ")+"\n")
		if r := run("console.table({ x: { a: 1 }, y: 2 }); console.table([{ a: 1, b: 2 }], ['b'])"); len(r.Displays) != 2 ||
			!strings.Contains(r.Displays[0].Text, "<tr><th>y</th><td></td><td>2</td></tr>") || strings.Contains(r.Displays[1].Text, "<th>a</th>") {
			t.Errorf("%s: other tables: %+v", env, r.Displays)
		}
		for _, plain := range []string{"[1, 2]", "[{ a: 1 }, 2]", "[]", "({ a: { b: 1 } })", "[new Map([[1, 2]])]", "new Map([['a', { b: 1 }]])"} {
			if r := run(plain); len(r.Displays) != 0 || r.Stdout == "" || r.ExitCode != 0 {
				t.Errorf("%s: %s: %+v", env, plain, r)
			}
		}

		for kind, data := range images {
			for _, value := range []string{"Buffer.from('%s', 'base64')", "new Uint8Array(Buffer.from('%s', 'base64'))", "Buffer.concat([Buffer.alloc(3), Buffer.from('%s', 'base64')]).subarray(3)"} {
				wantOrder("console.log('before');\n"+fmt.Sprintf(value, data), "stdout: before\n", "image: "+kind)
			}
		}
		wantOrder("Buffer.from('no image')", "stdout: <Buffer 6e 6f 20 69 6d 61 67 65>\n")
		if r := run("Buffer.concat([Buffer.from('" + images["png"] + "', 'base64'), Buffer.alloc(17 << 20)])"); r.ExitCode != 0 || !strings.HasPrefix(r.Stdout, "<Buffer 89 50") {
			t.Errorf("%s: an image that is too large: %+v", env, r)
		}

		for _, timer := range []string{"setTimeout(() => {}, 1)", "setImmediate(() => {})", "globalThis.ticker = setInterval(() => {}, 1000)"} {
			wantOrder(timer)
		}
		wantOrder("clearInterval(globalThis['ticker'])")
	}
}

// TestNodeHostileValues shows values that throw, never end, lie or are huge.
func TestNodeHostileValues(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-06-18")
	run := func(code string) nodeRun {
		t.Helper()
		return s.nodeCell(t, cs, map[string]any{"session": "h", "env": "javascript", "code": code, "timeout_seconds": 20})
	}
	const thrower = "new Proxy({}, { get() { throw new Error('trap') }, ownKeys() { throw new Error('trap') }, getPrototypeOf() { throw new Error('trap') } })"
	for _, c := range []struct{ code, stdout, html string }{
		{"[{ get a() { throw new Error('no') } }]", "[ { a: [Getter] } ]\n", "<td>[Getter]</td>"},
		{"[{ get a() { for (;;) {} } }]", "[ { a: [Getter] } ]\n", "<td>[Getter]</td>"},
		{"Object.defineProperty([1], 0, { get() { for (;;) {} }, enumerable: true })", "[ [Getter] ]\n", ""},
		{"var c = { name: 'c' }; c.self = c; [c]", "[ <ref *1> { name: 'c', self: [Circular *1] } ]\n", "&lt;ref *1&gt; { name: 'c', self: [Circular *1] }"},
		{"[[[[[[1]]]]]]", "[ [ [ [Array] ] ] ]\n", "[ [ [Array] ] ]"},
		{"[" + thrower + "]", "", ""},
		{"new Proxy([{ a: 1 }], { get(_, name) { if (name !== 'then') throw new Error('trap') } })", "", ""},
		{"Object.assign([{ a: 1 }], { every() { throw 1 }, slice() { throw 1 }, map() { throw 1 } })", "", "<td>1</td>"},
		{"[{ [Symbol.toPrimitive]() { throw 1 }, toString() { throw 1 }, a: 1 }]", "", "<td>1</td>"},
		{"new Proxy(Buffer.from('89504e470d0a1a0a', 'hex'), {})", "", ""},
		{"Array(1e7).fill({ a: 1 })", "", "10000000 rows × 1 columns"},
		{"[{ a: 'x'.repeat(1e5) }]", "", "<td>" + strings.Repeat("x", 1000) + "…</td>"},
		{"[Object.fromEntries(Array.from({ length: 5000 }, (_, i) => ['k' + i, i]))]", "", ""},
	} {
		r := run(c.code)
		if c.stdout != "" && r.Stdout != c.stdout || r.ExitCode != 0 || r.Stdout == "" {
			t.Errorf("%s: exit %d, %.300q %s", c.code, r.ExitCode, r.Stdout, r.Stderr)
		}
		html := ""
		if len(r.Displays) > 0 {
			html = r.Displays[0].Text
		}
		if c.html != "" && !strings.Contains(html, c.html) || len(html) > 256<<10 {
			t.Errorf("%s: %d bytes of HTML: %.500s", c.code, len(html), html)
		}
	}
	r := run("console.table(Array(1e7).fill({ a: 1 }))")
	if r.ExitCode != 0 || !strings.HasSuffix(r.Stdout, "\n… 9999000 more rows\n") {
		t.Errorf("a long table: exit %d, …%q", r.ExitCode, r.Stdout[max(0, len(r.Stdout)-200):])
	}
	if r = run("console.table([{ get a() { throw new Error('no') } }])"); r.ExitCode != 1 || !strings.Contains(r.Stderr, "Error: no") {
		t.Errorf("a getter that throws: %+v", r)
	}
	if r = run("console.table([{ get a() { console.log('printed'); return 1 } }])"); len(r.Displays) != 0 || !strings.HasPrefix(r.Stdout, "printed\n") {
		t.Errorf("a getter that prints: %+v", r)
	}
	if r = s.nodeCell(t, cs, map[string]any{"session": "h", "env": "javascript", "code": "console.table([{ get a() { for (;;) {} } }])", "timeout_seconds": 1}); r.Cause != "timeout" {
		t.Errorf("a getter that never ends: %+v", r)
	}
	if r = run("for (let i = 0; i < 70; i++) console.table([{ i }])"); len(r.Displays) != 64 || strings.Count(r.Stdout, "(index)") != 70 {
		t.Errorf("70 tables: %d displays, %d tables in the text", len(r.Displays), strings.Count(r.Stdout, "(index)"))
	}
	// Order has its price, which is bounded.
	r = run("for (let i = 0; i < 8000; i++) { console.log('out', i); console.error('err', i) }")
	order := r.order()
	if r.ExitCode != 0 || strings.Count(r.Stdout, "\n") != 8000 || len(order) < 20 {
		t.Fatalf("8000 lines: exit %d, %d lines, %d pieces", r.ExitCode, strings.Count(r.Stdout, "\n"), len(order))
	}
	for i := range 10 {
		if want := []string{fmt.Sprintf("stdout: out %d\n", i), fmt.Sprintf("stderr: err %d\n", i)}; !slices.Equal(order[2*i:2*i+2], want) {
			t.Errorf("order: %q, want %q", order[2*i:2*i+2], want)
		}
	}
	// The driver keeps what it needs.
	run("var Array = 1, Set = 2, JSON = 3, Date = 4, Math = 5, String = 6; undefined")
	if r = run("[{ a: 1 }]"); len(r.Displays) != 1 {
		t.Errorf("after globals were replaced: %+v", r)
	}
	const removed = "var fs = require('fs'); fs.rmSync(require('path').dirname(fs.readlinkSync('/proc/self/fd/1')), { recursive: true });\n"
	if r = run(removed + "console.log(1); console.error(2); console.log(3); [{ a: 1 }]"); r.ExitCode != 0 || !strings.HasPrefix(r.Stdout, "1\n3\n[ {") {
		t.Errorf("without its directory: %+v", r)
	}
}

// TestNodeLibraries uses the libraries for JavaScript, by require and by import, in cells and in
// fresh runs. A program that uses none of them has loaded none.
func TestNodeLibraries(t *testing.T) {
	s := serve(t)
	const use = "console.log([_.chunk([1, 2, 3], 2).length, z.string().parse('x'), format(new Date(2026, 0, 2), 'yyyy-MM-dd'), cheerio.load('<b>hi</b>')('b').text()].join())"
	const none = "console.log(Object.keys(require.cache).filter((file) => file.includes('node_modules')).length)"
	for _, env := range []string{"javascript", "typescript"} {
		for _, session := range []string{"", "libraries"} {
			for _, c := range []struct{ code, want string }{
				{none, "0\n"},
				{"const _ = require('lodash'), { z } = require('zod'), { format } = require('date-fns'), cheerio = require('cheerio');\n" + use, "2,x,2026-01-02,hi\n"},
				{"import _ from 'lodash';\nimport { z } from 'zod';\nimport { format } from 'date-fns';\nimport * as cheerio from 'cheerio';\n" + use, "2,x,2026-01-02,hi\n"},
			} {
				if r := s.cell(t, session, env, c.code); r.Stdout != c.want || r.ExitCode != 0 {
					t.Errorf("%s, session %q: %s\n%+v", env, session, c.code, r)
				}
			}
		}
	}
}
