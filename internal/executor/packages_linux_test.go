package executor

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/httpconn"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/workspace"
)

// fakeMirror serves packages that a test makes, at the address of the real mirror.
type fakeMirror struct {
	mu       sync.Mutex
	files    map[string][]byte // by path below /packages
	hits     map[string]int
	problems []PackageProblem
	unmet    []string // of all runs
}

func (m *fakeMirror) Indexes() []string { return []string{"npm", "pypi"} }

func (m *fakeMirror) Grant(session.Caller, string, string) Grant {
	const base = "http://127.0.0.1:8099/packages"
	return Grant{Env: map[string]string{
		"PIP_INDEX_URL": base + "/pypi/simple/", "UV_DEFAULT_INDEX": base + "/pypi/simple/", "npm_config_registry": base + "/npm/",
	}}
}

func (m *fakeMirror) Release(_ string, unmet []string) []PackageProblem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unmet = append(m.unmet, unmet...)
	return m.problems
}

func (m *fakeMirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	path := strings.TrimPrefix(r.URL.Path, "/packages")
	m.hits[path]++
	content, ok := m.files[path]
	m.mu.Unlock()
	if !ok {
		http.NotFound(w, r)
		return
	}
	if strings.HasPrefix(path, "/pypi/simple/") {
		w.Header().Set("Content-Type", "text/html")
	}
	if strings.HasPrefix(path, "/pypi/files/endless-") { // pip waits for the rest
		w.Header().Set("Content-Length", strconv.Itoa(len(content)+1))
		_, _ = w.Write(content)
		<-r.Context().Done()
		return
	}
	_, _ = w.Write(content)
}

func (m *fakeMirror) asked(path string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hits[path]
}

