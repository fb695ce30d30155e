package runner

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// openDir makes a temporary directory that other users can reach, as wrappers need.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// realEnv is the environment of the test.
func realEnv() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return env
}

// put writes files: path → content. Those in a bin directory can be executed.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if filepath.Base(filepath.Dir(path)) == "bin" {
			mode = 0o755
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
}

func needLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the jail runs on Linux only")
	}
}

func TestDiscoverWrappers(t *testing.T) {
	needLinux(t)
	newHost(t)
	dir, own := openDir(t), openDir(t)
	meta := func(name string) string {
		return fmt.Sprintf(`{"name":%q,"interpreter_type":"python","timeout_seconds":7,"memory_mb":64,"future":true}`, name)
	}
	put(t, dir, map[string]string{
		"ds/metadata.json": meta("data-science"), "ds/bin/run": "", "ds/bin/session-run": "",
		"once/metadata.json": meta("once"), "once/bin/run": "",
		"norun/metadata.json":   meta("norun"),
		"noexec/metadata.json":  meta("noexec"),
		"noexec/lib/run":        "",
		"badjson/metadata.json": "{", "badjson/bin/run": "",
		"badname/metadata.json": meta("../x"), "badname/bin/run": "",
		"noname/metadata.json": `{"interpreter_type":"python"}`, "noname/bin/run": "",
		"notype/metadata.json": `{"name":"notype"}`, "notype/bin/run": "",
		"limits/metadata.json":    `{"name":"limits","interpreter_type":"bash","memory_mb":-1}`,
		"unrelated/README":        "",
		".building/metadata.json": meta("half"), ".building/bin/run": "",
	})
	put(t, own, map[string]string{"shell/metadata.json": meta("shell"), "shell/bin/run": "", "ours/metadata.json": meta("once"), "ours/bin/run": ""})
	store := filepath.Join(openDir(t), "store")
	put(t, store, map[string]string{"metadata.json": meta("linked"), "bin/run": ""})
	if err := os.Symlink(store, filepath.Join(dir, "env-0")); err != nil {
		t.Fatal(err)
	}
	set, problems := Sources{Env: realEnv(), Dir: t.TempDir(), Own: own, Wrappers: []string{dir, filepath.Join(dir, "missing")}}.Discover(t.Context())

	ds, ok := set.Lookup("data-science")
	if !ok || ds.Wrapper != filepath.Join(dir, "ds") || ds.Image != "wrapper:data-science" || ds.TimeoutSeconds != 7 || ds.MemoryMB != 64 ||
		!slices.Equal(ds.Argv, []string{filepath.Join(dir, "ds/bin/run")}) || !slices.Equal(ds.Persistent, []string{filepath.Join(dir, "ds/bin/session-run"), "python"}) {
		t.Errorf("data-science: %+v", ds)
	}
	if once, _ := set.Lookup("once"); once.Wrapper != filepath.Join(own, "ours") || once.Persistent != nil {
		t.Errorf("the runners directory must win, and without session-run there is no state: %+v", once)
	}
	if sh, _ := set.Lookup("shell"); sh.Wrapper == "" {
		t.Errorf("a custom environment must take the bundled one's place: %+v", sh)
	}
	if l, _ := set.Lookup("linked"); l.Wrapper != store {
		t.Errorf("a link must be followed once and for all: %+v", l)
	}
	var skipped []string
	for _, p := range problems {
		if strings.HasPrefix(p.Problem, "skipped: ") && p.Fix != "" {
			skipped = append(skipped, p.Runner)
		}
	}
	slices.Sort(skipped)
	if want := []string{"badjson", "badname", "limits", "noexec", "noname", "norun", "notype"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped with a warning: %q, want %q", skipped, want)
	}
	for _, name := range append(skipped, "half") {
		if _, ok := set.Lookup(name); ok {
			t.Errorf("%s must not be offered", name)
		}
	}
}

