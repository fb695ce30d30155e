package digest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\n": "plain\n",
		"\x1b[31mred\x1b[0m \x1b[1;4;38;5;9mx\x1b[m": "red x",
		"\x1b]8;;http://x\x07link\x1b]8;;\x1b\\ end": "link end",
		"\x1b(Bascii\x1b=\x1bc":                      "ascii",
		" 10%\r 50%\r100%\ndone\n":                   "100%\ndone\n",
		"loading...\rok\n":                           "okading...\n",
		"long line\rshort    \n":                     "short\n",
		"windows\r\nlines\r\n":                       "windows\nlines\n",
		"spin |\b/\b-\bx\n":                          "spin x\n",
		"äöü\rÄ":                                     "Äöü",
		"\b\b\r":                                     "",
		"bar\r\n\r":                                  "bar\n",
		"a\x1b]0;hidden\nb\x1bPhidden\nc\n":          "a\nb\nc\n",
		"half \x1b[":                                 "half ",
		"frames\x1b[2K\r\x1b[Anext":                  "next",
		"a\nb\n\x1b[2Aone\ntwo\nc":                   "one\ntwo\nc",
		"\x0b\x1b[m\x1b[99Aa  ":                      "a  ",
		"0%\n\r0/3\r1/3\r   \r\x1b[A\r50%\n\r0/3\r   \r\x1b[A\r100%\ndone\n":   "100%\ndone\n", // tqdm in tqdm
		"\rDownloading 99%\r\x1b[KDone\n":                                      "Done\n",
		"a b\b\x1b[0Kc\x1b":                                                    "a c",
		"\r  0%|          | 0/3\r 33%|###       | 1/3\r100%|##########| 3/3\n": "100%|##########| 3/3\n", // tqdm
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestFold(t *testing.T) {
	const in = `before
Traceback (most recent call last):
  File "<cell 3>", line 2, in <module>
    load("x.csv")
    ~~~~^^^^^^^^^
  File "/data/helpers.py", line 9, in load
    return pd.read_csv(name)
  File "/opt/runners/python/lib/python3.11/site-packages/pandas/io/parsers/readers.py", line 873, in read_csv
    return _read(filepath_or_buffer, kwds)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/opt/runners/python/lib/python3.11/site-packages/pandas/io/common.py", line 1, in get_handle
    handle = open(
  File "pandas/_libs/parsers.pyx", line 574, in pandas._libs.parsers.TextReader.__cinit__
  File "/usr/lib/python3.11/codecs.py", line 322, in decode
    (result, consumed) = self._buffer_decode(data, self.errors, final)
FileNotFoundError: [Errno 2] No such file or directory: 'x.csv'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/tmp/main-12.py", line 1, in <module>
    import x
  File "<frozen importlib._bootstrap>", line 1176, in _find_and_load
ValueError: one
    at inner (/data/app.js:1:2)
    at Module._compile (node:internal/modules/cjs/loader:1364:14)
    at node:internal/main/run_main_module:28:49
    at parse (/opt/runners/node/node_modules/csv-parser/index.js:3:4)
end`
	const want = `before
Traceback (most recent call last):
  File "<cell 3>", line 2, in <module>
    load("x.csv")
    ~~~~^^^^^^^^^
  File "/data/helpers.py", line 9, in load
    return pd.read_csv(name)
  [4 frames in pandas, the standard library]
FileNotFoundError: [Errno 2] No such file or directory: 'x.csv'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/tmp/main-12.py", line 1, in <module>
    import x
  [1 frame in the standard library]
ValueError: one
    at inner (/data/app.js:1:2)
  [3 frames in node, csv-parser]
end`
	if got := Fold(in); got != want {
		t.Errorf("got %s", got)
	}
	const session = `Traceback (most recent call last):
  File "/data/mine.py", line 1, in <module>
    tiny.call()
  File "/data/.packages/python/lib/python3.11/site-packages/tiny/deep.py", line 2, in call
    fail()
  File "/mnt/data/.packages/python/lib/python3.11/site-packages/other.py", line 1, in fail
ValueError: one
    at inner (/workspace/app.js:1:2)
    at parse (/data/.packages/node/node_modules/@acme/csv/index.js:3:4)
    at file:///data/.packages/node/node_modules/leftish/index.mjs:3:4
`
	const folded = `Traceback (most recent call last):
  File "/data/mine.py", line 1, in <module>
    tiny.call()
  [2 frames in tiny, other]
ValueError: one
    at inner (/workspace/app.js:1:2)
  [2 frames in @acme/csv, leftish]
`
	if got := Fold(session); got != folded {
		t.Errorf("the session's packages: got %s", got)
	}
	for _, same := range []string{
		"no frames\n  indented\n",
		// The user's frames, wherever they are.
		"Traceback (most recent call last):\n  File \"/data/lib/python3.11/site-packages/mine.py\", line 1, in f\n    x\n" +
			"  File \"/tmp/node_modules/x/y.py\", line 1, in g\n  File \"<string>\", line 1, in <module>\nKeyError: 1\n",
		// A text about frames is not a traceback.
		"log of yesterday:\n  File \"/usr/lib/python3.11/json/decoder.py\", line 3, in decode\n",
	} {
		if got := Fold(same); got != same {
			t.Errorf("got %q, want no change of %q", got, same)
		}
	}
	many := "Traceback (most recent call last):\n"
	for i := range 5 {
		many += fmt.Sprintf("  File \"/x/site-packages/lib%d/a.py\", line 1, in f\n    call()\n", i)
	}
	if got := Fold(many); got != "Traceback (most recent call last):\n  [5 frames in lib0, lib1, lib2, …]\n" {
		t.Errorf("many libraries: %q", got)
	}
}

