//go:build linux

package integration

import (
	"strings"
	"testing"
)

// TestProgramsWithMagics: a fresh run is compiled unchanged first. Only if that fails, lines of !
// and % are transformed, and if that does not help, the original error is shown.
func TestProgramsWithMagics(t *testing.T) {
	forked, started := serve(t).notebook(t), serve(t, "SANDBOX_SHARED_ZYGOTE=off", "SANDBOX_POOL_SIZE=0").notebook(t)
	for _, p := range []step{
		{code: "files = !ls /usr\nprint('bin' in files)\nx = 5\n!echo {x + 1}\n%time y = 1", want: "^True\n6\nCPU times: .*"},
		{code: "%%bash\necho $((1 + 2))", want: "3\n"},
		{code: "print?", want: "^Signature:.*"},
		{code: "import asyncio\nasync def f(): return 3\nprint(await f())", want: "3\n"},
		{code: "    print('deep')\n    !echo shell", want: "deep\nshell\n"},
		{code: "```python\n!echo fenced\n```", want: "fenced\n"},
		{code: "#!/usr/bin/env python3\n# -*- coding: latin-1 -*-\n\"\"\"Doc.\"\"\"\nfrom __future__ import annotations\n!echo first\n" +
			"def f(a: Undefined): pass\nprint(__doc__, __name__, __file__.startswith('/tmp/'))", want: "first\nDoc. __main__ True\n"},
		{code: "!echo start\nimport pickle\nclass C: pass\nprint(type(pickle.loads(pickle.dumps(C()))))", want: "start\n<class '__main__.C'>\n"},
		{code: "from multiprocessing import get_context\nlisted = !echo listed\ndef square(x): return x * x, listed\n" +
			"if __name__ == '__main__':\n    !echo start\n    with get_context('spawn').Pool(1) as pool: print(pool.map(square, [3]))", want: "start\n[(9, ['listed'])]\n"},
		{code: "!echo one\nimport sys\nsys.exit(3)", want: "one\n", exitCode: 3},
		{code: "!echo one >&2\ndef f():\n    1/0\nf()", want: `^one` + "\n" + `Traceback \(most recent call last\):` + "\n" +
			`  File "/tmp/main-\w+.py", line 4, in <module>` + "\n    f\\(\\)\n" + `  File "/tmp/main-\w+.py", line 3, in f` + "\n    1/0\n    ~\\^~\nZeroDivisionError: division by zero\n", exitCode: 1},
		{code: "!echo one >&2\ntry:\n    1/0\nexcept ZeroDivisionError:\n    import traceback; traceback.print_exc(limit=0)", want: "one\nZeroDivisionError: division by zero\n"},
		{code: "import asyncio\nawait asyncio.sleep(0)\n1/0", want: `^Traceback \(most recent call last\):` + "\n" +
			`  File "/tmp/main-\w+.py", line 3, in <module>` + "\n    1/0\n    ~\\^~\nZeroDivisionError: division by zero\n", exitCode: 1},
		{code: "x = 1\n!echo never\ny = = 2", want: `^  File "/tmp/main-\w+.py", line 2` + "\n    !echo never\n    \\^\nSyntaxError: invalid syntax\n", exitCode: 1},
		{code: "print('never')\nprint('open'", want: `^  File "/tmp/main-\w+.py", line 2` + "\n.*SyntaxError: '\\(' was never closed\n", exitCode: 1},
		{code: "import sys\nprint('once', file=sys.stderr)\nexec('x = = 1')", want: "^once\nTraceback .*SyntaxError: invalid syntax\n", exitCode: 1},
		{code: "import sys\nprint('once', file=sys.stderr)\ncompile('x = = 1', __file__, 'exec')", want: "^once\nTraceback .*SyntaxError: invalid syntax\n", exitCode: 1},
	} {
		forked.want(t, "", p.code, p.want, p.exitCode)
		started.want(t, "", p.code, p.want, p.exitCode)
	}
}

// TestPlainPrograms: a fresh run that needs nothing of a notebook sees nothing of one, whether it
// was forked or not.
func TestPlainPrograms(t *testing.T) {
	const program = "import builtins, sys, pandas\nfrom IPython import get_ipython\nfrom IPython.display import display\n" +
		"display(pandas.Series([1]))\nprint(get_ipython(), hasattr(builtins, 'display'), hasattr(builtins, '__IPYTHON__'), __name__)\n7 * 6"
	for name, s := range map[string]*server{"forked": serve(t), "started": serve(t, "SANDBOX_SHARED_ZYGOTE=off", "SANDBOX_POOL_SIZE=0")} {
		t.Run(name, func(t *testing.T) {
			s.notebook(t).want(t, "", program, "0    1\ndtype: int64\nNone False False __main__\n", 0)
		})
	}
}

// TestNoKeyboard: input says what to do instead.
func TestNoKeyboard(t *testing.T) {
	n := serve(t).notebook(t)
	for _, session := range []string{"k", ""} {
		got := n.run(t, session, "x = 1\ninput('Name? ')")
		if got.exitCode != 1 || !strings.Contains(got.text, "Name? ") || !strings.Contains(got.text, "line 2, in <module>\n    input('Name? ')\n") ||
			!strings.Contains(got.text, "\nEOFError: there is no keyboard: nobody can answer input(). Assign the value in the code, or read it from a file in /data or from os.environ\n") ||
			strings.Contains(got.text, "sandbox_runner") {
			t.Errorf("session %q: %+v", session, got)
		}
		n.want(t, session, "try: input()\nexcept EOFError: print('none')", "none\n", 0)
		n.want(t, session, "import getpass\ngetpass.getpass()", "^.*EOFError\nHint: there is no keyboard: nobody can type a password. .*\n", 1)
	}
}

// TestLibrariesOnUse: no library is there before code imports it, so that it costs nothing.
func TestLibrariesOnUse(t *testing.T) {
	n := serve(t).notebook(t)
	const loaded = "import sys\nprint(sorted({'sklearn', 'statsmodels', 'sympy', 'lxml', 'bs4', 'xlsxwriter', 'docx', 'pptx', 'pypdf', 'networkx', 'duckdb', 'polars',\n" +
		"    'plotly', 'jinja2', 'tabulate', 'tqdm', 'seaborn', 'scipy', 'openpyxl', 'jedi', 'zhplot', 'pip', 'sandbox_errors'} & set(sys.modules)))"
	n.want(t, "l", loaded, "[]\n", 0)
	n.want(t, "", loaded, "[]\n", 0)
	n.want(t, "", "import sys\nprint('IPython' in sys.modules)", "False\n", 0)
}
