package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/runners"
)

func TestDefinitions(t *testing.T) {
	defs, err := definitions(runners.Files, runners.Names())
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, d := range defs {
		if d.Name != runners.Names()[i] {
			t.Errorf("definition %d is called %q, its directory %q", i, d.Name, runners.Names()[i])
		}
		for _, n := range append([]string{d.Name}, d.Aliases...) {
			if seen[n] {
				t.Errorf("two runners answer to %q", n)
			}
			seen[n] = true
		}
		if !slices.Contains(d.Argv, "{file}") || d.File == "" || d.Title == "" {
			t.Errorf("%s: incomplete: %+v", d.Name, d)
		}
	}
	for _, alias := range []string{"py", "python3", "ts", "js", "node", "sh", "bash"} {
		if !seen[alias] {
			t.Errorf("no runner answers to %q", alias)
		}
	}
	for env, lock := range map[string]string{"python": "python/requirements.lock", "node": "node/package-lock.json", "nodejs": "nodejs/package-lock.json"} {
		b, err := runners.Files.ReadFile(lock)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"--index-url", "--extra-index-url", "--find-links", `"resolved"`, "https://registry"} {
			if strings.Contains(string(b), word) {
				t.Errorf("the lock of %s names a package index (%s)", env, word)
			}
		}
	}
}

