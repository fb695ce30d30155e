//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// notebook runs Python for an MCP client.
type notebook struct {
	client *mcp.ClientSession
}

func (s *server) notebook(t *testing.T) notebook {
	t.Helper()
	transport := &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Token)}}
	client, err := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return notebook{client}
}

// cellOutput is what a run printed and showed.
type cellOutput struct {
	text     string // both streams in order, with [image <file>] and [<MIME type>] where something was shown
	exitCode int
	images   []string // MIME types of what the client sees
}

var plotName = regexp.MustCompile(`\.plots/run_\w+-\d+`)

// run runs a cell of the session, or a program if that is empty.
func (n notebook) run(t *testing.T, session, code string) (out cellOutput) {
	t.Helper()
	args := map[string]any{"env": "python", "code": code}
	if session != "" {
		args["session"] = session
	}
	res, err := n.client.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: args, Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
	if err != nil {
		t.Fatal(err)
	}
	var details struct {
		ExitCode int `json:"exit_code"`
		Displays []struct {
			MIMEType string `json:"mime_type"`
		}
		Outputs []struct {
			Type, Text, File string
			Index            *int
		}
	}
	b, err := json.Marshal(res.Meta["mcp-code-sandbox/run"])
	if err == nil {
		err = json.Unmarshal(b, &details)
	}
	if err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	out.exitCode = details.ExitCode
	for _, o := range details.Outputs {
		switch {
		case o.Type == "display" && o.Index != nil:
			out.text += fmt.Sprintf("[%s]\n", details.Displays[*o.Index].MIMEType)
		case o.Type == "image":
			out.text += fmt.Sprintf("[image %s]\n", plotName.ReplaceAllString(o.File, ".plots/*"))
		default:
			out.text += o.Text
		}
	}
	for _, c := range res.Content {
		if image, ok := c.(*mcp.ImageContent); ok {
			out.images = append(out.images, image.MIMEType)
		}
	}
	return out
}

// want checks what a cell, or a program if the session is empty, printed and showed. A want that
// starts with ^ is a regular expression.
func (n notebook) want(t *testing.T, session, code, want string, exitCode int) {
	t.Helper()
	got := n.run(t, session, code)
	ok := got.text == want
	if strings.HasPrefix(want, "^") {
		ok = regexp.MustCompile("(?s)" + want + "$").MatchString(got.text)
	}
	if !ok || got.exitCode != exitCode {
		t.Errorf("%s\n--- exit code %d, want %d\n%s--- want\n%s", code, got.exitCode, exitCode, got.text, want)
	}
}

// step is a cell and what it must print.
type step struct {
	code, want string
	exitCode   int
}

func (n notebook) steps(t *testing.T, session string, steps ...step) {
	t.Helper()
	for _, s := range steps {
		n.want(t, session, s.code, s.want, s.exitCode)
	}
}

