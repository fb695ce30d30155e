//go:build linux

package integration

import (
	"strings"
	"testing"
)

// TestWideFrames: a cell shows up to 20 columns, as in a notebook, however pandas comes into the interpreter. Fresh runs are programs.
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

// TestCarets: tracebacks point at the right place, also in the last line of a cell and where a string has odd line separators.
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
