package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// ownEngine is a Docker Engine for one test, which may restart it and choose its flags.
type ownEngine struct {
	Host  string
	Image string // with nothing in it: see usr

	dir   string
	flags []string
	setup string // shell commands before it, in its own mount namespace; $dir is its directory and "$@" its command
	cmd   *exec.Cmd
	done  chan error
	log   *os.File
}

// usr mounts this machine's programs into a container of the empty image.
var usr = []sandbox.Mount{{Source: "/usr", Target: "/usr"}}

// noNetwork keeps an engine from changing this machine's network.
var noNetwork = []string{"--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"}

func startEngine(t *testing.T, setup string, flags ...string) *ownEngine {
	t.Helper()
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "needs root: an engine of its own")
	}
	for _, name := range []string{"dockerd", "containerd", "unshare"} {
		if _, err := exec.LookPath(name); err != nil {
			sandboxtest.Skip(t, name+" is not installed")
		}
	}
	if target, err := os.Readlink("/bin"); err != nil || strings.Trim(target, "/") != "usr/bin" {
		sandboxtest.Skip(t, "the programs of this machine are not all in /usr")
	}
	dir, err := os.MkdirTemp("", "dt-") // short: a socket's name must be
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // for mapped users
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	e := &ownEngine{dir: dir, flags: flags, setup: setup, Host: "unix://" + filepath.Join(dir, "s")}
	if e.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.stop(t)
		if t.Failed() {
			if text, err := os.ReadFile(e.log.Name()); err == nil {
				t.Logf("the engine's log ends with:\n%s", text[max(0, len(text)-4000):])
			}
		}
		_ = e.log.Close()
	})
	e.start(t)
	e.load(t)
	return e
}

// start starts the engine, in its own mount namespace, and waits until it answers.
func (e *ownEngine) start(t *testing.T) {
	t.Helper()
	script := e.setup + "\nexec \"$@\""
	args := append([]string{"--mount", "--propagation", "private", "sh", "-ec", script, "sh", "dockerd", "--host", e.Host, "--data-root", filepath.Join(e.dir, "data"),
		"--exec-root", filepath.Join(e.dir, "exec"), "--pidfile", filepath.Join(e.dir, "pid")}, e.flags...)
	e.cmd = exec.Command("unshare", args...)
	e.cmd.Env = append(os.Environ(), "dir="+e.dir)
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e.done = make(chan error, 1)
	go func(cmd *exec.Cmd, done chan error) { done <- cmd.Wait() }(e.cmd, e.done)
	c := api(t, e.Host)
	eventually(t, "an engine to start", func() bool {
		select {
		case err := <-e.done:
			e.done <- err
			text, _ := os.ReadFile(e.log.Name())
			sandboxtest.Skip(t, fmt.Sprintf("no engine can be started here: %v\n%s", err, text[max(0, len(text)-2000):]))
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := c.Ping(ctx, client.PingOptions{})
		return err == nil
	})
}

// stop stops the engine and all its containers.
func (e *ownEngine) stop(t *testing.T) {
	t.Helper()
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-e.done:
		e.done <- err
	case <-time.After(patience):
		_ = e.cmd.Process.Kill()
		t.Error("the engine did not end")
	}
}

// load loads an image for the agent that has only links to what is in /usr.
func (e *ownEngine) load(t *testing.T) {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(h *tar.Header, text string) {
		t.Helper()
		h.Size = int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, text)
	}
	for _, d := range []string{"usr/", "etc/", "tmp/", "data/", "proc/", "dev/", "sys/"} {
		add(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755}, "")
	}
	for _, l := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"} {
		if target, err := os.Readlink("/" + l); err == nil {
			add(&tar.Header{Name: l, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, "")
		}
	}
	add(&tar.Header{Name: "etc/passwd", Mode: 0o644}, "sandbox:x:1000:1000::/tmp:/bin/sh\n")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	c := api(t, e.Host)
	res, err := c.ImageImport(t.Context(), client.ImageImportSource{Source: &buf, SourceName: "-"}, "empty:test", client.ImageImportOptions{
		Changes: []string{"LABEL sandbox.runner=true", "LABEL sandbox.language=python", "LABEL sandbox.protocol=agent"},
	})
	if err != nil {
		t.Fatal(err)
	}
	said, _ := io.ReadAll(res)
	_ = res.Close()
	img, err := c.ImageInspect(t.Context(), "empty:test")
	if err != nil {
		t.Fatalf("import an image: %v\n%s", err, said)
	}
	e.Image = img.ID
}

