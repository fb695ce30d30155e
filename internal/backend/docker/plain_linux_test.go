package docker_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/backend/docker/dockertest"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// tenLines is an image of contract 1, as a user would write it. It runs as root, declares a volume
// and has a health check, which must not matter.
const tenLines = `FROM BASE
LABEL sandbox.runner=true
LABEL sandbox.language=LANGUAGE
LABEL sandbox.libraries="one, two,<script>"
LABEL sandbox.protocol=
USER root
WORKDIR /data
VOLUME ["/data", "/cache"]
HEALTHCHECK --interval=1s CMD touch /data/health
ENTRYPOINT ["/bin/sh", "-c", "cat > /tmp/main.py && exec /usr/bin/python3 /tmp/main.py"]
`

// build builds an image from a Dockerfile on a base image, and removes it with the test.
func build(t *testing.T, c *client.Client, base, dockerfile, tag string) (id string) {
	t.Helper()
	return dockertest.Build(t, c, tag, strings.Replace(dockerfile, "BASE", base, 1))
}

// ownLanguage returns a language that no other test has images for.
func ownLanguage() string { return "lang-" + strings.TrimPrefix(sandboxtest.ID(), "t-") }

// baseImage returns the name of the image with Python, to build on.
func baseImage(t *testing.T, b *docker.Backend) string {
	t.Helper()
	set, _, _, err := b.Runners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, ok := set.Lookup("python")
	if !ok {
		t.Fatal("the engine has no image for Python")
	}
	return r.Image
}

// These tests build and remove labelled images on a separate engine: other tests' servers would see
// them.