// wheel adds a version of a Python package with files.
func (m *fakeMirror) wheel(t *testing.T, name, version string, requires []string, files map[string]string) {
	t.Helper()
	info := strings.ReplaceAll(name, "-", "_") + "-" + version + ".dist-info/"
	all := maps.Clone(files)
	all[info+"METADATA"] = "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	for _, each := range requires {
		all[info+"METADATA"] += "Requires-Dist: " + each + "\n"
	}
	all[info+"WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
	record := ""
	for path := range all {
		record += path + ",,\n"
	}
	all[info+"RECORD"] = record + info + "RECORD,,\n"
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		f, err := z.Create(path)
		if err == nil {
			_, err = f.Write([]byte(all[path]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	file := strings.ReplaceAll(name, "-", "_") + "-" + version + "-py3-none-any.whl"
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files["/pypi/files/"+file] = b.Bytes()
	page := "/pypi/simple/" + name + "/"
	m.files[page] = append(m.files[page], fmt.Sprintf("<a href=\"/packages/pypi/files/%s\">%s</a>\n", file, file)...)
}

// module adds a Python package with one module of the same name, which has its version as v.
func (m *fakeMirror) module(t *testing.T, name, version string, requires ...string) {
	m.wheel(t, name, version, requires, map[string]string{name + ".py": "v = __version__ = '" + version + "'\n"})
}

// source adds a source distribution of a Python package, with files.
func (m *fakeMirror) source(t *testing.T, name, version string, files map[string]string) {
	file := name + "-" + version + ".tar.gz"
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files["/pypi/files/"+file] = archived(t, name+"-"+version+"/", files)
	m.files["/pypi/simple/"+name+"/"] = fmt.Appendf(nil, "<a href=\"/packages/pypi/files/%s\">%s</a>\n", file, file)
}

// archived returns a compressed tar archive of files in a directory.
func archived(t *testing.T, dir string, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	out := tar.NewWriter(z)
	for path, text := range files {
		if err := out.WriteHeader(&tar.Header{Name: dir + path, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		_, _ = out.Write([]byte(text))
	}
	if out.Close() != nil || z.Close() != nil {
		t.Fatal("tar")
	}
	return b.Bytes()
}

// npmPackage adds a package of npm.
func (m *fakeMirror) npmPackage(t *testing.T, name, version string, files map[string]string) {
	t.Helper()
	content := archived(t, "package/", files)
	sum := sha512.Sum512(content)
	var manifest map[string]any
	if err := json.Unmarshal([]byte(files["package.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	file := name + "-" + version + ".tgz"
	manifest["dist"] = map[string]any{"tarball": "http://127.0.0.1:8099/packages/npm/" + file, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	page, err := json.Marshal(map[string]any{"name": name, "dist-tags": map[string]string{"latest": version}, "versions": map[string]any{version: manifest}})
	if err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files["/npm/"+name], m.files["/npm/"+file] = page, content
}

// packageRig is an executor on the real jail with the real runners and a fake mirror.
type packageRig struct {
	*Executor
	mirror *fakeMirror
	root   string
}

func newPackageRig(t *testing.T) *packageRig {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("REQUIRE_ALL") != "" {
		skip = t.Fatalf
	}
	dir := os.Getenv("SANDBOX_TEST_RUNNERS")
	if dir == "" {
		skip("no environments: run make test, or set SANDBOX_TEST_RUNNERS to a directory that has been prepared")
	}
	set, _ := runner.Sources{Env: map[string]string{"PATH": os.Getenv("PATH"), "HOME": t.TempDir()}, Dir: dir}.Discover(t.Context())
	for _, name := range []string{"python", "javascript", "typescript", "shell"} {
		if _, ok := set.Lookup(name); !ok {
			skip("no runner %s in %s", name, dir)
		}
	}
	r := &packageRig{root: t.TempDir(), mirror: &fakeMirror{files: map[string][]byte{}, hits: map[string]int{}}}
	backend, err := jail.New(jail.Config{Dir: t.TempDir(), Instance: "test-" + strings.ToLower(session.NewID()[5:]), AgentBinary: buildAgent(t)})
	if err != nil {
		skip("no jail here: %v", err)
	}
	t.Cleanup(backend.Close)
	for _, c := range backend.Probe(t.Context()) {
		if c.Status == sandbox.Fail {
			skip("no jail here: %s: %s (fix: %s)", c.Name, c.Detail, c.Fix)
		}
	}
	owner := workspace.Owner{UID: -1, GID: -1}
	if os.Geteuid() == 0 {
		owner.UID, owner.GID = jail.Owner()
	}
	quota := workspace.Usage{Bytes: 8 << 20, Files: 5000}
	sessions := session.New(session.Config{Root: r.root, InstallationKey: []byte("key"), Backend: backend, Owner: owner, Quota: quota,
		Limits:      sandbox.Limits{MemoryBytes: 1 << 30, CPUs: 2, PIDs: 200, TmpBytes: 256 << 20},
		OutputLimit: 4 << 20, MaxSessions: 8, MaxRunsPerSession: 4,
		Dial: func(ctx context.Context, _, _ string, conn net.Conn) {
			httpconn.Serve(ctx, conn, r.mirror, slog.New(slog.DiscardHandler))
		},
	})
	r.Executor = New(Config{Sessions: sessions, Runners: func() runner.Set { return set }, Packages: r.mirror,
		Signer: signedurl.New([]byte("secret"), "http://host", 0, nil), ExecTimeout: 2 * time.Minute, MaxExecTimeout: 2 * time.Minute,
		MaxCodeBytes: 100 << 10, MaxOutputBytes: 100 << 10, MaxUploadBytes: 1 << 20, Quota: quota})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := sessions.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

func buildAgent(t *testing.T) []byte {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-o", agent, "mcp-code-sandbox/cmd/sandbox-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	binary, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// want runs code that must succeed and print a text, and returns the result.
func (r *packageRig) want(t *testing.T, req Request, stdout string) Result {
	t.Helper()
	req.Artifacts = true
	res, err := r.Run(t.Context(), session.Local, req)
	if err != nil {
		t.Fatalf("%.80q: %v", req.Code, err)
	}
	if got := string(res.Stdout); !res.Success() || got != stdout {
		t.Errorf("%.200q: exit %d %s, printed %q, want %q; stderr %.2000q; hint %q", req.Code, res.ExitCode, res.Cause, got, stdout, res.Stderr, res.Hint)
	}
	if len(res.Files) > 0 {
		t.Errorf("%.80q: packages appear as files: %v", req.Code, res.Files)
	}
	return res
}

// file returns the path on the host of a file in a session's workspace.
func (r *packageRig) file(t *testing.T, id, name string) string {
	t.Helper()
	s, err := r.cfg.Sessions.Open(session.Local, id)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	found := ""
	_ = filepath.WalkDir(r.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "/"+name) && strings.Contains(path, s.Key()) {
			found = path
		}
		return nil
	})
	return found
}

func (r *packageRig) read(t *testing.T, id, name string) string {
	t.Helper()
	b, err := os.ReadFile(r.file(t, id, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func py(id, code string, packages ...string) Request {
	return Request{Session: id, Runner: "python", Code: code, Packages: packages}
}

func cell(id, code string, packages ...string) Request {
	req := py(id, code, packages...)
	req.Persistent = true
	return req
}

func shell(id, code string, packages ...string) Request {
	return Request{Session: id, Runner: "shell", Code: code, Packages: packages}
}

func TestPythonPackages(t *testing.T) {
	r := newPackageRig(t)
	m := r.mirror
	m.module(t, "tiny", "1.5", "small", "numpy>1")
	m.module(t, "tiny", "2.0", "small", "numpy>1")
	m.module(t, "small", "1.0")
	m.wheel(t, "tool-kit", "1.0", nil, map[string]string{
		"toolkit/__init__.py": "", "toolkit/__main__.py": "print('main')\n", "toolkit/deep.py": "def main(): print('script')\n",
		"tool_kit-1.0.dist-info/entry_points.txt": "[console_scripts]\ntoolkit=toolkit.deep:main\n",
	})

	t.Run("argument", func(t *testing.T) {
		res := r.want(t, py("a", "import tiny, small, importlib.metadata as m; print(tiny.v, m.version('small'))", "tiny==1.*"), "1.5 1.0\n")
		if want := []Package{{"small", "1.0"}, {"tiny", "1.5"}}; !slices.Equal(res.Installed, want) || len(res.Replaced) > 0 {
			t.Errorf("installed %v, replaced %v", res.Installed, res.Replaced)
		}
		if got := r.read(t, "a", ".packages/python/lock.txt"); got != "small==1.0\ntiny==1.5\n" {
			t.Errorf("lock: %q", got)
		}
		if m.asked("/pypi/simple/numpy/") > 0 {
			t.Error("pip asked for a library that the runner has")
		}
		before := m.asked("/pypi/simple/tiny/")
		if res := r.want(t, py("a", "import tiny; print(tiny.v)", "tiny==1.*"), "1.5\n"); len(res.Installed) > 0 || m.asked("/pypi/simple/tiny/") != before {
			t.Errorf("installed again: %v", res.Installed)
		}
		r.want(t, py("other", "import importlib.util as u; print(u.find_spec('tiny'))"), "None\n")
		res = r.want(t, cell("a", "import tiny; print(tiny.v)", "tiny==2.*"), "2.0\n")
		if want := []Package{{"tiny", "2.0"}}; !slices.Equal(res.Installed, want) {
			t.Errorf("upgrade: %v", res.Installed)
		}
		r.want(t, shell("shell", "python -c 'import small; print(small.v)'", "small"), "1.0\n")
	})

	t.Run("path", func(t *testing.T) { // a live interpreter keeps the PATH that its code has set
		for language, code := range map[string][2]string{
			"shell":  {"PATH=/data/mine:$PATH", "echo ${PATH%%:*}; python -c 'print(1)'"},
			"python": {"import os; os.environ['PATH'] = '/data/mine:' + os.environ['PATH']", "print(os.environ['PATH'].split(':')[0])\n!python -c 'print(1)'"},
		} {
			for _, step := range []struct{ code, want string }{{code[0], ""}, {code[1], "/data/mine\n1\n"}, {code[1], "/data/mine\n1\n"}} {
				r.want(t, Request{Session: "path-" + language, Runner: language, Code: step.code, Persistent: true}, step.want)
			}
		}
	})

	t.Run("header", func(t *testing.T) {
		r.want(t, py("h", "# /// script\n# requires-python = \">=3.10\"\n# dependencies = [\n#   \"small==1.0\", # fine\n# ]\n# ///\nimport small; print(small.v)"), "1.0\n")
	})

	t.Run("inside", func(t *testing.T) {
		const install = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', 'small'], check=True)\n"
		res := r.want(t, py("i", "try:\n    import small\nexcept ImportError: pass\n"+install+"import small; print(small.v)"), "1.0\n")
		if want := []Package{{"small", "1.0"}}; !slices.Equal(res.Installed, want) {
			t.Errorf("installed %v", res.Installed)
		}
		r.want(t, cell("c", "try:\n    import small\nexcept ImportError: pass\n"), "")
		r.want(t, cell("c", "%pip install -q small\nimport small; print(small.v)"), "1.0\n")
		r.want(t, cell("c", "!pip install -q tool-kit\nimport toolkit.deep; toolkit.deep.main()"), "script\n")
		r.want(t, py("c", "import subprocess, sys; subprocess.run([sys.executable, '-m', 'toolkit'])"), "main\n")
		r.want(t, shell("c", "toolkit; python -m toolkit; pip install -q --user 'tiny<2' && python -c 'import tiny; print(tiny.v)'"), "script\nmain\n1.5\n")
		r.want(t, shell("c", "pip install -q -U tiny; pip show tiny | grep Version; pip list 2>/dev/null | grep -c '^numpy '; pip uninstall -qy tiny; pip show -q tiny 2>/dev/null || echo gone"),
			"Version: 2.0\n1\ngone\n")
		r.want(t, shell("c", "printf '#!/bin/sh\\necho uv $*\\n' > /data/.packages/python/bin/uv; chmod +x /data/.packages/python/bin/uv"), "")
		r.want(t, cell("c", "%uv pip install small"), "uv pip install --python /opt/runners/python/bin/python --prefix /data/.packages/python small\n")
		r.want(t, shell("c", "pip uninstall -y numpy >/dev/null 2>&1; python -c 'import numpy; print(1)'"), "1\n")
		r.want(t, shell("c", "python -m venv v --without-pip && v/bin/python -c 'import small' 2>/dev/null || echo alone; rm -r v"), "alone\n")
	})

	t.Run("another version", func(t *testing.T) {
		m.wheel(t, "pandas", "0.1", nil, map[string]string{"pandas/__init__.py": "__version__ = '0.1'\n"})
		m.wheel(t, "openpyxl", "0.1", nil, map[string]string{"openpyxl.py": "__version__ = '0.1'\n"})
		const show = "import pandas; print(pandas.__version__)"
		old := r.mustRunText(t, cell("live", show))
		res := r.want(t, py("p", show, "pandas==0.1"), "0.1\n")
		if want := []Package{{"pandas", "0.1"}}; !slices.Equal(res.Replaced, want) || res.Outdated {
			t.Errorf("%+v", res)
		}
		r.want(t, py("p", show), "0.1\n")
		res = r.want(t, cell("p", "x = 1; "+show), "0.1\n")
		if len(res.Replaced) != 1 || res.Outdated {
			t.Errorf("a fresh interpreter: %v %v", res.Replaced, res.Outdated)
		}
		r.want(t, cell("p", "print(x)"), "1\n")
		r.want(t, py("p", "import subprocess, sys; subprocess.run([sys.executable, '-c', '"+show+"'])"), "0.1\n")
		r.want(t, shell("p", "python -c '"+show+"'"), "0.1\n")
		// A library that is not preloaded.
		r.want(t, py("q", "import openpyxl; print(openpyxl.__version__)", "openpyxl==0.1"), "0.1\n")

		for range 2 { // also when it is installed already
			_, err := r.Run(t.Context(), session.Local, cell("live", show, "pandas==0.1"))
			if refusal, ok := errors.AsType[*Error](err); !ok || refusal.Code != CodeNeedsRestart || !strings.Contains(refusal.Message, "pandas 0.1 is installed") ||
				!strings.Contains(refusal.Message, "started with "+strings.TrimSpace(old)+". Run the code again with restart: true") {
				t.Errorf("a live interpreter: %v", err)
			}
		}
		res = r.want(t, cell("live", show), old) // the code takes what there is
		if !res.Outdated || len(res.Replaced) != 1 {
			t.Errorf("a live interpreter: %v %v", res.Replaced, res.Outdated)
		}
		restart := cell("live", show, "pandas==0.1")
		restart.Restart = true
		if res = r.want(t, restart, "0.1\n"); res.Outdated {
			t.Error("still outdated after a restart")
		}
		if res = r.want(t, cell("told", "!pip install -q pandas==0.1\n"+show), old); !res.Outdated {
			t.Error("no notice")
		}
		if res = r.want(t, cell("told", "print(1)"), "1\n"); res.Outdated {
			t.Error("the same notice in the next cell")
		}
		if res, err := r.Run(t.Context(), session.Local, cell("told", "pandas.nothing")); err != nil || !res.Outdated {
			t.Errorf("no notice in a cell that fails: %v", err)
		}
		// A process that starts after the installation uses the new version.
		r.want(t, shell("new", "pip install -q pandas==0.1; python -c '"+show+"'"), "0.1\n")
		r.want(t, shell("new", "pip uninstall -qy pandas; python -c '"+show+"'"), old)
		r.want(t, cell("new", "!pip install -q pandas==0.1\n"+show+"\nimport subprocess, sys; subprocess.run([sys.executable, '-c', '"+show+"']); None"), old+"0.1\n")
		r.want(t, shell("live", "pip uninstall -qy pandas"), "")
		if res = r.want(t, py("live", show), old); len(res.Replaced) > 0 {
			t.Errorf("after the package was removed: %v", res.Replaced)
		}
	})

	t.Run("failures", func(t *testing.T) {
		fail := func(code Code, text string, req Request) {
			t.Helper()
			res, err := r.Run(t.Context(), session.Local, req)
			if codeOf(err) != code || !strings.Contains(err.Error(), text) {
				t.Errorf("%v: %v (%s), want %s with %q; %+v", req.Packages, err, codeOf(err), code, text, res.Cause)
			}
		}
		fail(codeNoWheel, "No matching distribution found for nothing-like-it", py("f", "print(1)", "nothing-like-it"))
		m.problems = []PackageProblem{{Code: "package_too_new", Package: "tiny", Message: "tiny 3.0 is too new."}}
		fail("package_too_new", "tiny 3.0 is too new. The code was not run.", py("f", "print(1)", "tiny==3.0"))
		m.problems = []PackageProblem{{Code: "no_wheel", Package: "sklearn", Message: "sklearn has no wheel."}}
		fail("no_wheel", "The module sklearn belongs to the package scikit-learn, which is installed: only import it. The code was not run.", py("f", "1", "sklearn==3.0"))
		m.problems = []PackageProblem{{Code: "package_too_new", Package: "tiny", Message: "tiny 3.0 is too new."}}
		res, err := r.Run(t.Context(), session.Local, py("f", "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-m', 'pip', 'install', '-q', 'tiny==3.0']))"))
		if err != nil || res.Hint != "tiny 3.0 is too new." {
			t.Errorf("%v, hint %q", err, res.Hint)
		}
		m.problems = nil
		r.want(t, cell("f", "%pip install -q tiny==4.0"), "")
		unmet := slices.DeleteFunc(m.unmet, func(s string) bool { return s == "nothing-like-it" || s == "sklearn==3.0" })
		if want := []string{"tiny==3.0", "tiny==3.0", "tiny==3.0", "tiny==4.0"}; !slices.Equal(unmet, want) {
			t.Errorf("unmet: %q, want %q", unmet, want)
		}
		fail(CodeInvalidPackages, "requires Python >=4 (requires-python), and the environment python has Python 3.",
			py("f", "# /// script\n# requires-python = '>=4'\n# dependencies = ['tiny']\n# ///\nimport tiny"))
		res, err = r.Run(t.Context(), session.Local, py("f", "import yaml"))
		if err != nil || !strings.Contains(res.Hint, `packages: ["pyyaml"]`) {
			t.Errorf("%v, hint %q", err, res.Hint)
		}
		noise := make([]byte, 9<<20)
		for i, x := 0, uint32(1); i < len(noise); i++ {
			x = x*1664525 + 1013904223
			noise[i] = byte(x >> 24)
		}
		m.wheel(t, "endless", "1.0", nil, map[string]string{"large.txt": string(noise)})
		fail(CodeQuotaExceeded, "/data", py("full", "print(1)", "endless"))
		// What pip could not remove is gone, and there is room again. The next pip removes what
		// another one has left in a shell.
		r.want(t, py("full", "import small; print(small.v)", "small"), "1.0\n")
		r.want(t, shell("full", "mkdir /data/.packages/python/.tmp-left; pip install -q tiny; ls -A /data/.packages/python"), "lib\n"+lockName+"\n")
	})
}

// TestPackageConflicts: a result says that a package does not fit to another one.
func TestPackageConflicts(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.module(t, "base", "1.0")
	r.mirror.module(t, "base", "2.0")
	r.mirror.module(t, "upper", "1.0", "base<2")
	if res := r.want(t, py("c", "import upper; print(1)", "upper"), "1\n"); len(res.Conflicts) > 0 {
		t.Errorf("%q", res.Conflicts)
	}
	res := r.want(t, py("c", "import base; print(base.v)", "base==2.0"), "2.0\n")
	if want := []string{"upper 1.0 requires base<2, but you have base 2.0 which is incompatible."}; !slices.Equal(res.Conflicts, want) {
		t.Errorf("%q", res.Conflicts)
	}
	if res := r.want(t, py("c", "print(1)"), "1\n"); len(res.Conflicts) > 0 {
		t.Errorf("later: %q", res.Conflicts)
	}
	// If the code itself runs pip, pip prints it.
	run, err := r.Run(t.Context(), session.Local, cell("own", "%pip install -q upper\n!pip install -q base==2.0"))
	if err != nil || !strings.Contains(string(run.Stderr), "upper 1.0 requires base<2, but you have base 2.0 which is incompatible.") {
		t.Errorf("pip in a cell: %v, %s", err, run.Stderr)
	}
	// The runner's own libraries count as well.
	r.mirror.module(t, "numpy", "1.0")
	run, err = r.Run(t.Context(), session.Local, py("own", "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', '-q', 'numpy==1.0'])"))
	if err != nil || !strings.Contains(string(run.Stderr), "but you have numpy 1.0 which is incompatible.") {
		t.Errorf("pip in a program: %v, %s", err, run.Stderr)
	}
	if res := r.want(t, py("n", "print(1)", "numpy==1.0"), "1\n"); len(res.Conflicts) == 0 || !strings.Contains(res.Conflicts[0], "but you have numpy 1.0 which is incompatible") {
		t.Errorf("numpy: %q", res.Conflicts)
	}
}

// TestUnfinishedPackage: a package of which pip has installed a part is not installed, and the next
// pip replaces it.
func TestUnfinishedPackage(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.module(t, "tiny", "1.0")
	r.mirror.module(t, "small", "1.0")
	r.want(t, py("u", "import tiny, small; print(tiny.v)", "tiny", "small"), "1.0\n")
	r.want(t, shell("u", "cd /data/.packages/python/lib/*/site-packages && rm tiny-1.0.dist-info/INSTALLER && rm -r __pycache__ && echo 1/0 > tiny.py"), "")
	if res := r.want(t, py("u", "print(1)"), "1\n"); slices.Contains(res.Installed, Package{"tiny", "1.0"}) {
		t.Errorf("installed: %v", res.Installed)
	}
	// Its list of files is its own word.
	r.want(t, shell("u", "cd /data && mkdir .venv && echo mine > .venv/file; ln -s /data .packages/python/lib/away; cd .packages/python/lib/*/site-packages && "+
		"printf '/data/.venv/file,,\\n../../../../../.venv/file,,\\n../../away/.venv/file,,\\n' >> tiny-1.0.dist-info/RECORD"), "")
	res := r.want(t, py("u", "import tiny; print(tiny.v, open('/data/.venv/file').read())", "tiny"), "1.0 mine\n\n")
	if want := []Package{{"tiny", "1.0"}}; !slices.Equal(res.Installed, want) {
		t.Errorf("installed again: %v", res.Installed)
	}
}

// TestExtrasKeepVersions: extras of a library that the session or the runner has come without
// another version of it.
func TestExtrasKeepVersions(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.module(t, "tqdm", "0.1") // without the extra, so that pip would take it
	r.mirror.module(t, "tiny", "1.0")
	r.mirror.module(t, "tiny", "2.0")
	if res, err := r.Run(t.Context(), session.Local, py("x", "print(1)", "tqdm[slack]")); codeOf(err) == "" || len(res.Installed) > 0 {
		t.Errorf("%v, installed %v", err, res.Installed)
	}
	r.want(t, py("x", "import tiny; print(tiny.v)", "tiny==1.0"), "1.0\n")
	r.want(t, py("x", "import tiny; print(tiny.v)", "tiny[more]"), "1.0\n")
}

// TestSourceBuild: pip builds a source distribution in the sandbox of the run.
func TestSourceBuild(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.source(t, "built", "1.0", map[string]string{
		"PKG-INFO":       "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n",
		"pyproject.toml": "[build-system]\nrequires = [\"helper\"]\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
		"backend.py": `import os, zipfile, helper
def build_wheel(directory, config_settings=None, metadata_directory=None):
    name, info = "built-1.0-py3-none-any.whl", "built-1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as z:
        z.writestr("built.py", "where = " + repr((os.uname().nodename, os.getuid(), helper.v)) + "\n")
        z.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n")
        z.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(info + "RECORD", "built.py,,\n" + "".join(info + f + ",,\n" for f in ("METADATA", "WHEEL", "RECORD")))
    return name
`,
	})
	r.mirror.module(t, "helper", "3.0")
	res := r.want(t, py("s", "import built; print(*built.where)", "built"), "sandbox 1000 3.0\n")
	if want := []Package{{"built", "1.0"}}; !slices.Equal(res.Installed, want) {
		t.Errorf("installed %v", res.Installed)
	}
}

// TestOutdatedPackages: a process that may have loaded another version says so.
func TestOutdatedPackages(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.module(t, "tiny", "1.0")
	r.mirror.module(t, "tiny", "2.0")
	r.mirror.module(t, "tqdm", "0.1")
	first := cell("o", "import tiny; print(tiny.v)")
	first.Packages = []string{"tiny==1.0"}
	if res := r.want(t, first, "1.0\n"); res.Outdated {
		t.Error("outdated at first")
	}
	res := r.want(t, cell("o", "%pip install -q tiny==2.0\nimport tiny; print(tiny.v)"), "1.0\n")
	if want := []Package{{"tiny", "2.0"}}; !res.Outdated || !slices.Equal(res.Replaced, want) {
		t.Errorf("%t %v", res.Outdated, res.Replaced)
	}
	again := cell("o", "import tiny; print(tiny.v)")
	again.Restart = true
	if res := r.want(t, again, "2.0\n"); res.Outdated {
		t.Error("outdated after a restart")
	}
	// Another run changes what the interpreter has loaded.
	r.want(t, shell("o", "pip install -q tiny==1.0"), "")
	res = r.want(t, cell("o", "import tiny; print(tiny.v)"), "2.0\n")
	if want := []Package{{"tiny", "1.0"}}; !res.Outdated || !slices.Equal(res.Replaced, want) {
		t.Errorf("after another run: %t %v", res.Outdated, res.Replaced)
	}
	if res := r.want(t, cell("o", "print(1)"), "1\n"); res.Outdated {
		t.Error("said twice")
	}
	r.want(t, py("o", "import tiny; print(tiny.v)", "tiny==2.0"), "2.0\n")
	if res := r.want(t, cell("o", "print(1)", "tiny"), "1\n"); !res.Outdated {
		t.Error("not outdated after a fresh run")
	}
	res = r.want(t, py("p", "!pip install -q tqdm==0.1\nprint(1)"), "1\n")
	if want := []Package{{"tqdm", "0.1"}}; !res.Outdated || !slices.Equal(res.Replaced, want) {
		t.Errorf("a fresh process: %t %v", res.Outdated, res.Replaced)
	}
	// Imports keep their bytecode, although the interpreter keeps no other.
	r.want(t, shell("o", "ls /data/.packages/python/lib/*/site-packages/__pycache__ | cut -d. -f1; python -c 'import sys; print(sys.dont_write_bytecode)'"), "tiny\nTrue\n")
}

// mustRunText returns what code prints.
func (r *packageRig) mustRunText(t *testing.T, req Request) string {
	t.Helper()
	res, err := r.Run(t.Context(), session.Local, req)
	if err != nil || !res.Success() {
		t.Fatalf("%v, %s", err, res.Stderr)
	}
	return string(res.Stdout)
}

// A package runs no code in a later run that does not import it, and shadows nothing.
func TestHostilePythonPackages(t *testing.T) {
	r := newPackageRig(t)
	const mark = "open('/data/ran', 'a').write(__name__)\n"
	r.mirror.wheel(t, "evil", "1.0", nil, map[string]string{
		"evil.py": "v = 1\n", "evil.pth": "import sys; open('/data/ran', 'a').write('pth')\n",
		"sitecustomize.py": mark, "usercustomize.py": mark, "json.py": mark, "typing.py": mark, "requests/__init__.py": mark, "numpy.py": mark,
		"sandbox_runner.py": mark, "sandbox_figures.py": mark, "zygote.py": mark,
	})
	const look = "import json, typing, requests, numpy, os, evil; print(evil.v, os.path.exists('/data/ran'))"
	r.want(t, py("s", look, "evil"), "1 False\n")
	r.want(t, py("s", look), "1 False\n")
	r.want(t, cell("s", look), "1 False\n")
	r.want(t, cell("s", "import matplotlib.pyplot as plt; print(os.path.exists('/data/ran'))"), "False\n")
	r.want(t, shell("s", `python -c "`+look+`"; python -I -c "`+look+`"`), "1 False\n1 False\n")
	// With another version of a library, only that one comes first.
	r.mirror.wheel(t, "tqdm", "0.1", nil, map[string]string{"tqdm.py": "v = '0.1'\n"})
	r.want(t, py("s", "import tqdm, json, typing, os, evil; print(tqdm.v, os.path.exists('/data/ran'))", "tqdm==0.1"), "0.1 False\n")
	r.want(t, py("t", "import numpy; print(hasattr(numpy, 'array'))"), "True\n")
	// The modules of the driver stay the runner's then, too.
	r.mirror.wheel(t, "driver", "1.0", nil, map[string]string{"sandbox_runner.py": mark, "sandbox_figures.py": mark, "sandbox_shell.py": mark, "sandbox_errors.py": mark, "sandbox_pip.py": mark})
	r.want(t, cell("u", "import tqdm, os; print(tqdm.v, os.path.exists('/data/ran'))", "tqdm==0.1", "driver"), "0.1 False\n")
	r.want(t, shell("u", "pip list 2>/dev/null | grep -c '^driver '; ls /data/ran 2>/dev/null || echo none"), "1\nnone\n")
}

// TestEditable: pip does not claim to install what Python would not find.
func TestEditable(t *testing.T) {
	r := newPackageRig(t)
	const project = "cd /tmp; mkdir -p m; printf '[project]\nname = \"m\"\nversion = \"1\"\n' > m/pyproject.toml; "
	for _, option := range []string{"-e m", "--editable=m", "--editable m"} {
		r.want(t, shell("e", project+"pip install -q "+option+" 2>&1 | cut -d, -f1; echo ${PIPESTATUS[0]}"), "ERROR: -e does not work here\n1\n")
	}
}

// remembers reports whether the server knows the Python packages of a session.
func (r *packageRig) remembers(id string) bool {
	states := &r.packageStates
	states.mu.Lock()
	defer states.mu.Unlock()
	_, known := states.byID[r.cfg.Sessions.Key(session.Local, id)+"/python/pypi"]
	return known
}

// Whatever code leaves in the directory of its packages, the server survives and stays inside.
func TestHostilePackageDirectory(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.module(t, "small", "1.0")
	const site = "mkdir -p /data/.packages/python/lib/python3.{10,11,12,13,14}/site-packages; cd /data/.packages/python; "
	for name, code := range map[string]string{
		"names":    site + `for d in lib/*/site-packages; do mkdir $d/$'x\ny-1.0.dist-info' "$d/[x]; y-1.dist-info" $d/ok-1.0.dist-info $d/x-.dist-info; done`,
		"many":     site + `cd lib/python3.11/site-packages; for i in {1..3000}; do echo p$i-1.dist-info; done | xargs touch`,
		"fifo":     site + "mkfifo lock.txt; mkdir lib/python3.11/site-packages/x-1.dist-info",
		"link":     site + "ln -s /etc/passwd lock.txt; mkdir lib/python3.11/site-packages/x-1.dist-info",
		"folder":   site + "mkdir -p lock.txt/x; mkdir lib/python3.11/site-packages/x-1.dist-info",
		"outside":  "ln -s /opt/runners/python /data/.packages",
		"up":       "mkdir /data/.packages; ln -s ../../../../.. /data/.packages/python",
		"file":     "echo x > /data/.packages",
		"npm":      `mkdir -p /data/.packages/node/node_modules; cd /data/.packages/node/node_modules; echo '{"packages":{"node_modules/../x":{"version":"1"},"node_modules/a":{"version":"1\n2"},"node_modules/b":{"version":"2"}}}' > .package-lock.json`,
		"npm pipe": "mkdir -p /data/.packages/node/node_modules; mkfifo /data/.packages/node/node_modules/.package-lock.json",
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(name, " ", "-")
			res, err := r.Run(t.Context(), session.Local, shell(id, code))
			if err != nil || res.Cause != "" {
				t.Fatalf("%v, %s %s", err, res.Cause, res.Stderr)
			}
			for _, p := range res.Installed {
				if strings.ContainsAny(p.Name+p.Version, "\n[]; /") {
					t.Errorf("installed %q", p)
				}
			}
			for _, req := range []Request{py(id, "print(1)"), cell(id, "print(1)"), shell(id, "echo 1")} {
				if res, err := r.Run(t.Context(), session.Local, req); err != nil || string(res.Stdout) != "1\n" {
					t.Errorf("the next run: %v, %s", err, res.Stderr)
				}
			}
			if name == "many" && !r.remembers(id) { // what no installation leaves is not read again for each run
				t.Error("3000 unfinished packages are read again")
			}
		})
	}
}

// TestUnreadablePackages: what makes pip itself fail says how to get rid of it.
func TestUnreadablePackages(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.module(t, "small", "1.0")
	r.want(t, shell("p", "cd /data; mkdir -p .packages/python/lib/python3.{10,11,12,13,14}/site-packages; for d in .packages/python/lib/*/site-packages; do "+
		"mkdir $d/forged-9.9.dist-info $d/a-b-c-1.0.dist-info; printf 'Metadata-Version: 2.1\\nName: forged\\nVersion: 9.9\\nRequires-Dist: small==77\\n' > $d/forged-9.9.dist-info/METADATA; "+
		"printf 'Metadata-Version: 2.1\\nName: a-b-c\\nVersion: 1.0\\n' > $d/a-b-c-1.0.dist-info/METADATA; echo pip | tee $d/a-b-c-1.0.dist-info/INSTALLER $d/forged-9.9.dist-info/INSTALLER >/dev/null; done"), "")
	_, err := r.Run(t.Context(), session.Local, py("p", "1", "small==1.0"))
	if codeOf(err) != CodePackageInstallFailed || !strings.Contains(err.Error(), "rm -rf /data/.packages removes all packages") {
		t.Errorf("%v", err)
	}
	r.want(t, shell("p", "rm -rf /data/.packages"), "")
	r.want(t, py("p", "import small; print(small.v)", "small==1.0"), "1.0\n")
}

func TestNodePackages(t *testing.T) {
	r := newPackageRig(t)
	r.mirror.npmPackage(t, "leftish", "1.2.3", map[string]string{
		"package.json": `{"name":"leftish","version":"1.2.3","main":"index.js","bin":{"leftish":"cli.js"},"scripts":{"postinstall":"touch /data/ran"}}`,
		"index.js":     "module.exports = { v: '1.2.3' };\n", "cli.js": "#!/usr/bin/env node\nconsole.log('cli')\n",
	})
	js := func(id, language, code string, packages ...string) Request {
		return Request{Session: id, Runner: language, Code: code, Packages: packages}
	}
	res := r.want(t, js("n", "javascript", "console.log(require('leftish').v, require('fs').existsSync('/data/ran'))", "leftish@^1"), "1.2.3 false\n")
	if want := []Package{{"leftish", "1.2.3"}}; !slices.Equal(res.Installed, want) {
		t.Errorf("installed %v", res.Installed)
	}
	if got := r.read(t, "n", ".packages/node/lock.txt"); got != "leftish@1.2.3\n" {
		t.Errorf("lock: %q", got)
	}
	r.want(t, js("n", "typescript", "import l from 'leftish';\nconsole.log(l.v as string);"), "1.2.3\n")
	live := js("n", "javascript", "const l = await import('leftish'); console.log(l.default.v)")
	live.Persistent = true
	r.want(t, live, "1.2.3\n")
	r.want(t, shell("n", "leftish; node -p 'require(\"leftish\").v'; npm ls 2>/dev/null | grep -c leftish"), "cli\n1.2.3\n1\n")
	r.want(t, shell("m", "npm install --loglevel=error leftish >/dev/null && ls -A /data; node -p 'require(\"leftish\").v'"), ".packages\n1.2.3\n")
	live = js("k", "typescript", "try { require('leftish') } catch {}")
	live.Persistent = true
	r.want(t, live, "")
	live.Code = "require('child_process').execSync('npm install --loglevel=error leftish'); console.log(require('leftish').v)"
	r.want(t, live, "1.2.3\n")
	for _, req := range []Request{js("n", "javascript", "1", "leftish@^99"), shell("n", "npm install --loglevel=error leftish@^99")} {
		r.mirror.unmet = nil
		_, err := r.Run(t.Context(), session.Local, req)
		if unmet := slices.Compact(r.mirror.unmet); !slices.Equal(unmet, []string{"leftish@^99"}) {
			t.Errorf("unmet: %q, %v", unmet, err)
		}
		if len(req.Packages) > 0 && codeOf(err) != codePackageNotFound {
			t.Errorf("%v", err)
		}
	}
	// Without a network, npm does not wait between attempts.
	if res, err := r.Run(t.Context(), session.Local, shell("n", "timeout 20 npm install --loglevel=error https://nowhere.example/x.tgz")); err != nil || res.Success() || res.ExitCode == 124 {
		t.Errorf("npm and an address: %v, %+v", err, res)
	}
	// A project keeps npm's own behaviour.
	r.want(t, shell("project", "mkdir /tmp/p && cd /tmp/p && npm init -y >/dev/null && npm install --loglevel=error leftish >/dev/null && ls node_modules && npm ci >/dev/null && ls -A /data"), "leftish\n")
	if res, err := r.Run(t.Context(), session.Local, js("x", "javascript", "require('leftish')")); err != nil || !strings.Contains(res.Hint, `packages: ["leftish"]`) {
		t.Errorf("%v, hint %q", err, res.Hint)
	}
}

// A live interpreter finds a package that was missing when it first looked, and the session's
// package comes before the runner's of the same name.
func TestNodePackagesLive(t *testing.T) {
	r := newPackageRig(t)
	for name, files := range map[string]map[string]string{
		"first": {"index.js": "try { require('plain') } catch {}\nmodule.exports = { plain: () => require('plain').v };\n"},
		"plain": {"package.json": `,"main":"lib"`, "lib/index.js": "module.exports = { v: 'plain' };\n", "lib/parse.js": "module.exports = 'parse';\n"},
		"mapped": {
			"package.json": `,"type":"module","dependencies":{"plain":"1.0.0","@acme/tool":"1.0.0"},"exports":{".":{"import":"./esm.js","require":"./cjs.cjs"},"./sub":"./sub.js","./package.json":"./package.json"}`,
			"esm.js":       "import p from 'plain';\nimport { tool } from '@acme/tool';\nexport const v = ['esm', p.v, tool].join();\n",
			"cjs.cjs":      "exports.v = ['cjs', require('plain').v, require('@acme/tool').tool].join();\n",
			"sub.js":       "export default 'sub';\n",
		},
		"@acme/tool": {"index.js": "exports.tool = 'tool';\n", "deep/file.js": "exports.file = 'file';\n"},
		"fs":         {"index.js": "exports.v = 'evil';\n"},
		"lodash":     {"index.js": "exports.VERSION = 'mine';\n", "fp.js": "exports.fp = 'mine';\n"},
		"esbuild":    {"index.js": "exports.v = 'evil';\n"},
	} {
		manifest := map[string]string{"package.json": fmt.Sprintf(`{"name":%q,"version":"1.0.0"%s}`, name, files["package.json"])}
		for path, text := range files {
			if path != "package.json" {
				manifest[path] = text
			}
		}
		r.mirror.npmPackage(t, name, "1.0.0", manifest)
	}
	const (
		static = "import { v } from 'mapped'; import sub from 'mapped/sub'; import parse from 'plain/lib/parse.js'; import { file } from '@acme/tool/deep/file.js';\nconsole.log(v, sub, parse, file);"
		loads  = "console.log((await import('mapped')).v, require('mapped').v, require('mapped/package.json').version, require('plain/lib/parse'), require('@acme/tool/deep/file').file, require('first').plain())"
		try    = "for (const name of ['mapped', 'mapped/sub', 'plain', 'plain/lib/parse', '@acme/tool', '@acme/tool/deep/file.js']) { try { require(name); console.log(name) } catch {} try { await import(name); console.log(name) } catch {} }"
		add    = "npm install --loglevel=error --no-audit --no-fund "
	)
	live := func(id, language, code string, packages ...string) Request {
		return Request{Session: id, Runner: language, Code: code, Packages: packages, Persistent: true}
	}
	for _, language := range []string{"javascript", "typescript"} {
		for way, install := range map[string]func(id string){
			"argument": func(id string) { r.want(t, live(id, language, "", "mapped"), "") },
			"shell":    func(id string) { r.mustRunText(t, shell(id, add+"mapped")) },
			"child": func(id string) {
				r.mustRunText(t, live(id, language, "const out = require('child_process').execSync('"+add+"mapped', { encoding: 'utf8' });"))
			},
		} {
			t.Run(language+" "+way, func(t *testing.T) {
				id := language + "-" + way
				r.want(t, live(id, language, "console.log(typeof require('first').plain)", "first"), "function\n")
				r.want(t, live(id, language, try), "")
				if res, err := r.Run(t.Context(), session.Local, live(id, language, static)); err != nil || res.Success() {
					t.Errorf("missing packages: %v, %s", err, res.Stdout)
				}
				install(id)
				r.want(t, live(id, language, static), "esm,plain,tool sub parse file\n")
				r.want(t, live(id, language, loads), "esm,plain,tool cjs,plain,tool 1.0.0 parse file plain\n")
			})
		}
		t.Run(language+" replaces", func(t *testing.T) {
			const code = "import _ from 'lodash'; import { fp } from 'lodash/fp.js'; import * as fs from 'fs'; import zod from 'zod';\n" +
				"console.log(_.VERSION, fp, require('lodash').VERSION, (await import('lodash')).VERSION, typeof fs.statSync, typeof require('fs').statSync, typeof zod.string, require('esbuild').v)"
			const want = "mine mine mine mine function function function evil\n"
			id := language + "-lodash"
			if language == "typescript" { // a live interpreter may keep only what it has loaded
				r.want(t, live(id, language, "console.log(typeof require('papaparse').parse)"), "function\n")
			}
			r.want(t, Request{Session: id, Runner: language, Code: code, Packages: []string{"lodash@1.0.0", "fs", "esbuild"}}, want)
			r.want(t, live(id, language, code), want)
			r.want(t, live(id, language, "console.log(require('child_process').execFileSync('node', ['-p', 'require(\"lodash\").VERSION'], { encoding: 'utf8' }).trim())"), "mine\n")
			r.want(t, live(id+"-other", language, "import _ from 'lodash'; console.log(_.VERSION.split('.')[0])"), "4\n")
			late := live(id+"-late", language, "console.log(require('lodash').VERSION.split('.')[0])")
			r.want(t, late, "4\n")
			late.Packages = []string{"lodash@1.0.0", "fs"}
			if res := r.want(t, late, "4\n"); !res.Outdated || !slices.Equal(res.Replaced, []Package{{"lodash", "1.0.0"}}) {
				t.Errorf("an interpreter that has loaded lodash: %t, %v", res.Outdated, res.Replaced)
			}
			if res := r.want(t, late, "4\n"); res.Outdated {
				t.Error("said again, although nothing was installed")
			}
		})
	}
	// What is not a package does not hang or end the interpreter, and hides nothing.
	t.Run("hostile", func(t *testing.T) {
		for name, setup := range map[string]string{
			"fifo": "mkdir $d/lodash; mkfifo $d/lodash/package.json $d/pipe $d/../package.json", "device": "mkdir $d/lodash; ln -s /dev/zero $d/lodash/package.json",
			"loop": "ln -s lodash $d/lodash", "folder": "mkdir -p $d/lodash/package.json", "file": "echo x > $d/lodash", "nothing": "rmdir $d; mkfifo $d",
		} {
			r.mustRunText(t, shell(name, "d=/data/.packages/node/node_modules; mkdir -p $d; "+setup))
			const code = "import _ from 'lodash'; console.log(_.VERSION[0], require('lodash').VERSION[0]);" +
				"for (const name of ['pipe', '@', '@x', '.bin', 'a\\0b', 'gone']) { try { require(name) } catch {} try { await import(name) } catch {} }"
			for _, language := range []string{"javascript", "typescript"} {
				r.want(t, live(name, language, code), "4 4\n")
				r.want(t, Request{Session: name, Runner: language, Code: code}, "4 4\n")
			}
		}
		r.mustRunText(t, shell("garbage", "d=/data/.packages/node/node_modules; mkdir -p $d/lodash $d/big; echo '{\"main\":' > $d/lodash/package.json; head -c 4000000 /dev/zero > $d/big/package.json"))
		r.want(t, live("garbage", "typescript", "for (const name of ['lodash', 'big']) { try { require(name) } catch { console.log(1) } try { await import(name) } catch { console.log(2) } }"), "1\n2\n1\n2\n")
		r.want(t, live("garbage", "typescript", "console.log(typeof require('papaparse').parse)"), "function\n")
	})
}

// TestParallelInstallations: runs of one session that install at the same time lose nothing.
func TestParallelInstallations(t *testing.T) {
	r := newPackageRig(t)
	names := []string{"first", "second", "third"}
	for _, name := range names {
		r.mirror.npmPackage(t, name, "1.0.0", map[string]string{
			"package.json": fmt.Sprintf(`{"name":%q,"version":"1.0.0"}`, name), "index.js": "exports.v = '" + name + "';\n",
		})
	}
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			req := Request{Session: "p", Runner: "javascript", Code: "console.log(require('" + name + "').v)", Packages: []string{name}}
			if res, err := r.Run(t.Context(), session.Local, req); err != nil || string(res.Stdout) != name+"\n" {
				t.Errorf("%s: %v, %s %s", name, err, res.Stdout, res.Stderr)
			}
		})
	}
	wg.Wait()
	r.want(t, Request{Session: "p", Runner: "javascript", Code: "console.log(...['first', 'second', 'third'].map(name => require(name).v))"}, "first second third\n")
	if got := r.read(t, "p", ".packages/node/lock.txt"); got != "first@1.0.0\nsecond@1.0.0\nthird@1.0.0\n" {
		t.Errorf("lock: %q", got)
	}
}
