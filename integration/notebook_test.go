//go:build linux

package integration

import (
	"regexp"
	"strings"
	"testing"
)

// TestWideFrames: a cell shows up to 20 columns, as in a notebook, however pandas comes into the
// interpreter. Fresh runs are programs.
func TestWideFrames(t *testing.T) {
	const frame = "import pandas as pd\ndf = pd.DataFrame({f'column number {i}': [i] for i in range(%)})\n"
	wide := func(n string) string { return strings.Replace(frame, "%", n, 1) }
	preloads := serve(t)
	preloads.awaitFork(t, "w")
	for name, s := range map[string]*server{
		"True":  preloads,
		"False": serve(t, "SANDBOX_SHARED_ZYGOTE=off", "SANDBOX_POOL_SIZE=0"),
	} {
		if r := s.cell(t, "w", "python", "import sys; 'pandas' in sys.modules"); r.Stdout != name+"\n" {
			t.Errorf("pandas is there at the start: %q, want %s", r.Stdout, name)
		}
		for _, tt := range []struct {
			code    string
			columns int
			cut     bool
		}{
			{wide("7") + "df", 7, false},
			{wide("20") + "df", 20, false},
			{wide("21") + "df", 20, true},
			{wide("7") + "pd.set_option('display.max_columns', 3)\ndf", 2, true},
			{"df", 2, true},
			{"pd.reset_option('display.max_columns')\ndf", 7, false},
			{"pd.set_option('display.max_columns', 0)\ndf", 4, true},
			{"pd.reset_option('display')\ndf", 7, false},
			{"with pd.option_context('display.max_columns', 2): display(df)", 2, true},
			{"df", 7, false},
		} {
			r := s.cell(t, "w", "python", tt.code)
			columns, cut := strings.Count(r.Stdout, "column number"), strings.Contains(r.Stdout, "...")
			if columns != tt.columns || cut != tt.cut || r.ExitCode != 0 {
				t.Errorf("preloaded %s, %s: %d columns\n%s%s", name, tt.code, columns, r.Stdout, r.Stderr)
			}
			for line := range strings.Lines(r.Stdout) {
				if len(line) > 81 {
					t.Errorf("preloaded %s, %s: a line of %d columns", name, tt.code, len(line))
				}
			}
		}
		if r := s.python(t, "fresh", wide("7")+"print(pd.get_option('display.max_columns'))"); r.Stdout != "0\n" {
			t.Errorf("preloaded %s, a fresh run: %+v", name, r)
		}
	}
}

// TestCarets: tracebacks point at the right place, also in the last line of a cell and where a
// string has odd line separators.
func TestCarets(t *testing.T) {
	s := serve(t)
	for _, tt := range []struct{ code, want string }{
		{"1/0", "    1/0\n    ~^~\n"},
		{"1/0\n", "    1/0\n    ~^~\n"},
		{"d = {}\nprint(d['zz'])", "    print(d['zz'])\n          ~^^^^^^\n"},
		{"import pandas as pd\ndf = pd.DataFrame({'a': [1]})\ndf['zz']", "    df['zz']\n    ~~^^^^^^\n"},
		{"x = '\u2028 \x0c'\nx; 1/0", "    x; 1/0\n       ~^~\n"},
	} {
		if r := s.cell(t, "c", "python", tt.code); r.ExitCode != 1 || !strings.Contains(r.Stderr, tt.want) {
			t.Errorf("%q:\n%s; want\n%s", tt.code, r.Stderr, tt.want)
		}
	}
}

// carets are lines that newer Pythons put into more tracebacks.
var carets = regexp.MustCompile(`(?m)^[ ~^]+\n`)

// TestWhereInterrupted: an interrupted cell says where it was, in the user's frames alone, and not
// at length.
func TestWhereInterrupted(t *testing.T) {
	s := serve(t)
	s.cell(t, "i", "python", "0")
	r := s.cellFor(t, 2, "i", "python", "import time\nkept = 1\ndef slow():\n    time.sleep(60)\nslow()")
	const want = "Traceback (most recent call last):\n  File \"<cell 2>\", line 5, in <module>\n    slow()\n  File \"<cell 2>\", line 4, in slow\n    time.sleep(60)\nKeyboardInterrupt\nExecution timed out after 2 seconds"
	if carets.ReplaceAllString(r.Stderr, "") != want || r.Cause != "timeout" || !strings.Contains(r.State, "kept") {
		t.Errorf("a timeout: %+v\nwant %s", r, want)
	}
	r = s.cellFor(t, 2, "i", "python", "def deep(n):\n    deep(n - 1) if n else time.sleep(60)\ndeep(100), kept")
	if n := strings.Count(r.Stderr, "  File "); n < 4 || n > 20 || !strings.Contains(r.Stderr, "\n  [82 frames were left out]\n") || !strings.Contains(r.Stderr, "\nKeyboardInterrupt\n") ||
		!strings.Contains(r.Stderr, "line 3, in <module>") {
		t.Errorf("deep: %d frames, %+v", n, r)
	}
	r = s.cellFor(t, 2, "i", "python", "import asyncio\nasync def waits():\n    await asyncio.sleep(60)\nawait waits()")
	if !strings.Contains(r.Stderr, "line 3, in waits\n    await asyncio.sleep(60)\n") || strings.Contains(r.Stderr, "driver") || !strings.Contains(r.Stderr, "\nKeyboardInterrupt\n") {
		t.Errorf("a coroutine: %+v", r)
	}
	r = s.cell(t, "i", "python", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)")
	if !strings.Contains(r.Stderr, "line 2, in <module>\n") || !strings.HasSuffix(r.Stderr, "\nKeyboardInterrupt\n") || r.ExitCode != 130 {
		t.Errorf("an interrupt: %+v", r)
	}
	if r := s.cell(t, "i", "python", "kept"); r.Stdout != "1\n" || r.Stderr != "" {
		t.Errorf("afterwards: %+v", r)
	}
}