func TestStdinImage(t *testing.T) {
	e := startEngine(t, "", noNetwork...)
	c := api(t, e.Host)
	inst := installation(t)
	b, _ := e.open(t, t.TempDir(), func(c *docker.Config) { c.Installation = inst })
	language := ownLanguage()
	id := build(t, c, baseImage(t, b), strings.ReplaceAll(tenLines, "LANGUAGE", language), language+":test")
	set, _, _, err := b.Runners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, ok := set.Lookup(language)
	if !ok || r.ImageID != id || r.Image != language+":test" || !slices.Equal(r.Libraries, []string{"one", "two"}) || len(r.Persistent) > 0 {
		t.Fatalf("discovered as %+v", r)
	}
	uid, _ := b.Owner(t.Context())
	h := sandboxtest.Harness{Backend: b, Owner: uid, Image: id}
	const MB = 1 << 20
	box := sandboxtest.Start(t, h, sandbox.Spec{SessionID: "s", Mounts: usr, Limits: sandbox.Limits{MemoryBytes: 128 * MB, PIDs: 64, TmpBytes: 16 * MB}})
	code := func(text string) wire.Run { return wire.Run{Code: []byte(text)} }

	t.Run("contract", func(t *testing.T) {
		res := box.Run(t, wire.Run{Env: map[string]string{"ASKED": "a b"}, Code: []byte(`
import os, sys
print(os.getcwd(), os.environ["ASKED"], os.getuid())
print("err", file=sys.stderr)
open("made.txt", "w").write("x")
sys.exit(7)`)})
		if string(res.Stdout) != "/data a b "+strconv.Itoa(insideUID())+"\n" || string(res.Stderr) != "err\n" || res.Exit.Code != 7 || res.Exit.Signal != 0 {
			t.Errorf("%q %q %+v", res.Stdout, res.Stderr, res.Exit)
		}
		if _, err := os.Stat(filepath.Join(box.Workspace, "made.txt")); err != nil {
			t.Error(err)
		}
		res = box.Run(t, code(`import os; print(sorted(os.listdir("/data")), os.path.exists("/tmp/other")); open("/tmp/other", "w")`))
		if string(res.Stdout) != "['made.txt'] False\n" {
			t.Errorf("a later run: %q %s", res.Stdout, res.Stderr)
		}
		if res := box.Run(t, code(`import os; print(os.path.exists("/tmp/other"), os.path.exists("/data/health"))`)); string(res.Stdout) != "False False\n" {
			t.Errorf("something of an earlier container, or the health check, is there: %q", res.Stdout)
		}
	})
	t.Run("hardened", func(t *testing.T) {
		res := box.Run(t, code(`
import os, socket
st = dict(l.rstrip("\n").split(":\t", 1) for l in open("/proc/self/status") if ":\t" in l)
for k in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
    if int(st[k], 16): print(k, st[k])
if st["NoNewPrivs"] != "1" or st["Seccomp"] != "2": print("privileges", st["NoNewPrivs"], st["Seccomp"])
if [i[1] for i in socket.if_nameindex() if i[1] == "eth0"]: print("network")
for p in ("/usr/x", "/etc/x", "/x", "/root/x", "/var/x"):
    try: open(p, "w"); print("writes", p)
    except OSError: pass
for d in ("/tmp", "/dev/shm", "/cache"):
    n = 0
    try:
        with open(d + "/big", "wb", buffering=0) as f:
            for _ in range(40): n += f.write(bytes(1 << 20))
    except OSError: pass
    if n > 17 << 20: print(d, "holds", n)
    try: os.unlink(d + "/big")
    except OSError: pass
if os.path.exists("/var/run/docker.sock"): print("the socket")
print("end")`))
		if string(res.Stdout) != "end\n" {
			t.Errorf("%s%s %+v", res.Stdout, res.Stderr, res.Exit)
		}
	})
	t.Run("memory", func(t *testing.T) {
		res := box.Run(t, code("x = [bytearray(b'x' * (1 << 20)) for _ in range(4096)]"))
		if res.Exit.Code != 137 || res.Exit.OOMKills == 0 {
			t.Errorf("%+v %s", res.Exit, res.Stderr)
		}
		if res := box.Run(t, code("import os; os._exit(137)")); res.Exit.Code != 137 || res.Exit.OOMKills != 0 {
			t.Errorf("an exit code is no lack of memory: %+v", res.Exit)
		}
	})
	t.Run("kill", func(t *testing.T) {
		run := box.BeginUntil(t, "up\n", code("import signal, time\nfor s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(1000)"))
		run.Send(t, wire.TypeKill)
		if res := run.WaitFor(t, patience); res.Exit.Signal != 9 || res.Exit.Code != 137 {
			t.Errorf("%+v", res.Exit)
		}
	})
	t.Run("flood", func(t *testing.T) {
		flood := code("import os\nb = b'x' * (1 << 20)\nwhile True: os.write(1, b)")
		stream, err := box.Conn.Open(wire.Frame{Type: wire.TypeRun, Run: &flood})
		if err != nil {
			t.Fatal(err)
		}
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before, most, killed := heap(), int64(0), false
		for total := 0; ; {
			f, err := stream.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if f.Type == wire.TypeExit {
				if f.Exit.Signal != 9 {
					t.Errorf("%+v", f.Exit)
				}
				break
			}
			if total += len(f.Data); total%(8<<20) < len(f.Data) {
				most = max(most, heap()-before)
			}
			if total > 128<<20 && !killed {
				killed = true
				if err := stream.Send(t.Context(), wire.Frame{Type: wire.TypeKill}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if most > 4<<20 {
			t.Errorf("128 MB of output cost the server %d bytes", most)
		}
	})
	t.Run("no state", func(t *testing.T) {
		if res := box.Run(t, wire.Run{Interpreter: "x", Code: []byte("1")}); res.Exit.Code != 126 || !strings.Contains(res.Exit.Error, "keeps no state") {
			t.Errorf("%+v", res.Exit)
		}
	})
	t.Run("end in the middle", func(t *testing.T) {
		box := sandboxtest.Start(t, h, sandbox.Spec{Mounts: usr})
		box.Begin(t, code("print('up', flush=True)\nimport time; time.sleep(1000)")).Until(t, "up\n")
		if err := box.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	eventually(t, "the containers to be gone", func() bool { return len(containers(t, c, inst)) == 0 })
}

// insideUID returns the uid of code on this engine.
func insideUID() int {
	if uid := os.Geteuid(); uid != 0 {
		return uid
	}
	return 1000
}

// TestStdinImageAway: if the engine goes away during a run, the sandbox is lost and the run reports
// no exit.
func TestStdinImageAway(t *testing.T) {
	e := startEngine(t, "", noNetwork...)
	g := newGate(t, e.Host)
	c := api(t, e.Host)
	inst := installation(t)
	b := open(t, t.TempDir(), func(c *docker.Config) { c.Installation, c.Host = inst, g.Host })
	language := ownLanguage()
	id := build(t, c, baseImage(t, b), strings.ReplaceAll(tenLines, "LANGUAGE", language), language+":test")
	uid, _ := b.Owner(t.Context())
	h := sandboxtest.Harness{Backend: b, Owner: uid, Image: id}
	box := sandboxtest.Start(t, h, sandbox.Spec{Mounts: usr})
	box.Begin(t, wire.Run{Code: []byte("print('up', flush=True)\nimport time; time.sleep(1000)")}).Until(t, "up\n")
	g.Away()
	select {
	case <-box.Conn.Done():
	case <-time.After(patience):
		t.Fatal("the sandbox lives on without its engine")
	}
	refused := sandboxtest.Start(t, h, sandbox.Spec{Mounts: usr}).Run(t, wire.Run{Code: []byte("1")})
	if refused.Exit.Code != 126 || !strings.Contains(refused.Exit.Error, "DOCKER_HOST") {
		t.Errorf("a run without an engine: %+v", refused.Exit)
	}
	g.Back(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if exit, err := box.Wait(ctx); err != nil || exit.Cause != sandbox.CauseLost {
		t.Errorf("%+v, %v", exit, err)
	}
	eventually(t, "the container to be gone", func() bool { return len(containers(t, c, inst)) == 0 })
	if res := sandboxtest.Start(t, h, sandbox.Spec{Mounts: usr}).Run(t, wire.Run{Code: []byte("print(42)")}); string(res.Stdout) != "42\n" {
		t.Errorf("with the engine back: %+v %s", res.Exit, res.Stderr)
	}
}

// TestDiscovery: a running server sees new, changed and removed images. The image of SANDBOX_IMAGE
// wins.
func TestDiscovery(t *testing.T) {
	e := startEngine(t, "", noNetwork...)
	c := api(t, e.Host)
	b, _ := e.open(t, t.TempDir())
	base := baseImage(t, b)
	language := ownLanguage()
	dockerfile := strings.ReplaceAll(tenLines, "LANGUAGE", language)

	changed := make(chan struct{}, 100)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Watch(ctx, func() { changed <- struct{}{} })
	}()
	defer func() { stop(); <-done }()
	// until waits for a change after which ok is true.
	until := func(what string, ok func(set runner.Set, notes []string) bool) {
		t.Helper()
		for {
			select {
			case <-changed:
			case <-time.After(patience):
				t.Fatalf("nobody saw %s", what)
			}
			if set, notes, _, err := b.Runners(t.Context()); err == nil && ok(set, notes) {
				return
			}
		}
	}
	is := func(id string) func(runner.Set, []string) bool {
		return func(set runner.Set, _ []string) bool {
			r, ok := set.Lookup(language)
			return ok == (id != "") && (!ok || r.ImageID == id)
		}
	}
	until("the engine", is(""))
	first := build(t, c, base, dockerfile, language+":one")
	until("the first image", is(first))
	second := build(t, c, base, dockerfile+"ENV NEWER=1\n", language+":two")
	until("the second image", func(set runner.Set, notes []string) bool {
		return is(second)(set, notes) && slices.ContainsFunc(notes, func(n string) bool {
			return strings.Contains(n, language+":one") && strings.Contains(n, language+":two")
		})
	})
	if _, err := c.ImageRemove(t.Context(), language+":two", client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
		t.Fatal(err)
	}
	until("the removal of the second image", is(first))

	// A run's image was removed: once before the server knows it, once after.
	third := build(t, c, "empty:test", "FROM BASE\nLABEL sandbox.language="+language+"-third\n", language+":three")
	if _, _, _, err := b.Runners(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ImageRemove(t.Context(), language+":three", client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
		t.Fatal(err)
	}
	uid, _ := b.Owner(t.Context())
	for _, image := range []string{second, third, third} {
		_, err := b.Start(t.Context(), sandbox.Spec{ID: sandboxtest.ID(), Image: image, Workspace: sandboxtest.Workspace(t, uid)})
		if err == nil || !strings.Contains(err.Error(), "make images") {
			t.Errorf("an image that is gone: %v", err)
		}
	}

	if b.HasOwn() {
		t.Error("a labelled image is taken for one of this project")
	}
	const python = "FROM BASE\nLABEL sandbox.runner=true sandbox.language=python\n"
	bundled := build(t, c, base, python+"LABEL sandbox.protocol=agent\n", "runner-python:latest")
	stranger := build(t, c, base, python+"ENV NEWER=1\n", "stranger:latest")
	if id := imageID(t, b, "python"); id != bundled || !b.HasOwn() {
		t.Errorf("a newer image of a stranger serves Python: %s", id)
	}
	for _, entry := range []string{"stranger", stranger} {
		narrowed, _ := e.open(t, t.TempDir(), func(c *docker.Config) { c.Images = []string{entry} })
		set, _, problems, err := narrowed.Runners(t.Context())
		other := slices.ContainsFunc(set, func(r runner.Runner) bool { return r.ImageID != stranger })
		if err != nil || len(problems) > 0 || len(set) == 0 || other || narrowed.HasOwn() {
			t.Errorf("SANDBOX_IMAGES=%s: %v, %v, %v", entry, set.Names(), problems, err)
		}
	}
	build(t, c, base, "FROM BASE\nLABEL sandbox.runner=false\n", "unlabelled:test")
	for entry, want := range map[string]string{"no-such-image": "not on the engine", "unlabelled:test": "not labelled"} {
		none, _ := e.open(t, t.TempDir(), func(c *docker.Config) { c.Images = []string{entry} })
		set, _, problems, err := none.Runners(t.Context())
		if err != nil || len(set) > 0 || len(problems) != 1 || !strings.Contains(problems[0].Problem, want) {
			t.Errorf("SANDBOX_IMAGES=%s: %v, %v, %v", entry, set.Names(), problems, err)
		}
		checks := none.Probe(t.Context())
		if last := checks[len(checks)-1]; last.Status != sandbox.Fail || !strings.Contains(last.Detail, "SANDBOX_IMAGES") || last.Fix == "" {
			t.Errorf("SANDBOX_IMAGES=%s: doctor says %+v", entry, checks)
		}
	}

	chosen, _ := e.open(t, t.TempDir(), func(c *docker.Config) { c.Image = language + ":one" })
	if id := imageID(t, chosen, "python"); id != first {
		t.Errorf("SANDBOX_IMAGE does not serve Python, but %s", id)
	}
	missing, _ := e.open(t, t.TempDir(), func(c *docker.Config) { c.Image = "no-such-image:test" })
	if _, _, problems, err := missing.Runners(t.Context()); err != nil || len(problems) == 0 || !strings.Contains(problems[0].Problem, "no-such-image:test") {
		t.Errorf("a SANDBOX_IMAGE that is missing: %v, %v", problems, err)
	}
}