// open opens a backend on the engine.
func (e *ownEngine) open(t *testing.T, root string, change ...func(*docker.Config)) (*docker.Backend, sandboxtest.Harness) {
	t.Helper()
	b := open(t, root, append(change, func(c *docker.Config) { c.Host = e.Host })...)
	return b, harnessWith(t, b, e.Image)
}

// TestEngineRestarts: if the engine restarts during a run, the run is lost, the next one works, and
// nothing is left.
func TestEngineRestarts(t *testing.T) {
	e := startEngine(t, "", noNetwork...)
	inst := installation(t)
	b, h := e.open(t, t.TempDir(), func(c *docker.Config) { c.Installation = inst })
	box := sandboxtest.Start(t, h, sandbox.Spec{Mounts: usr})
	box.BeginUntil(t, "up\n", sandboxtest.Shell("echo up; sleep 1000"))
	e.stop(t)
	select {
	case <-box.Conn.Done():
	case <-time.After(patience):
		t.Fatal("the connection lives on")
	}
	spec := sandbox.Spec{ID: sandboxtest.ID(), Image: h.Image, Workspace: sandboxtest.Workspace(t, h.Owner), Mounts: usr}
	var known *sandbox.Error
	if _, err := b.Start(t.Context(), spec); !errors.As(err, &known) || known.Fix == "" {
		t.Errorf("a start without an engine: %v", err)
	}
	e.start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if exit, err := box.Wait(ctx); err != nil || exit.Cause != sandbox.CauseLost {
		t.Errorf("%+v, %v", exit, err)
	}
	sandboxtest.Start(t, h, sandbox.Spec{Mounts: usr}).Alive(t)
	c := api(t, e.Host)
	eventually(t, "only the new container to be left", func() bool { return len(containers(t, c, inst)) == 1 })
}

// TestMappedUsers: on an engine with userns-remap only the mapped user can use the workspace.
func TestMappedUsers(t *testing.T) {
	dir, err := os.MkdirTemp("", "dtm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const base = 300000
	for _, name := range []string{"subuid", "subgid"} {
		// Engines look for the group's range under its name or under the user's.
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "nobody:%d:65536\nnogroup:%d:65536\n", base, base), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat("/etc/" + name); err != nil {
			sandboxtest.Skip(t, err.Error())
		}
	}
	e := startEngine(t, "mount --bind "+dir+"/subuid /etc/subuid; mount --bind "+dir+"/subgid /etc/subgid;", append([]string{"--userns-remap=nobody:nogroup"}, noNetwork...)...)
	root := t.TempDir()
	if err := os.Chmod(root, 0o700); err != nil {
		t.Fatal(err)
	}
	b, h := e.open(t, root)
	if h.Owner != base+1000 {
		t.Fatalf("the owner is %d, want %d", h.Owner, base+1000)
	}
	workspace := filepath.Join(root, "session", "files")
	if err := os.MkdirAll(workspace, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Lchown(workspace, h.Owner, h.Owner); err != nil {
		t.Fatal(err)
	}
	box := sandboxtest.Start(t, h, sandbox.Spec{Workspace: workspace, Mounts: usr})
	if res := box.Run(t, sandboxtest.Shell("id -u; cat /proc/self/uid_map; echo mine > /data/mine")); !strings.HasPrefix(string(res.Stdout), "1000\n") || !strings.Contains(string(res.Stdout), fmt.Sprint(base)) || res.Exit.Code != 0 {
		t.Errorf("%s%s %+v", res.Stdout, res.Stderr, res.Exit)
	}
	fi, err := os.Stat(filepath.Join(workspace, "mine"))
	if err != nil {
		t.Fatal(err)
	}
	if st := fi.Sys().(*syscall.Stat_t); int(st.Uid) != h.Owner || int(st.Gid) != h.Owner || fi.Mode().Perm()&0o002 != 0 {
		t.Errorf("what it wrote belongs to %d:%d, %v", st.Uid, st.Gid, fi.Mode())
	}
	if fi, err := os.Stat(workspace); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("the workspace is %v, %v", fi.Mode(), err)
	}
	for _, c := range b.Probe(t.Context()) {
		if c.Name == "engine" && (c.Status != sandbox.OK || !strings.Contains(c.Detail, fmt.Sprint(base))) {
			t.Errorf("doctor says %+v", c)
		}
	}
}
