package runner

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/versionrange"
)

// runProgram runs a bundled program and returns what it prints.
func runProgram(t *testing.T, dir string, env []string, command ...string) string {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append([]string{"PATH=/usr/bin:/bin"}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%q: %v\n%s", command, err, out)
	}
	return string(out)
}

// bundledFile returns the path of a file in runners.
func bundledFile(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../runners/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestInstallersFindTheirCommand: options before the command do not hide it from the wrappers of
// uv, npm and pip, which name the directory of the session's packages.
func TestInstallersFindTheirCommand(t *testing.T) {
	dir, packages := t.TempDir(), t.TempDir()
	fake := func(path string) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho \"$@\"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	fake(packages + "/bin/uv")
	fake(dir + "/real/npm")
	env := []string{"SANDBOX_PYTHON_PACKAGES=" + packages, "SANDBOX_NODE_PACKAGES=" + packages, "PATH=" + dir + "/real:/usr/bin:/bin"}
	const pip = "import json, sys, sandbox_pip as p; args = sys.argv[2:]; print('editable' if p.is_editable(args) else ' '.join(p.into(sys.argv[1], args)))"
	for name, c := range map[string]struct {
		command []string
		want    map[string]string
	}{
		"uv": {[]string{"/bin/sh", bundledFile(t, "python/uv")}, map[string]string{
			"pip install x":               "pip install PYTHON x",
			"-q pip install x":            "-q pip install PYTHON x",
			"--color never pip -q sync":   "--color never pip -q sync PYTHON",
			"pip install x --python 3":    "pip install x --python 3",
			"--directory d pip list":      "--directory d pip list",
			"run pip install":             "run pip install",
			"--cache-dir pip install":     "--cache-dir pip install",
			"pip uninstall --color pip x": "pip uninstall PYTHON --color pip x",
		}},
		"npm": {[]string{"/bin/sh", bundledFile(t, "node/npm")}, map[string]string{
			"install x":                  "--prefix DIR install x",
			"--loglevel error -q ls":     "--prefix DIR --loglevel error -q ls",
			"--registry http://x i x":    "--prefix DIR --registry http://x i x",
			"--loglevel=error add x":     "--prefix DIR --loglevel=error add x",
			"--userconfig install run x": "--userconfig install run x",
			"-g install x":               "-g install x",
			"run install":                "run install",
		}},
		"pip": {[]string{"/usr/bin/python3", "-c", pip, packages}, map[string]string{
			"install x":                           "install --prefix DIR x",
			"--timeout 60 install --user x":       "--timeout 60 install --prefix DIR x",
			"--log install install x":             "--log install install --prefix DIR x",
			"--cert c -q --cache-dir d install x": "--cert c -q --cache-dir d install --prefix DIR x",
			"--log f install -e .":                "editable",
			"--python v/bin/python install x":     "--python v/bin/python install x",
			"--log install list":                  "--log install list",
			"--log":                               "--log",
		}},
	} {
		for args, want := range c.want {
			want = strings.ReplaceAll(want, "PYTHON", "--python "+filepath.Dir(c.command[len(c.command)-1])+"/python --prefix "+packages)
			want = strings.ReplaceAll(want, "DIR", packages)
			env := append(env, "PYTHONPATH="+bundledFile(t, "python"), "PYTHONDONTWRITEBYTECODE=1")
			if got := runProgram(t, dir, env, append(c.command, strings.Fields(args)...)...); got != want+"\n" {
				t.Errorf("%s %s: %s want %s", name, args, got, want)
			}
		}
	}
}

// TestPipsAtOnce: pips that start at the same time leave each other's temporary directories alone.
func TestPipsAtOnce(t *testing.T) {
	const code = `
import multiprocessing, os, sys
sys.path.insert(0, sys.argv[1])
import sandbox_pip

def install(_):
    for _ in range(100):
        with sandbox_pip.temporary(sys.argv[2]):
            open(os.path.join(sandbox_pip.tempfile.gettempdir(), "file"), "x").close()

os.environ["SANDBOX_PYTHON_PACKAGES"] = sys.argv[2]
os.mkdir(sys.argv[2] + "/.tmp-stale")
with multiprocessing.get_context("fork").Pool(8) as pool:
    pool.map(install, range(8), 1)
print(os.listdir(sys.argv[2]))
`
	packages := t.TempDir()
	if got := runProgram(t, packages, []string{"PYTHONDONTWRITEBYTECODE=1"}, "/usr/bin/python3", "-c", code, bundledFile(t, "python"), packages); got != "[]\n" {
		t.Error(got)
	}
}

// TestNamesOfPackages: a Python that starts compares names as the server does.
func TestNamesOfPackages(t *testing.T) {
	dir := t.TempDir()
	var want []string
	for _, name := range []string{"Zope__x._y", "a_b", "C.d"} {
		info := filepath.Join(dir, name+"-1.0.dist-info")
		if err := os.Mkdir(info, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(info+"/INSTALLER", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		want = append(want, versionrange.NormalizeName(name))
	}
	slices.Sort(want)
	env := []string{"PYTHONPATH=" + bundledFile(t, "python"), "PYTHONDONTWRITEBYTECODE=1"}
	const code = "import sandbox_runner as r, sys; print(*sorted(r.versions(sys.argv[1])))"
	if got := runProgram(t, dir, env, "/usr/bin/python3", "-c", code, dir); got != strings.Join(want, " ")+"\n" {
		t.Errorf("%s want %s", got, want)
	}
}
