package packages

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// environ returns this process's environment by name.
func environ() map[string]string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return env
}

// startReal starts a mirror of the indexes that this host's clients use, on loopback.
func startReal(t *testing.T, minAge time.Duration) (m *Mirror, run func(name string, args ...string) (string, error)) {
	t.Helper()
	cfg := Config{Kinds: map[string]Kind{}, MinAge: minAge, WheelsOnly: true, CacheDir: t.TempDir()}
	host := Host{Env: environ(), ReadFile: os.ReadFile}
	for kind, client := range map[string]string{PyPI: "pip", NPM: "npm"} {
		if _, err := exec.LookPath(client); err != nil {
			continue
		}
		list, _, err := host.Indexes(t.Context(), kind)
		if err != nil {
			lacks(t, "this host's client names no index")
		}
		cfg.Kinds[kind] = Kind{Indexes: list}
	}
	front := httptest.NewUnstartedServer(nil)
	cfg.Base = "http://" + front.Listener.Addr().String() + "/packages"
	m = start(t, cfg)
	if err := m.Check(t.Context()); err != nil {
		lacks(t, "this host cannot reach its indexes")
	}
	front.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.ServeSandbox(w, r, "box") })
	front.Start()
	t.Cleanup(front.Close)
	env := m.Grant("caller", "run", "box")
	dir := t.TempDir()
	return m, func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "PYENV_ROOT=" + os.Getenv("PYENV_ROOT"), "npm_config_cache=" + filepath.Join(dir, ".npm")}
		for name, value := range env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// python returns a Python with pip.
func python(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("SANDBOX_TEST_PYTHON"), "python3"} {
		if name != "" && exec.Command(name, "-m", "pip", "--version").Run() == nil {
			return name
		}
	}
	lacks(t, "no Python with pip")
	return ""
}

// TestRealPip installs packages with dependencies from the index that this host uses.
func TestRealPip(t *testing.T) {
	m, run := startReal(t, DefaultMinAge)
	if m.kinds[PyPI] == nil {
		lacks(t, "no pip")
	}
	py := python(t)
	if out, err := run(py, "-m", "pip", "install", "--no-cache-dir", "--target", "site", "requests==2.32.3", "six"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := run(py, "-I", "-c", "import sys; sys.path.insert(0, 'site'); import six, requests; print(requests.__version__)"); err != nil || out != "2.32.3\n" {
		t.Errorf("%v %s", err, out)
	}
	if problems := m.Release("run"); len(problems) != 0 {
		t.Errorf("problems: %+v", problems)
	}
	if n, bytes, err := Usage(m.cfg.CacheDir); n < 6 || bytes == 0 || err != nil {
		t.Errorf("cache: %d files, %d bytes, %v", n, bytes, err)
	}
}

// TestRealPipExplains: pip says only that nothing matches. The mirror says why.
func TestRealPipExplains(t *testing.T) {
	m, run := startReal(t, 100*365*24*time.Hour)
	if m.kinds[PyPI] == nil {
		lacks(t, "no pip")
	}
	if out, err := run(python(t), "-m", "pip", "install", "--no-cache-dir", "--target", "site", "six"); err == nil {
		t.Errorf("pip installed a package that is too new:\n%s", out)
	}
	if p := problem(t, m); p.Code != CodeTooNew || p.Package != "six" || !strings.Contains(p.Message, "was released on") {
		t.Errorf("%+v", p)
	}
}

// TestRealNPM installs packages from the registry that this host uses.
func TestRealNPM(t *testing.T) {
	m, run := startReal(t, DefaultMinAge)
	if m.kinds[NPM] == nil {
		lacks(t, "no npm")
	}
	if out, err := run("npm", "install", "--prefix", ".", "is-number@7.0.0", "@sindresorhus/is"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := run("grep", "-c", "127.0.0.1", "package-lock.json"); out != "0\n" { // others install from the lock, too
		t.Errorf("%v %s", err, out)
	}
	if out, err := run("npm", "ci"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run("node", "-e", "console.log(require('is-number')('7'))"); err != nil || out != "true\n" {
		t.Errorf("%v %s", err, out)
	}
	if problems := m.Release("run"); len(problems) != 0 {
		t.Errorf("problems: %+v", problems)
	}
}

// TestRealOtherClients installs uv, pnpm and yarn from the mirror, and packages with them.
func TestRealOtherClients(t *testing.T) {
	if testing.Short() {
		t.Skip("it downloads 40 MB")
	}
	m, run := startReal(t, DefaultMinAge)
	must := func(name string, args ...string) {
		t.Helper()
		if out, err := run(name, args...); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	if m.kinds[PyPI] != nil {
		py := python(t)
		must(py, "-m", "pip", "install", "--no-cache-dir", "--target", "tools", "uv")
		must("tools/bin/uv", "pip", "install", "--no-cache", "--python", py, "--target", "site", "six", "idna")
		must(py, "-I", "-c", "import sys; sys.path.insert(0, 'site'); import six, idna")
	}
	if m.kinds[NPM] != nil {
		must("npm", "install", "--prefix", "clients", "pnpm@9", "yarn@1")
		must("npm", "install", "--prefix", "berry", "@yarnpkg/cli-dist@4")
		must("sh", "-c", "mkdir p y b && echo '{}' > p/package.json && echo '{}' > y/package.json && echo '{}' > b/package.json && touch b/yarn.lock")
		must("sh", "-c", "cd p && ../clients/node_modules/.bin/pnpm add is-odd@3.0.1 && node -e 'require(\"is-odd\")'")
		must("sh", "-c", "cd y && ../clients/node_modules/.bin/yarn add is-odd@3.0.1 && node -e 'require(\"is-odd\")'")
		must("sh", "-c", "cd b && YARN_NODE_LINKER=node-modules node ../berry/node_modules/@yarnpkg/cli-dist/bin/yarn.js add is-odd@3.0.1 && node -e 'require(\"is-odd\")'")
	}
	if problems := m.Release("run"); len(problems) != 0 {
		t.Errorf("problems: %+v", problems)
	}
}

// lacks skips a test for want of something on this host. With REQUIRE_ALL=1 it fails instead.
func lacks(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("REQUIRE_ALL") == "1" {
		t.Fatal("REQUIRE_ALL=1: " + why)
	}
	t.Skip(why)
}