// TestMagics: what people and models type in notebooks works as in Jupyter.
func TestMagics(t *testing.T) {
	n := serve(t).notebook(t)
	n.steps(t, "m",
		step{code: "open('b.txt', 'w').close(); open('a.txt', 'w').close()\n!ls", want: "a.txt\nb.txt\n"},
		step{code: "files = !ls\nfiles", want: "['a.txt', 'b.txt']\n"},
		step{code: "x = 'some'\n!echo {x} $x {len(x)}; exit 3", want: "some some 4\n"},
		step{code: "_exit_code", want: "3\n"},
		step{code: "%%bash\ncd /; pwd; echo $0", want: "/\nbash\n"},
		step{code: "%%bash\nexit 3", want: "^.*CalledProcessError: .* returned non-zero exit status 3.\n", exitCode: 1},
		step{code: "import os\n%cd /tmp\nos.getcwd()", want: "/tmp\n'/tmp'\n"},
		step{code: "%cd -q /data\n%pwd", want: "'/data'\n"},
		step{code: "%env COLOUR=blue\n!echo $COLOUR\nos.environ['COLOUR']", want: "env: COLOUR=blue\nblue\n'blue'\n"},
		step{code: "%env COLOUR", want: "'blue'\n"},
		step{code: "%time 1 + 1", want: "^CPU times: .*\nWall time: .*\n2\n"},
		step{code: "%%time\ny = 5\ny", want: "^CPU times: .*\nWall time: .*\n5\n"},
		step{code: "%timeit -n 2 -r 1 y", want: "^[^\n]* per loop [^\n]*\n"},
		step{code: "%%timeit -n 2 -r 1\ny + 1", want: "^[^\n]* per loop [^\n]*\n"},
		step{code: "%%writefile mod.py\ndef f(): return 1", want: "Writing mod.py\n"},
		step{code: "%load_ext autoreload\n%autoreload 2\nfrom mod import f\nf()", want: "1\n"},
		step{code: "open('mod.py', 'w').write('def f(): return 22');", want: ""},
		step{code: "f()", want: "22\n"},
		step{code: "%%capture taken\nimport sys\nprint('out'); print('err', file=sys.stderr); display(1); 2", want: ""},
		step{code: "taken.stdout, taken.stderr, len(taken.outputs)", want: "('out\\n', 'err\\n', 2)\n"},
		step{code: "%%capture taken\nimport matplotlib.pyplot as plt\nplt.plot([1])", want: ""},
		step{code: "taken.show()", want: "^.*\\[image .plots/\\*.png\\]\n"},
		step{code: "%who str", want: "x\t \n"},
		step{code: "%whos int", want: "^Variable .*\ny +int +5\n"},
		step{code: "%precision 2\n1 / 3", want: "0.33\n"},
		step{code: "%history 25", want: "%precision 2\n1 / 3\n"},
		step{code: "In[3], _i27 == In[27]", want: "(\"x = 'some'\\n!echo {x} $x {len(x)}; exit 3\", True)\n"},
		step{code: "%matplotlib inline\n%config InlineBackend.figure_format = 'retina'", want: ""},
		step{code: "get_ipython().run_line_magic('pwd', '')", want: "'/data'\n"},
		step{code: "import IPython\nIPython.get_ipython() is get_ipython()", want: "True\n"},
		step{code: "open('script.py', 'w').write('a = 1\\nprint(__name__)\\n1/0'); None", want: ""},
		step{code: "%run script.py\nprint(a)", want: "^__main__\nTraceback .*File \"/data/script.py\", line 3.*ZeroDivisionError: division by zero\n1\n"},
		step{code: "%nothing", want: "UsageError: Line magic function `%nothing` not found.\n", exitCode: 1},
		step{code: "%reset -f\nx", want: "^.*NameError: name 'x' is not defined\n", exitCode: 1},
		step{code: ">>> 1 + 1", want: "2\n"},
		step{code: "```python\n1 + 2\n```", want: "3\n"},
		step{code: "    if True:\n        print('deep')\n    4", want: "deep\n4\n"},
		step{code: "import warnings\nwarnings.simplefilter('always')", want: ""},
		step{code: "print('no warnings of ours')", want: "no warnings of ours\n"},
		step{code: "1 +", want: "^  File \"<cell 40>\", line 1\n.*SyntaxError: .*\n", exitCode: 1},
	)
	n.steps(t, "help",
		step{code: "import pandas as pd\ndf = pd.DataFrame({'a': [1]})\ndf?", want: "^Type: +DataFrame\nString form:.*Two-dimensional.*\n"},
		step{code: "def f(a, b=2):\n    'Says hello.'\n    return a\nf??", want: "^Signature: f\\(a, b=2\\)\nSource:.*return a\nFile: +<cell 2>\n.*"},
		step{code: "len?", want: "^Signature: len\\(obj, /\\)\n.*"},
		step{code: "help(len)", want: "^Help on built-in function len .*"},
		step{code: "nothing?", want: "Object `nothing` not found.\n"},
	)
}

// TestRichValues: displays and values are shown on the page, and are text for a model.
func TestRichValues(t *testing.T) {
	n := serve(t).notebook(t)
	const svg = `'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'`
	n.steps(t, "r",
		step{code: "from IPython.display import display, HTML, Image, Markdown, JSON, SVG, Latex, Audio\nimport base64\n" +
			"png = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')", want: ""},
		step{code: "display(HTML('<table><tr><td>1</td><td>2</td></tr></table><b>bold</b>')); print('after')", want: "1\t2\nbold\n[text/html]\nafter\n"},
		step{code: "Markdown('# Title')", want: "# Title\n[text/markdown]\n"},
		step{code: "Latex('$x^2$')", want: "$x^2$\n[text/latex]\n"},
		step{code: "JSON({'a': [1, 'é']})", want: "{\n  \"a\": [\n    1,\n    \"é\"\n  ]\n}\n"},
		step{code: "Image(png)", want: "[image .plots/*.png]\n"},
		step{code: "display(Image(data=png, width=9), Image(png))", want: "[image .plots/*.png]\n[image .plots/*.png]\n"},
		step{code: "SVG(" + svg + ")", want: "[image/svg+xml]\n"},
		step{code: "Audio([0.0, 0.1] * 100, rate=8000)", want: "<IPython.lib.display.Audio object>\n[text/html]\n"},
		step{code: "import pandas as pd\ndf = pd.DataFrame({'a': [1.5], 'b': ['x']})\ndf.style.format({'a': '{:.2f}'})", want: "^.\ta\tb\n0\t1.50\tx\n\\[text/html\\]\n"},
		step{code: "class R:\n    def __repr__(self): return 'R!'\nclass H(R):\n    def _repr_html_(self): return '<i>h</i>'\nH()", want: "R!\n[text/html]\n"},
		step{code: "class M(R):\n    def _repr_markdown_(self): return '*m*'\nM()", want: "R!\n[text/markdown]\n"},
		step{code: "class L(R):\n    def _repr_latex_(self): return '$l$'\nL()", want: "R!\n[text/latex]\n"},
		step{code: "class P(R):\n    def _repr_png_(self): return png\nP()", want: "[image .plots/*.png]\n"},
		step{code: "class S(R):\n    def _repr_svg_(self): return " + svg + "\nS()", want: "[image/svg+xml]\n"},
		step{code: "class J:\n    def _repr_json_(self): return {'k': 1}\nJ()", want: "{\n  \"k\": 1\n}\n"},
		step{code: "class B:\n    def _repr_mimebundle_(self, include=None, exclude=None): return {'text/plain': 'plain', 'text/html': '<b>b</b>'}\nB()", want: "plain\n[text/html]\n"},
		step{code: "class O:\n    def _repr_pretty_(self, p, cycle): p.text('pretty')\nO()", want: "pretty\n"},
		step{code: "class D:\n    def _ipython_display_(self): print('itself')\nD()", want: "itself\n"},
		step{code: "class X(R):\n    def _repr_html_(self): raise ValueError('no HTML')\nX()", want: "^Traceback .*ValueError: no HTML\nR!\n"},
		step{code: "display({'text/plain': 'raw', 'text/html': '<b>raw</b>'}, raw=True)", want: "raw\n[text/html]\n"},
		step{code: "import sympy\nsympy.Symbol('x') ** 2", want: "x**2\n[text/latex]\n"},
		step{code: "from PIL import Image as Picture\nPicture.new('RGB', (9, 9))", want: "[image .plots/*.png]\n"},
		step{code: "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)): pass", want: "^.*100%.*3/3.*"},
		step{code: "'quiet';", want: ""},
	)
}