// TestWrapperOutOfReach: a server that runs as root starts wrappers as another user, so it skips
// those that only root can reach.
func TestWrapperOutOfReach(t *testing.T) {
	needLinux(t)
	if os.Geteuid() != 0 {
		t.Skip("only a root server starts wrappers as another user")
	}
	dir := openDir(t)
	put(t, dir, map[string]string{"closed/metadata.json": `{"name":"closed","interpreter_type":"bash"}`, "closed/bin/run": ""})
	if err := os.Chmod(filepath.Join(dir, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	list, problems := wrappers(dir)
	if len(list) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Problem, "cannot reach "+filepath.Join(dir, "closed")) {
		t.Errorf("got %+v, %v", list, problems)
	}
}

func TestCustomDefinitions(t *testing.T) {
	needLinux(t)
	h := newHost(t)
	h.python("bin/python3", "3.11.7", true)
	py, err := h.env.probePython(t.Context(), filepath.Join(h.root, "bin/python3"))
	h.installed("python", py, err)
	own := t.TempDir()
	put(t, own, map[string]string{
		"plain/runner.json": `{"base":"python","title":"Plain","env":{"A":"b"},"timeout_seconds":5,"memory_mb":99}`,
		"lib/runner.json":   `{"base":"python","libraries":["six"]}`, "lib/requirements.txt": "six\n",
		"python/runner.json": `{"base":"python"}`, "python/requirements.txt": "six\n",
		"renamed/runner.json": `{"name":"other","base":"python"}`,
		"b1/runner.json":      `{"base":"ruby"}`,
		"b2/runner.json":      `{"base":"python","argv":["/bin/sh"]}`,
		"b3/runner.json":      `{"base":"python","libraries":["os; import evil"]}`,
		"b4/runner.json":      `{"base":"python","env":{"A=B":"c"}}`,
		"b5/runner.json":      `{"base":"python","name":"custom/../../x"}`,
		"b6/runner.json":      `{"base":"python","memory_mb":1}`,
		"b7/runner.json":      `{"base":"python","memory_mb":"1g"}`,
		"b8/runner.json":      `{"base":"python","memory":64}`,
		"b9/runner.json":      `{"base":"python","libraries":["six", 1]}`,
		"b10/runner.json":     `[]`,
	})
	src := Sources{Env: h.env, Dir: h.dir, Own: own}
	set, problems := src.Discover(t.Context())
	plain, _ := set.Lookup("plain")
	bundledPython, _ := set.Lookup("python")
	if plain.Image != "jail:plain" || plain.Env["A"] != "b" || plain.Env["PATH"] == "" || plain.TimeoutSeconds != 5 || plain.MemoryMB != 99 ||
		!slices.Equal(plain.Mounts, bundledPython.Mounts) || len(plain.Persistent) == 0 {
		t.Errorf("a runner without its own files does not use the bundled environment: %+v", plain)
	}
	if _, leaked := bundledPython.Env["A"]; leaked {
		t.Error("a custom runner changed the bundled one")
	}
	if _, ok := set.Lookup("other"); !ok {
		t.Error("name must win over the directory's")
	}
	if _, ok := set.Lookup("lib"); ok {
		t.Error("a runner whose requirements are not installed must not be offered")
	}
	says := map[string]string{"b1": "base", "b2": "argv", "b3": "not a valid module name", "b4": "not a valid variable name", "b5": "not a valid name", "b6": "memory_mb",
		"b7": "memory_mb must be a whole number", "b8": `"memory" is unknown; known fields: name, title, base,`, "b9": "libraries must be a list of strings",
		"b10": "it must be an object", "lib": "not installed", "python": "not installed"}
	for _, p := range problems {
		if want := says[p.Runner]; want != "" && strings.Contains(p.Problem, want) && p.Fix != "" {
			delete(says, p.Runner)
		}
	}
	if len(says) != 0 {
		t.Errorf("no problem is reported for %v in %v", says, problems)
	}

	// As if installed.
	list, _ := customs(own)
	for _, c := range list {
		if c.has("requirements.txt") {
			dir := filepath.Join(customDir(h.dir), c.envName("python"))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			hash, err := c.hash(python)
			if err != nil {
				t.Fatal(err)
			}
			if err := (stamp{Lock: hash, Complete: true, Interpreter: py}).write(dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	set, _ = src.Discover(t.Context())
	for _, name := range []string{"lib", "python"} {
		r, _ := set.Lookup(name)
		if len(r.Mounts) == 0 || r.Mounts[0].Source != filepath.Join(customDir(h.dir), name+".python") || r.Mounts[0].Target != "/opt/runners/python" {
			t.Errorf("%s: the environment must take the bundled one's place: %+v", name, r.Mounts)
		}
	}
	put(t, own, map[string]string{"lib/requirements.txt": "six==1.16.0\n"})
	_, problems = src.Discover(t.Context())
	if !slices.ContainsFunc(problems, func(p Problem) bool { return p.Runner == "lib" && strings.Contains(p.Problem, "has changed") }) {
		t.Errorf("changed requirements must be reported: %v", problems)
	}
}

// TestInstallOwnTriesLibraries: InstallOwn also imports libraries of an environment that runners
// share.
func TestInstallOwnTriesLibraries(t *testing.T) {
	needLinux(t)
	dir, own := t.TempDir(), t.TempDir()
	src := Sources{Env: realEnv(), Dir: dir, Own: own}
	put(t, own, map[string]string{
		"good/runner.json": `{"base":"python","libraries":["json","email.message"]}`,
		"bad/runner.json":  `{"base":"python","libraries":["nosuchlib"]}`,
	})
	problems := src.InstallOwn(t.Context(), func(string, ...any) {})
	if len(problems) != 1 || problems[0].Runner != "bad" || !strings.Contains(problems[0].Problem, "nosuchlib") || !strings.Contains(problems[0].Fix, "requirements.txt") {
		t.Errorf("%v", problems)
	}
	node := os.Getenv("SANDBOX_TEST_RUNNERS")
	if node == "" {
		return
	}
	if err := os.Symlink(filepath.Join(node, "node"), filepath.Join(dir, "node")); err != nil {
		t.Fatal(err)
	}
	put(t, own, map[string]string{
		"bad/runner.json":  `{"base":"node","libraries":["no-such-lib"]}`,
		"good/runner.json": `{"base":"node","libraries":["papaparse","fs"]}`,
	})
	problems = src.InstallOwn(t.Context(), func(string, ...any) {})
	if len(problems) != 1 || problems[0].Runner != "bad" {
		t.Errorf("%v", problems)
	}
}

// TestInstallOwn installs one small pure package from the index, and only once.
func TestInstallOwn(t *testing.T) {
	needLinux(t)
	dir, own := t.TempDir(), t.TempDir()
	src := Sources{Env: realEnv(), Dir: dir, Own: own}
	put(t, own, map[string]string{"tiny/runner.json": `{"base":"python","libraries":["six"]}`, "tiny/requirements.txt": "six==1.16.0\n"})
	var said []string
	progress := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	if problems := src.InstallOwn(t.Context(), progress); len(problems) > 0 {
		for _, sign := range []string{"onnection", "Could not find a version", "timed out", "can make environments"} {
			if strings.Contains(problems[0].Problem, sign) && os.Getenv("REQUIRE_ALL") != "1" {
				t.Skipf("the package index cannot be used here: %v", problems)
			}
		}
		t.Fatal(problems)
	}
	set, _ := src.Discover(t.Context())
	if r, ok := set.Lookup("tiny"); !ok || !slices.Equal(r.Libraries, []string{"six"}) {
		t.Errorf("tiny: %+v", r)
	}
	if left, _ := filepath.Glob(filepath.Join(customDir(dir), stagingPrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	said = nil
	if problems := src.InstallOwn(t.Context(), progress); len(problems) > 0 || len(said) > 0 {
		t.Errorf("a second time: %v, %q", problems, said)
	}

	put(t, own, map[string]string{"tiny/runner.json": `{"base":"python","libraries":["six_is_not_this"]}`, "tiny/requirements.txt": "six==1.16.0 \n"})
	problems := src.InstallOwn(t.Context(), progress)
	if len(problems) != 1 || !strings.Contains(problems[0].Problem, "six_is_not_this") {
		t.Errorf("a library that cannot be imported: %v", problems)
	}
	if set, _ := src.Discover(t.Context()); len(set.Names()) == 0 || !slices.Contains(set.Names(), "tiny") {
		t.Errorf("a failed installation must leave the old one in use: %q", set.Names())
	}
}
