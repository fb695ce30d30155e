//go:build linux

package integration

import (
	"strings"
	"testing"
)

// inWorkspace has code for each language that deletes everything and writes a file again. Both use
// a temporary file as well, as libraries do.
var inWorkspace = map[string]struct{ remove, write string }{
	"python": {
		"import os, tempfile\nwith tempfile.NamedTemporaryFile() as f: f.write(bytes(100_000)); f.flush()\nfor f in ('a', 'b'): os.remove('/data/' + f)\nprint('removed')",
		"open('/data/again', 'w').write('x' * 1_000_000); print('written')",
	},
	"javascript": {
		"const fs = require('fs'); fs.writeFileSync('/tmp/t', Buffer.alloc(100000)); for (const f of ['a', 'b']) fs.unlinkSync('/data/' + f); console.log('removed')",
		"fs = require('fs'); fs.writeFileSync('/data/again', 'x'.repeat(1000000)); console.log('written')",
	},
	"typescript": {
		"import { unlinkSync, writeFileSync } from 'node:fs'; writeFileSync('/tmp/t', Buffer.alloc(100000)); for (const f of ['a', 'b'] as string[]) unlinkSync(`/data/${f}`); console.log('removed')",
		"import { writeFileSync as put } from 'node:fs'; put('/data/again', 'x'.repeat(1000000)); console.log('written')",
	},
	"shell": {
		"head -c 100000 /dev/zero > $TMPDIR/t; rm /data/a /data/b && echo removed",
		"head -c 1000000 /dev/zero > /data/again; echo written",
	},
}

// TestFullWorkspace checks that code of every language can delete files in a full workspace, by
// every tool, and then write again.
func TestFullWorkspace(t *testing.T) {
	s := serve(t, "SANDBOX_WORKSPACE_BYTES=2MB")
	type outcome struct {
		stdout, cause string
		exit          int
	}
	runs := map[string]func(session, language, code string) outcome{
		"run_code": func(session, language, code string) outcome {
			r := s.run(t, session, language, code)
			return outcome{r.Output, r.Cause, r.ExitCode}
		},
		"a new interpreter": func(session, language, code string) outcome {
			r := s.cell(t, session, language, code)
			return outcome{r.Stdout + r.Stderr, r.Cause, r.ExitCode}
		},
		"run_python": func(session, _, code string) outcome {
			r := s.python(t, session, code)
			return outcome{r.Stdout + r.Stderr, r.Cause, r.ExitCode}
		},
	}
	runs["an interpreter"] = runs["a new interpreter"]
	for tool, run := range runs {
		for language, code := range inWorkspace {
			if tool == "run_python" && language != "python" {
				continue
			}
			if tool == "run_code" && language == "javascript" {
				code.write = "const " + code.write
			}
			t.Run(tool+", "+language, func(t *testing.T) {
				session := strings.ReplaceAll("full "+tool+" "+language, " ", "-")
				if tool == "an interpreter" { // that was there before
					run(session, language, map[string]string{"shell": ":", "python": "1", "javascript": "1", "typescript": "1"}[language])
				}
				fill := s.run(t, session, "shell", "head -c 1500000 /dev/zero > a; head -c 1500000 /dev/zero > b")
				if fill.Cause != "disk_quota" || !strings.Contains(fill.Hint, "Delete some first: until then a run is stopped when its files grow") {
					t.Fatalf("filling: %+v", fill)
				}
				if r := run(session, language, code.remove); r != (outcome{stdout: "removed\n"}) {
					t.Errorf("deleting: %+v", r)
				}
				if r := run(session, language, code.write); r != (outcome{stdout: "written\n"}) {
					t.Errorf("writing again: %+v", r)
				}
			})
		}
	}
	// Code that deletes nothing cannot keep growing the workspace, in any kind of run.
	for _, tool := range []string{"run_code", "a new interpreter"} {
		session := strings.ReplaceAll("grow "+tool, " ", "-")
		s.run(t, session, "shell", "head -c 1500000 /dev/zero > a; head -c 1500000 /dev/zero > b")
		r := runs[tool](session, "python", "import time\ni = 0\nwhile True: open(f'/data/more{i}', 'wb').write(bytes(50_000)); i += 1; time.sleep(0.01)")
		if r.cause != "disk_quota" {
			t.Errorf("growing by %s: %+v", tool, r)
		}
	}
}