// TestOut: values are numbered as in Jupyter, and Out keeps a few small ones only.
func TestOut(t *testing.T) {
	n := serve(t).notebook(t)
	n.steps(t, "o",
		step{code: "7 * 6", want: "42\n"},
		step{code: "x = 1", want: ""},
		step{code: "_ + 1", want: "43\n"},
		step{code: "_, __, Out[1], _1, Out[3]", want: "(43, 42, 42, 42, 43)\n"},
		step{code: "import numpy as np\nbig = np.zeros(1 << 20)\nbig", want: "array([0., 0., 0., ..., 0., 0., 0.], shape=(1048576,))\n"},
		step{code: "_ is big, 5 in Out", want: "(True, False)\n"},
		step{code: "class Large:\n    nbytes = 2 << 20\n    def __repr__(self): return 'large'\nlarge = Large()\nlarge", want: "large\n"},
		step{code: "import weakref\nof = weakref.ref(large)\ndel large, big\n_ is of()", want: "True\n"},
		step{code: "of() is None", want: "True\n"},
	)
	for range 10 {
		n.want(t, "o", "'value'", "'value'\n", 0)
	}
	n.steps(t, "o",
		step{code: "sorted(Out)", want: "[12, 13, 14, 15, 16, 17, 18, 19]\n"},
		step{code: "'_1' in globals(), '_19' in globals()", want: "(False, True)\n"},
	)
}

// TestPipInstall: pip says at once what is installed, and that nothing else can be.
func TestPipInstall(t *testing.T) {
	n := serve(t).notebook(t)
	const missing = "ERROR: No matching distribution found for nothing-like-it: it is not installed\n" +
		"No package index can be reached from this sandbox, so nothing can be installed. Use what \"pip list\" shows, " +
		"or ask the operator of the server to turn packages on (SANDBOX_PACKAGES=pypi) or to add a library (docs/environments.md).\n"
	for _, install := range []string{"!pip install -q ", "%pip install ", "pip install ", "!python -m pip install --upgrade "} {
		n.want(t, "p", install+"numpy", `^Requirement already satisfied: numpy \(\d[\d.]*\)`+"\n", 0)
		n.want(t, "p", install+"nothing-like-it", missing, 0)
	}
	n.steps(t, "p",
		step{code: "open('wanted.txt', 'w').write('scipy  # statistics\\n\\nnothing-like-it>=2\\n'); None", want: ""},
		step{code: "!pip install 'pandas<1' -r wanted.txt 2>&1\n_exit_code", want: "^ERROR: [^\n]* for pandas<1: version \\d[\\d.]* is installed\n.*satisfied: scipy .* for nothing-like-it>=2: it is not installed\n.*\n1\n"},
		step{code: "!pip install -r nothing.txt", want: "^ERROR: Could not open requirements file: .*"},
		step{code: "!pip --version", want: "^pip .*\n"},
		step{code: "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', 'nothing-like-it'], stderr=subprocess.DEVNULL).returncode", want: "1\n"},
	)
	n.want(t, "", "import sys\n!pip install nothing-like-it\nprint('goes on', file=sys.stderr)", missing+"goes on\n", 0)
}
