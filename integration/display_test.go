//go:build linux

package integration

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// randomFrames shows frames, series and indexes of every kind with random display options, and
// writes the repr of each to expected.txt. One interpreter makes all of them, which takes seconds.
const randomFrames = `
import random
import numpy as np, pandas as pd
rng = random.Random(SEED)
words = ["", "a", "long " * 30, "x|y", "two\nlines", "é漢字", "NaN", "| --- |"]

def value(kind):
    return {
        "float": lambda: rng.choice([rng.uniform(-1e9, 1e9), rng.random() * 10 ** rng.randint(-12, 12), 1234567.89, 99999999.5, float("nan"), float("inf"), -0.0]),
        "int": lambda: rng.choice([rng.randint(-10**18, 10**18), rng.randint(-9, 9)]),
        "text": lambda: rng.choice(words),
        "bool": lambda: rng.random() < 0.5,
        "date": lambda: pd.Timestamp("2024-01-01") + pd.Timedelta(seconds=rng.randint(0, 10**8)),
        "mixed": lambda: rng.choice([None, 1, 2.5, "s", [1, 2], {"k": 0.1}, pd.NA]),
    }[kind]()

def column(n):
    kind = rng.choice(["float", "int", "text", "bool", "date", "mixed"])
    return [value(kind) for _ in range(n)]

def labels(n):
    kind = rng.choice(["range", "named", "text", "date", "multi"])
    if kind == "range": return pd.RangeIndex(n)
    if kind == "named": return pd.Index([rng.randint(0, 99) for _ in range(n)], name=rng.choice(["id", None, ("a", 1)]))
    if kind == "text": return pd.Index([rng.choice(words) + str(i) for i in range(n)], name="key")
    if kind == "date": return pd.date_range("2024-01-01", periods=n, freq="D", name="day")
    return pd.MultiIndex.from_tuples([(rng.choice("xyz"), i) for i in range(n)], names=[rng.choice(["outer", None]), "inner"])

def frame():
    rows, columns = rng.choice([0, 1, 3, 10, 59, 60, 61, 300]), rng.choice([0, 1, 2, 5, 21, 40])
    df = pd.DataFrame([column(rows) for _ in range(columns)]).T if columns else pd.DataFrame(index=range(rows))
    if columns and rng.random() < 0.7: df = df.infer_objects()
    if rng.random() < 0.5 and rows: df.index = labels(rows)
    if rng.random() < 0.5 and columns: df.columns = labels(columns)
    pick = rng.random()
    if pick < 0.2 and columns: return df.iloc[:, 0]
    if pick < 0.3: return df.index
    return df

options = {
    "display.width": [80, 40, 200, None], "display.max_rows": [60, 5, 1000], "display.max_columns": [0, 3, 20, None], "display.precision": [6, 2, 12],
    "display.float_format": [None, "{:,.2f}".format], "display.max_colwidth": [50, 10, None], "display.show_dimensions": ["truncate", True, False],
    "display.expand_frame_repr": [True, False], "display.min_rows": [10, 4], "display.colheader_justify": ["right", "left"], "display.large_repr": ["truncate", "info"],
    "display.multi_sparse": [True, False],
}
def shuffle_options():
    pd.reset_option("display")
    for name in rng.sample(list(options), rng.randint(0, 4)): pd.set_option(name, rng.choice(options[name]))
`

// TestFramesAsPandasPrintsThem checks that a cell shows a frame, series or index as its repr,
// whatever its content and the display options.
func TestFramesAsPandasPrintsThem(t *testing.T) {
	s := serve(t, "SANDBOX_MAX_OUTPUT_BYTES=200MB", "SANDBOX_EXEC_TIMEOUT_S=300")
	made := s.cell(t, "frames", "python", strings.Replace(randomFrames, "SEED", "12", 1)+`
with open("/data/expected.txt", "w") as expected:
    for i in range(1000):
        shuffle_options()
        x = frame()
        expected.write("\n".join(repr(x).splitlines()) + "\n")  # as Jupyter
        display(x)
pd.reset_option("display")`)
	want, err := os.ReadFile(filepath.Join(s.workspaceOf(t, "frames"), "expected.txt"))
	if err != nil || made.ExitCode != 0 {
		t.Fatalf("%v %d %s", err, made.ExitCode, made.Stderr)
	}
	if made.Stdout != string(want) {
		a, b := strings.Split(made.Stdout, "\n"), strings.Split(string(want), "\n")
		for i := range min(len(a), len(b)) {
			if a[i] != b[i] {
				t.Fatalf("line %d of %d:\n%q\nwant\n%q", i, len(b), a[i], b[i])
			}
		}
		t.Fatalf("%d lines, want %d", len(a), len(b))
	}
	for range 20 { // as the value of a cell
		r := s.cell(t, "frames", "python", "shuffle_options(); x = frame(); open('/data/expected.txt', 'w').write('\\n'.join(repr(x).splitlines()) + '\\n')\nx")
		want, err := os.ReadFile(filepath.Join(s.workspaceOf(t, "frames"), "expected.txt"))
		if err != nil || r.Stdout != string(want) {
			t.Errorf("%q, want %q: %v %s", r.Stdout, want, err, r.Stderr)
		}
	}
}

