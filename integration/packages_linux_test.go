package integration

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// packagesResult is what a run's result says about packages.
type packagesResult struct {
	runResult
	Installed      []struct{ Name, Version string }
	Notice         string
	Error, Message string
}

func (r packagesResult) installed() string {
	var names []string
	for _, p := range r.Installed {
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// install runs code that installs packages, before it or by itself.
func (s *server) install(t *testing.T, session, language, code string, packages ...string) (r packagesResult) {
	t.Helper()
	args := map[string]any{"conversationId": session, "language": language, "code": code, "timeout_seconds": 300}
	if len(packages) > 0 {
		args["packages"] = packages
	}
	res := s.call(t, "run_code", args)
	if res.Error != nil || len(res.Content) != 1 {
		t.Fatalf("%+v", res)
	}
	if err := json.Unmarshal([]byte(res.Content[0].Text), &r); err != nil {
		t.Fatalf("%v in %s", err, res.Content[0].Text)
	}
	return r
}

// TestPackages: code without a network installs packages from the indexes that this host's pip and
// npm use, in every way, and a session keeps them.
func TestPackages(t *testing.T) {
	s := serve(t, "SANDBOX_PACKAGES=pypi,npm")

	missing := s.install(t, "p", "python", "import inflection")
	if !strings.Contains(missing.Hint, `packages: ["inflection"]`) {
		t.Errorf("a missing module: %+v", missing)
	}
	for _, tt := range []struct{ name, language, code, packages, want, installed string }{
		{"argument", "python", "import inflection\nprint(inflection.pluralize('box'))", "inflection", "boxes", "inflection"},
		{"again", "python", "import inflection\nprint(inflection.pluralize('fox'))", "inflection", "foxes", ""},
		{"header", "python", "# /// script\n# dependencies = ['roman']\n# ///\nimport roman\nprint(roman.toRoman(9))", "", "IX", "roman"},
		{"program", "python", "import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'pip', 'install', '-q', 'unidecode'], check=True)\nimport unidecode\nprint(unidecode.unidecode('é'))",
			"", "e\n", "unidecode"},
		{"shell", "shell", "pip install -q titlecase && python -c 'import titlecase; print(titlecase.titlecase(\"a tale\"))'", "", "A Tale", "titlecase"},
		{"replaced", "python", "import requests\nprint(requests.__version__)", "requests==2.31.0", "2.31.0", "requests"},
		{"npm", "typescript", "import isOdd from 'is-odd';\nconsole.log('odd:', isOdd(3));", "is-odd", "odd: true", "is-buffer is-number is-odd kind-of"},
		{"npm again", "javascript", "const isOdd = require('is-odd');\nconsole.log('odd:', isOdd(4));", "", "odd: false", ""},
	} {
		if onDocker() && tt.language == "shell" {
			continue // its image has no pip
		}
		var packages []string
		if tt.packages != "" {
			packages = []string{tt.packages}
		}
		r := s.install(t, "p", tt.language, tt.code, packages...)
		installed := r.installed()
		if tt.name == "npm" && strings.Contains(installed, "is-odd") {
			installed = tt.installed // with the dependencies that its version has
		}
		if !r.Success || !strings.Contains(r.Output, tt.want) || installed != tt.installed || len(r.Files) > 0 {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if tt.name == "replaced" && !strings.Contains(r.Notice, "requests 2.31.0") {
			t.Errorf("%s: the notice is %q", tt.name, r.Notice)
		}
	}
	if r := s.install(t, "p", "python", "1", "no-such-package-of-this-test"); r.Error != "package_not_found" || !strings.Contains(r.Message, "The index has no package no-such-package-of-this-test.") {
		t.Errorf("a package that does not exist: %+v", r)
	}
	// The zygote has imported pip, which leaves no trace in how code logs. On docker, the first run
	// of a session may have no zygote.
	if r := s.install(t, "other", "python", "import logging, pandas, sys\nprint('pip._internal.commands.install' in sys.modules, logging.getLoggerClass() is logging.Logger)"); r.Output != "True True\n" && !(onDocker() && r.Output == "False True\n") {
		t.Errorf("pip in a program that does not install: %+v", r)
	}
	if r := s.install(t, "other", "python", "import inflection"); r.Success {
		t.Errorf("another session has the package: %+v", r)
	}
	cell := s.call(t, "run", map[string]any{"session": "c", "env": "python", "code": "%pip install -q inflection\nimport inflection\ninflection.pluralize('ox')"})
	if len(cell.Content) == 0 || !strings.Contains(cell.Content[0].Text, "oxen") {
		t.Errorf("a cell: %+v", cell)
	}
	// A cell that comes after one that installs waits for it.
	first := s.state(t, "run", map[string]any{"session": "q", "env": "python", "background": true, "packages": []string{"inflection"}, "code": "kept = 1"})
	next := s.call(t, "run", map[string]any{"session": "q", "env": "python", "code": "import inflection\nprint(kept + 1)"})
	if len(next.Content) == 0 || !strings.Contains(next.Content[0].Text, `"stdout": "2\n"`) || strings.Contains(next.Content[0].Text, "installed") {
		t.Errorf("the cell after %s: %+v", first.RunID, next)
	}
	// A newer pip in the session does not replace the one that knows the sandbox.
	if r := s.install(t, "p", "shell", "pip install -q -U pip && pip install -q roman && python -m pip --version"); !onDocker() && (!r.Success || !strings.Contains(r.Output, "/opt/runners/")) {
		t.Errorf("a newer pip: %+v", r)
	}
	begun := s.state(t, "run_code", map[string]any{"conversationId": "b", "language": "python", "background": true,
		"packages": []string{"inflection"}, "code": "import inflection\nprint(inflection.pluralize('mouse'))"})
	eventually(t, 2*time.Minute, "a background run", func() bool {
		res := s.call(t, "wait_run", map[string]any{"run_id": begun.RunID, "timeout_seconds": 5})
		return len(res.Content) == 1 && strings.Contains(res.Content[0].Text, "mice")
	})

	s.stop(t)
	s = serve(t, "SANDBOX_PACKAGES=pypi,npm", "SANDBOX_ROOT="+s.Root)
	if r := s.install(t, "p", "python", "import inflection, requests\nprint(requests.__version__, open('/data/.packages/python/lock.txt').read())"); !r.Success ||
		!strings.Contains(r.Output, "2.31.0 inflection==") || r.installed() != "" {
		t.Errorf("after a restart: %+v", r)
	}
}

// reach covers, in a mount namespace of its own, each directory at the top that only its owner may
// enter, and mounts there the paths before "--" again. Then it runs what follows. $0 is an empty
// directory.
const reach = `set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$0"
while [ "$1" != -- ]; do
	top=/$(echo "$1" | cut -d/ -f2)
	if [ $(($(stat -c 0%a "$top") & 1)) = 0 ]; then
		mkdir -p "$0$1"
		mount --rbind "$1" "$0$1"
	fi
	shift
done
for top in "$0"/*; do
	[ ! -d "$top" ] || mount --rbind "$top" "/${top##*/}"
done
shift
exec "$@"`

// TestPackagesOfUser: an ordinary user's server installs packages, too.
func TestPackagesOfUser(t *testing.T) {
	home, _ := ordinaryRoot(t)
	u := newUser(t, home, sandboxtest.UserRange)
	if err := os.Mkdir(filepath.Join(home, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chown(filepath.Join(home, "data"), ordinaryUser, ordinaryUser), os.Symlink(runners, filepath.Join(home, "data", "runners"))); err != nil {
		t.Fatal(err)
	}
	needed := []string{runners}
	for _, program := range []string{filepath.Join(runners, "python", "bin", "python"), "node"} {
		path, err := exec.LookPath(program)
		if err == nil {
			path, err = filepath.EvalSymlinks(path)
		}
		if err != nil {
			t.Fatal(err)
		}
		if prefix := filepath.Dir(filepath.Dir(path)); prefix != "/usr" {
			needed = append(needed, prefix)
		}
	}
	s := serveWith(t, func(cmd *exec.Cmd) {
		u.path += ":" + os.Getenv("PATH")
		u.become(cmd)
		cmd.Args = slices.Concat([]string{"unshare", "--mount", "sh", "-c", reach, t.TempDir()}, needed, []string{"--"}, cmd.Args)
	}, "SANDBOX_ROOT="+filepath.Join(home, "data"), "SANDBOX_PACKAGES=pypi,npm")
	for _, tt := range []struct{ language, code, packages, want string }{
		{"python", "import inflection\nprint(inflection.pluralize('box'))", "inflection", "boxes"},
		{"typescript", "import isOdd from 'is-odd';\nconsole.log('odd:', isOdd(3));", "is-odd", "odd: true"},
		{"shell", "pip install -q titlecase && python -c 'import titlecase; print(titlecase.titlecase(\"a tale\"))'", "", "A Tale"},
	} {
		var packages []string
		if tt.packages != "" {
			packages = []string{tt.packages}
		}
		if r := s.install(t, "p", tt.language, tt.code, packages...); !r.Success || !strings.Contains(r.Output, tt.want) || len(r.Files) > 0 {
			t.Errorf("%s: %+v", tt.language, r)
		}
	}
	cell := s.call(t, "run", map[string]any{"session": "c", "env": "python", "code": "%pip install -q inflection\nimport inflection\ninflection.pluralize('ox')"})
	if len(cell.Content) == 0 || !strings.Contains(cell.Content[0].Text, "oxen") {
		t.Errorf("a cell: %+v", cell)
	}
}

// TestPackagesOnPodman: packages install in Podman's containers. The images are copies of Docker's.
func TestPackagesOnPodman(t *testing.T) {
	host := os.Getenv(envPodman)
	if host == "" {
		skip(t, "%s is not set: there is no Podman to test with (see scripts/engine)", envPodman)
	}
	podman, err := client.New(client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { podman.Close() })
	docker, ids := needEngine(t), []string(nil)
	for _, name := range []string{"runner-python", "runner-typescript"} {
		image, err := docker.ImageInspect(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, image.ID)
	}
	saved, err := docker.ImageSave(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	loaded, err := podman.ImageLoad(t.Context(), saved)
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	for _, id := range ids {
		t.Cleanup(func() {
			_, _ = podman.ImageRemove(context.Background(), id, client.ImageRemoveOptions{Force: true, PruneChildren: true})
		})
	}
	if said, err := io.ReadAll(loaded); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	s := serveDocker(t, "DOCKER_HOST="+host, "SANDBOX_IMAGES="+strings.Join(ids, ","), "SANDBOX_PACKAGES=pypi,npm")
	for _, tt := range []struct{ language, code, packages, want string }{
		{"python", "import inflection\nprint(inflection.pluralize('box'))", "inflection", "boxes"},
		{"typescript", "import isOdd from 'is-odd';\nconsole.log('odd:', isOdd(3));", "is-odd", "odd: true"},
	} {
		if r := s.install(t, "p", tt.language, tt.code, tt.packages); !r.Success || !strings.Contains(r.Output, tt.want) || !strings.Contains(r.installed(), tt.packages) {
			t.Errorf("%s: %+v", tt.language, r)
		}
	}
}

// TestPackagesOff: the hint names the setting.
func TestPackagesOff(t *testing.T) {
	s := serve(t)
	if r := s.run(t, "p", "python", "import inflection"); !strings.Contains(r.Hint, "SANDBOX_PACKAGES=pypi") {
		t.Errorf("%+v", r)
	}
	res := s.call(t, "run_code", map[string]any{"conversationId": "p", "language": "python", "code": "1", "packages": []string{"inflection"}})
	if len(res.Content) == 0 || !strings.Contains(res.Content[0].Text, "SANDBOX_PACKAGES") {
		t.Errorf("%+v", res)
	}
}