// TestNeeded: sandboxes mount an installation, never a home directory.
func TestNeeded(t *testing.T) {
	env := environ{"HOME": "/srv/people/ann"}
	for _, c := range []struct {
		name, prefix string
		parts        []string
		want         []string
	}{
		{"system", "/usr", []string{"/usr/lib/python3.11", "/usr/bin/python3.11"}, nil},
		{"usr local", "/usr/local", []string{"/usr/local/bin/node"}, nil},
		{"pyenv", "/root/.pyenv/versions/3.11.7", []string{"/root/.pyenv/versions/3.11.7/bin/python3.11"}, []string{"/root/.pyenv/versions/3.11.7"}},
		{"nvm", "/srv/people/ann/.nvm/versions/node/v20.1.0", []string{"/srv/people/ann/.nvm/versions/node/v20.1.0/bin/node"}, []string{"/srv/people/ann/.nvm/versions/node/v20.1.0"}},
		{"library elsewhere", "/opt/py", []string{"/opt/py/bin/python3", "/srv/lib/libpython3.11.so"}, []string{"/opt/py", "/srv/lib/libpython3.11.so"}},
		{"home as prefix", "/srv/people/ann", []string{"/srv/people/ann/lib/python3.11", "/srv/people/ann/bin/python3.11"}, []string{"/srv/people/ann/lib/python3.11", "/srv/people/ann/bin/python3.11"}},
		{"above home", "/srv/people", []string{"/srv/people/bin/node"}, []string{"/srv/people/bin/node"}},
		{"another's home", "/home/bob", []string{"/home/bob/bin/node"}, []string{"/home/bob/bin/node"}},
		{".local", "/home/bob/.local", []string{"/home/bob/.local/bin/node"}, []string{"/home/bob/.local/bin/node"}},
		{"root", "/", []string{"/node"}, []string{"/node"}},
		{"opt", "/opt", []string{"/opt/bin/node"}, []string{"/opt/bin/node"}},
		{"nix", "/nix/store/abc-python", []string{"/nix/store/abc-python/bin/python3"}, []string{"/nix/store"}},
	} {
		if got := env.needed(c.prefix, c.parts...); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// host is a fake machine with an empty PATH, an empty home and a directory of environments.
type host struct {
	t    *testing.T
	root string
	dir  string
	env  environ
}

func (h *host) sources() Sources { return Sources{Env: h.env, Dir: h.dir} }

func newHost(t *testing.T) *host {
	h := &host{t: t, root: t.TempDir()}
	h.dir = filepath.Join(h.root, "runners")
	for _, d := range []string{"bin", "home", "runners/python", "runners/node"} {
		if err := os.MkdirAll(filepath.Join(h.root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.env = environ{"PATH": filepath.Join(h.root, "bin"), "HOME": filepath.Join(h.root, "home")}
	return h
}

// python writes a program that answers the probe like a Python with its own prefix.
func (h *host) python(path, version string, venv bool) string {
	prefix := filepath.Dir(filepath.Dir(path))
	return h.script(path, fmt.Sprintf(`echo '{"version":%q,"path":%q,"prefix":%q,"parts":[],"library":"","venv":%v}'`,
		version, filepath.Join(h.root, path), filepath.Join(h.root, prefix), venv))
}

func (h *host) node(path, version string) string {
	return h.script(path, fmt.Sprintf("echo %s; echo %s", version, filepath.Join(h.root, path)))
}

func (h *host) script(path, body string) string {
	h.t.Helper()
	path = filepath.Join(h.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	return path
}

// installed writes the stamp of a completed Install.
func (h *host) installed(env string, in interpreter, err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
	hash, err := lockHash(runners.Files, env)
	if err != nil {
		h.t.Fatal(err)
	}
	if err := (stamp{Lock: hash, Complete: true, Interpreter: in}).write(filepath.Join(h.dir, env)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) installedPython(exe string) {
	in, err := h.env.probePython(h.t.Context(), exe)
	h.installed("python", in, err)
}

func (h *host) installedNode(exe string) {
	in, err := h.env.probeNode(h.t.Context(), exe)
	h.installed("node", in, err)
}

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		name     string
		prepare  func(h *host)
		names    []string
		problems []string // a word of each
		check    func(t *testing.T, h *host, s Set)
	}{
		{
			name:     "nothing but bash",
			prepare:  func(h *host) {},
			names:    []string{"shell"},
			problems: []string{"no Python 3.10", "no Node.js 20.12"},
		},
		{
			name: "all installed",
			prepare: func(h *host) {
				h.installedPython(h.python("py/bin/python3", "3.11.7", true))
				h.installedNode(h.node("nv/bin/node", "20.20.2"))
				// Interpreters must not be started: these would now fail.
				for _, exe := range []string{"py/bin/python3", "nv/bin/node"} {
					path := filepath.Join(h.root, exe)
					fi, err := os.Stat(path)
					if err != nil {
						h.t.Fatal(err)
					}
					h.script(exe, "exit 1;"+strings.Repeat("#", int(fi.Size())-len("#!/bin/sh\nexit 1;\n")))
					if err := os.Chtimes(path, fi.ModTime(), fi.ModTime()); err != nil {
						h.t.Fatal(err)
					}
				}
			},
			names: []string{"python", "typescript", "javascript", "shell"},
			check: func(t *testing.T, h *host, s Set) {
				py, _ := s.Lookup("python")
				want := []sandbox.Mount{
					{Source: h.dir + "/python", Target: "/opt/runners/python"},
					{Source: h.root + "/py", Target: h.root + "/py"},
				}
				if !slices.Equal(py.Mounts, want) {
					t.Errorf("python mounts %v, want %v", py.Mounts, want)
				}
				if got := py.Argv; !slices.Equal(got, []string{"/opt/runners/python/bin/python", "{file}"}) {
					t.Errorf("python argv %q", got)
				}
				if py.Version != "Python 3.11.7" || py.Image != "jail:python" || !slices.Contains(py.Libraries, "pandas") {
					t.Errorf("python is %+v", py)
				}
				js, ok := s.Lookup("node")
				if !ok || js.Name != "javascript" || js.Argv[0] != h.root+"/nv/bin/node" {
					t.Errorf("alias node: %+v", js)
				}
				if got, want := js.Env["PATH"], h.root+"/nv/bin:/usr/local/bin:/usr/bin:/bin"; got != want {
					t.Errorf("javascript PATH %q, want %q", got, want)
				}
				sh, _ := s.Lookup("bash")
				if len(sh.Mounts) != 4 || !strings.HasPrefix(sh.Env["PATH"], "/opt/runners/python/bin:") {
					t.Errorf("the shell has not what is installed: %+v", sh)
				}
				for _, r := range s {
					for _, word := range append(slices.Clone(r.Argv), r.Env["PATH"]) {
						if strings.Contains(strings.ReplaceAll(word, "{file}", ""), "{") {
							t.Errorf("%s: a placeholder is left in %q", r.Name, word)
						}
					}
				}
			},
		},
		{
			name:     "python without libraries",
			prepare:  func(h *host) { h.python("bin/python3", "3.12.1", true) },
			names:    []string{"python", "shell"},
			problems: []string{"runs without them", "no Node.js"},
			check: func(t *testing.T, h *host, s Set) {
				if len(s[0].Libraries) != 0 {
					t.Errorf("libraries %q are listed and not installed", s[0].Libraries)
				}
			},
		},
		{
			name: "first python too old, second right",
			prepare: func(h *host) {
				h.python("bin/python3", "3.9.2", true)
				h.python("home/.pyenv/versions/3.9.18/bin/python3", "3.9.18", true)
				h.python("home/.pyenv/versions/3.10.13/bin/python3", "3.10.13", true)
			},
			names:    []string{"python", "shell"},
			problems: []string{"runs without them", "no Node.js"},
			check: func(t *testing.T, h *host, s Set) {
				if s[0].Version != "Python 3.10.13" {
					t.Errorf("chose %s", s[0].Version)
				}
			},
		},
		{
			name: "interpreter of the environment gone",
			prepare: func(h *host) {
				h.installedPython(h.python("py/bin/python3", "3.11.7", true))
				h.installedNode(h.node("nv/bin/node", "20.20.2"))
				os.RemoveAll(h.root + "/py")
				os.RemoveAll(h.root + "/nv")
			},
			names:    []string{"shell"},
			problems: []string{"no Python", "is gone"},
		},
		{
			name: "interpreter updated within its minor version",
			prepare: func(h *host) {
				h.installedPython(h.python("py/bin/python3", "3.11.7", true))
				h.python("py/bin/python3", "3.11.10", true)
			},
			names:    []string{"python", "shell"},
			problems: []string{"no Node.js"},
			check: func(t *testing.T, h *host, s Set) {
				if s[0].Version != "Python 3.11.10" || len(s[0].Libraries) == 0 {
					t.Errorf("got %s with %q", s[0].Version, s[0].Libraries)
				}
			},
		},
		{
			name: "interpreter replaced by another minor version",
			prepare: func(h *host) {
				h.installedPython(h.python("bin/python3", "3.11.7", true))
				h.python("bin/python3", "3.12.10", true)
			},
			names:    []string{"python", "shell"},
			problems: []string{"runs without them", "no Node.js"},
			check: func(t *testing.T, h *host, s Set) {
				if s[0].Argv[0] != h.root+"/bin/python3" {
					t.Errorf("an environment for another version is used: %q", s[0].Argv)
				}
			},
		},
		{
			name: "lock of another version",
			prepare: func(h *host) {
				in, err := h.env.probeNode(h.t.Context(), h.node("nv/bin/node", "22.1.0"))
				if err != nil {
					h.t.Fatal(err)
				}
				if err := (stamp{Lock: "old", Complete: true, Interpreter: in}).write(h.dir + "/node"); err != nil {
					h.t.Fatal(err)
				}
			},
			names:    []string{"typescript", "javascript", "shell"},
			problems: []string{"no Python", "not the ones of this version"},
		},
		{
			name: "launcher without libraries",
			prepare: func(h *host) {
				in, err := h.env.probeNode(h.t.Context(), h.node("nv/bin/node", "22.1.0"))
				if err != nil {
					h.t.Fatal(err)
				}
				if err := (stamp{Interpreter: in}).write(h.dir + "/node"); err != nil {
					h.t.Fatal(err)
				}
			},
			names:    []string{"javascript", "shell"},
			problems: []string{"no Python", "TypeScript not at all"},
		},
		{
			name:     "node too old",
			prepare:  func(h *host) { h.node("bin/node", "18.20.4") },
			names:    []string{"shell"},
			problems: []string{"no Python", "there is 18.20.4"},
		},
		{
			name: "garbage in a stamp",
			prepare: func(h *host) {
				if err := os.WriteFile(h.dir+"/python/"+stampName, []byte(`{"complete":true,`), 0o644); err != nil {
					h.t.Fatal(err)
				}
			},
			names:    []string{"shell"},
			problems: []string{"no Python", "no Node.js"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t)
			c.prepare(h)
			set, problems := h.sources().Discover(t.Context())
			if got := set.Names(); !slices.Equal(got, c.names) {
				t.Errorf("runners %q, want %q", got, c.names)
			}
			if len(problems) != len(c.problems) {
				t.Fatalf("problems %v, want %d", problems, len(c.problems))
			}
			for i, p := range problems {
				if !strings.Contains(p.Problem, c.problems[i]) || p.Fix == "" {
					t.Errorf("problem %q, want one with %q and a fix", p, c.problems[i])
				}
			}
			if c.check != nil && !t.Failed() {
				c.check(t, h, set)
			}
		})
	}
}

// TestInstallFailure: an installation that fails names the fix and changes nothing.
func TestInstallFailure(t *testing.T) {
	h := newHost(t)
	h.python("bin/python3", "3.12.1", false)
	h.node("bin/node", "20.20.2")
	h.script("bin/npm", "echo 'npm error code E503' >&2; echo 'npm error syscall getaddrinfo' >&2; echo 'npm error 503 Service Unavailable' >&2; exit 1")
	var steps []string
	problems := h.sources().Install(t.Context(), func(f string, a ...any) { steps = append(steps, fmt.Sprintf(f, a...)) })
	if len(problems) != 2 || !strings.Contains(problems[0].Fix, "python3-venv") || !strings.Contains(problems[1].Problem, "503 Service Unavailable") {
		t.Errorf("problems: %v", problems)
	}
	if len(steps) == 0 {
		t.Error("no progress was reported")
	}
	if left, _ := filepath.Glob(h.dir + "/" + stagingPrefix + "*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	set, _ := h.sources().Discover(t.Context())
	if got := set.Names(); !slices.Equal(got, []string{"python", "javascript", "shell"}) {
		t.Errorf("the rest is not served: %q", got)
	}

	// A good environment survives a failing update.
	in, err := h.env.probeNode(t.Context(), filepath.Join(h.root, "bin/node"))
	if err != nil {
		t.Fatal(err)
	}
	if err := (stamp{Lock: "old", Complete: true, Interpreter: in}).write(h.dir + "/node"); err != nil {
		t.Fatal(err)
	}
	h.sources().Install(t.Context(), func(string, ...any) {})
	if s, err := readStamp(h.dir + "/node"); err != nil || s.Lock != "old" {
		t.Errorf("the older environment is gone: %+v, %v", s, err)
	}
}

func TestInstallCancelled(t *testing.T) {
	h := newHost(t)
	h.python("bin/python3", "3.12.1", true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.sources().Install(ctx, func(string, ...any) {})
	if left, _ := filepath.Glob(h.dir + "/" + stagingPrefix + "*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestLookup(t *testing.T) {
	set := Set{
		{Definition: Definition{Name: "python", Aliases: []string{"py", "mine"}}},
		{Definition: Definition{Name: "Mine", Aliases: []string{"PY"}}},
	}
	for given, want := range map[string]string{
		"python": "python", "Python": "python", "PYTHON": "python", "py": "python", "Py": "python", "PY": "Mine", "mine": "python", "MINE": "Mine", "": "", "pyth": "",
	} {
		if r, ok := set.Lookup(given); r.Name != want || ok != (want != "") {
			t.Errorf("%q: %q, want %q", given, r.Name, want)
		}
	}
}