func TestLimit(t *testing.T) {
	notice := func(n int64) string { return fmt.Sprintf("[%d]", n) }
	for _, tt := range []struct {
		in    []string
		limit int
		want  string
	}{
		{[]string{"ab", "cd"}, 4, "ab|cd"},
		{[]string{"abcdefgh"}, 4, "ab[4]gh"},
		{[]string{"abc", "def", "ghi"}, 4, "ab[5]||hi"},
		{[]string{"ääää"}, 4, "ä[4]ä"},
		{[]string{"äää"}, 3, "[6]"},
		{[]string{"\x00a", "b\x00c", "d"}, 2, "\x00[4]||d"},
		{[]string{"abc"}, 0, "[3]"},
		{[]string{"a", "-1000", "b"}, 4, "a|[1000]|b"},            // already omitted
		{[]string{"abc", "-1000", "def"}, 4, "ab[1002]||ef"},      // in the middle
		{[]string{"ab", "-1000", "cdef"}, 4, "ab|[1002]|ef"},      // at its start
		{[]string{"a", "-1000", "bcdefgh"}, 4, "a|[1000]|b[4]gh"}, // before it
		{[]string{"abcdef", "-7", "-8", "g", "-9"}, 2, "a[20]|||g|[9]"},
	} {
		var texts []Text
		for _, text := range tt.in {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil {
				texts = append(texts, Text{Omitted: -n})
			} else {
				texts = append(texts, Text{Text: text})
			}
		}
		if got := strings.Join(Limit(texts, tt.limit, notice), "|"); got != tt.want {
			t.Errorf("Limit(%q, %d) = %q, want %q", tt.in, tt.limit, got, tt.want)
		}
	}
}

// Any output gives valid text that is not longer, in time.
func FuzzDigest(f *testing.F) {
	f.Add("\x1b[1m a\rb\b\n  File \"/lib/python3.1/x.py\", line 1\n    at x (node:a:1)\n")
	f.Fuzz(func(t *testing.T, in string) {
		in = strings.ToValidUTF8(in, "?")
		out := Fold(Clean(in))
		if !utf8.ValidString(out) || strings.ContainsAny(out, "\r\b") {
			t.Errorf("%q became %q", in, out)
		}
		short := Limit([]Text{{Text: in}, {Text: out}}, 100, func(int64) string { return "…" })
		if n := len(short[0]) + len(short[1]); n > 100+len("…") && n > len(in)+len(out) || !utf8.ValidString(short[0]+short[1]) {
			t.Errorf("%q became %q", in, short)
		}
	})
}