// TestValuesAsTheInterpreterPrintsThem checks that no number is changed, no string is cut and no
// error is hidden.
func TestValuesAsTheInterpreterPrintsThem(t *testing.T) {
	s := serve(t)
	const setup = "import numpy as np, pandas as pd\n"
	for _, tt := range []struct{ code, want string }{
		{"pd.DataFrame({'rev': [1234567.89]})", "          rev\n0  1234567.89\n"},
		{"pd.Series([99999999.5])", "0    99999999.5\ndtype: float64\n"},
		{"pd.Index([1, 2], name='n')", "Index([1, 2], dtype='int64', name='n')\n"},
		{"pd.set_option('display.float_format', '{:.1f}'.format)\npd.Series([1/3], name='x')", "0   0.3\nName: x, dtype: float64\n"},
		{"pd.reset_option('display')\n[pd.Series([0.1])]", "[0    0.1\n dtype: float64]\n"},
		{"{'f': pd.DataFrame({'a': [1]})}", "{'f':    a\n 0  1}\n"},
		{"display(pd.DataFrame({'a': [1]}), pd.DataFrame({'b': [2]}))", "   a\n0  1\n   b\n0  2\n"},
		{"pd.DataFrame(np.zeros((100, 2)))", "      0    1\n0   0.0  0.0\n1   0.0  0.0\n2   0.0  0.0\n3   0.0  0.0\n4   0.0  0.0\n..  ...  ...\n95  0.0  0.0\n96  0.0  0.0\n97  0.0  0.0\n98  0.0  0.0\n99  0.0  0.0\n\n[100 rows x 2 columns]\n"},
		{"np.set_printoptions(precision=2)\nnp.array([1/3, 2e6])", "array([3.33e-01, 2.00e+06])\n"},
		{"'x' * 50000", "'" + strings.Repeat("x", 50000) + "'\n"},
		{"from unittest.mock import MagicMock\nMagicMock(name='m', spec_set=['a'])._mock_name", "'m'\n"},
		{"class P:\n    def __getattr__(self, name): return lambda: b'png'\n    def __repr__(self): return 'P()'\nP()", "P()\n"},
	} {
		if r := s.cell(t, "v", "python", setup+tt.code); r.Stdout != tt.want || r.Stderr != "" || r.ExitCode != 0 || len(r.Artifacts) > 0 {
			t.Errorf("%s: %.300q %s; want %.300q", tt.code, r.Stdout, r.Stderr, tt.want)
		}
	}
	r := s.cell(t, "v", "python", "class Bad:\n    def __repr__(self): raise ValueError('no repr')\ndisplay(Bad())")
	if r.ExitCode != 1 || !strings.Contains(r.Stderr, "in __repr__") || !strings.HasSuffix(r.Stderr, "ValueError: no repr\n") || strings.Contains(r.Stderr, "driver") {
		t.Errorf("a repr that fails: %+v", r)
	}
}

// detailedRun is a run as a client that asks for details sees it.
type detailedRun struct {
	Stdout   string
	Displays []struct {
		MIMEType string `json:"mime_type"`
		Text     string
		Plain    string
	}
	DisplaysTruncated bool `json:"displays_truncated"`
}

// TestTablesForThePage checks that the page gets pandas' HTML and the text that it replaces, and
// that a model gets the text only.
func TestTablesForThePage(t *testing.T) {
	s := serve(t)
	transport := &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Token)}}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	run := func(code string) (d detailedRun, text string) {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"session": "p", "env": "python", "code": code},
			Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
		if err != nil || len(res.Content) == 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		b, err := json.Marshal(res.Meta["mcp-code-sandbox/run"])
		if err == nil {
			err = json.Unmarshal(b, &d)
		}
		if err != nil {
			t.Fatal(err)
		}
		return d, res.Content[0].(*mcp.TextContent).Text
	}
	d, text := run("import pandas as pd\nprint('before')\ndisplay(pd.DataFrame({'rev': [1234567.89]}))\nprint('between')\npd.DataFrame({'é': ['<b>']})")
	const first, second = "          rev\n0  1234567.89\n", "     é\n0  <b>\n"
	if want := "before\n" + first + "between\n" + second; d.Stdout != want || strings.TrimRight(text, "\n") != strings.TrimRight(want, "\n") {
		t.Errorf("stdout %q, text %q, want %q", d.Stdout, text, want)
	}
	if len(d.Displays) != 2 || d.Displays[0].MIMEType != "text/html" || d.Displays[0].Plain != first || d.Displays[1].Plain != second ||
		!strings.Contains(d.Displays[0].Text, "<td>1234567.89</td>") || !strings.Contains(d.Displays[1].Text, "<td>&lt;b&gt;</td>") {
		t.Errorf("displays: %+v", d.Displays)
	}
	d, text = run("class H:\n    def _repr_html_(self): return '<i>h</i>'\n    def __repr__(self): return 'H(\\udc80)'\nH()")
	if text != "H(\\udc80)\n" && text != "H(\\udc80)" || len(d.Displays) != 1 || d.Displays[0].Text != "<i>h</i>" || d.Displays[0].Plain != "H(\\udc80)\n" {
		t.Errorf("an object with HTML: %q %+v", text, d)
	}
	// Redirected output is not shown, and what is too large or too much stays text.
	d, _ = run("import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()): display(H())\nclass Huge(H):\n    def _repr_html_(self): return 'x' * 10**7\nHuge()")
	if len(d.Displays) != 0 || d.Stdout != "H(\\udc80)\n" {
		t.Errorf("nothing for a page: %+v", d)
	}
	d, _ = run("for _ in range(1000): display(H())")
	if len(d.Displays) != 64 || len(d.Stdout) != 1000*len("H(\\udc80)\n") {
		t.Errorf("a thousand: %d displays, %d bytes", len(d.Displays), len(d.Stdout))
	}
}
