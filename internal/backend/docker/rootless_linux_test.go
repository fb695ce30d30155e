package docker_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

const (
	// envRootless is the engine's address, in the process that acts as a server of the same user.
	envRootless = "DOCKERTEST_ROOTLESS"
	// rootlessUser is the uid and gid of that user, who has an account only in the engine's mount
	// namespace.
	rootlessUser = 54321
	rootlessBase = 400000 // of the user's subordinate ids
)

// asRootless runs the engine's command as an ordinary user, as dockerd-rootless.sh does. It has no
// network but loopback.
const asRootless = `
cp /etc/passwd /etc/group "$dir"
echo "rootless:x:$user:$user::$dir/home:/bin/sh" >>"$dir/passwd"
echo "rootless:x:$user:" >>"$dir/group"
echo "rootless:$base:65536" | tee "$dir/subuid" >"$dir/subgid"
for name in passwd group subuid subgid; do mount --bind "$dir/$name" "/etc/$name"; done
mkdir -p "$dir/home" "$dir/run"
chown "$user:$user" "$dir" "$dir/home" "$dir/run"
ip link set lo up
set -- unshare --net env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$dir/home" XDG_RUNTIME_DIR="$dir/run" \
	setpriv --reuid "$user" --regid "$user" --clear-groups --pdeathsig TERM \
	rootlesskit --state-dir "$dir/run/kit" --net=host --pidns --copy-up=/etc --copy-up=/run --propagation=rslave \
	sh -c 'rm -f /run/docker /run/containerd /run/xtables.lock; exec "$@"' sh "$@" --rootless
`

// TestRootless runs the parts of the suite that depend on the uid on a rootless engine, as the
// engine's user. It reads the limits and does not try them: without cgroups a bomb could take much
// of the machine.
func TestRootless(t *testing.T) {
	if host := os.Getenv(envRootless); host != "" {
		testRootless(t, host)
		return
	}
	shared := api(t, engineHost(t))
	for _, name := range []string{"rootlesskit", "newuidmap", "setpriv"} {
		if _, err := exec.LookPath(name); err != nil {
			sandboxtest.Skip(t, name+" is not installed")
		}
	}
	e := startEngine(t, fmt.Sprintf("user=%d base=%d\n%s", rootlessUser, rootlessBase, asRootless), noNetwork...)
	base, err := shared.ImageSave(t.Context(), []string{"sandbox-base:latest"})
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	res, err := api(t, e.Host).ImageLoad(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res)
	_ = res.Close()

	// The other user must be able to read it.
	agent, err := sandboxtest.Agent("")
	if err != nil {
		t.Fatal(err)
	}
	agentCopy := filepath.Join(e.dir, "agent")
	if err := os.WriteFile(agentCopy, agent, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=5m", "-test.run=^TestRootless$/^(Suite|Limits|StdinImage|Doctor)$/^(Files|Privileges|Processes|NothingSurvives)$")
	cmd.Dir = filepath.Join(e.dir, "home")
	cmd.Env = append(os.Environ(), envRootless+"="+e.Host, sandboxtest.AgentEnv+"="+agentCopy, "HOME="+cmd.Dir, "TMPDIR="+cmd.Dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: rootlessUser, Gid: rootlessUser, Groups: []uint32{}}, Pdeathsig: syscall.SIGKILL,
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRootless") {
		t.Errorf("as the engine's user: %v", err)
	}

	// The engine's user cannot use a root server's files.
	b, _ := e.open(t, t.TempDir())
	_, err = b.Start(t.Context(), sandbox.Spec{ID: sandboxtest.ID(), Image: e.Image, Workspace: t.TempDir(), Mounts: usr})
	if err == nil || !strings.Contains(err.Error(), "the user whose engine it is") {
		t.Errorf("a root server on a rootless engine: %v", err)
	}
}

// testRootless is the server's part of TestRootless.
func testRootless(t *testing.T, host string) {
	c := api(t, host)
	name := ownLanguage()
	id := build(t, c, "sandbox-base:latest", "FROM BASE\nLABEL sandbox.runner=true sandbox.language=python sandbox.protocol=agent\n", name+":test")
	inst := installation(t)
	b := open(t, t.TempDir(), func(c *docker.Config) { c.Host, c.Installation = host, inst })
	if uid, gid := b.Owner(t.Context()); uid != -1 || gid != -1 {
		t.Errorf("workspaces are given to %d:%d", uid, gid)
	}
	// No cgroups are delegated to the user.
	h := harnessWith(t, b, id)
	h.Owner, h.Has.Limits = os.Geteuid(), false
	t.Run("Suite", func(t *testing.T) {
		sandboxtest.Run(t, func(*testing.T) sandboxtest.Harness { return h })
	})
	t.Run("Limits", func(t *testing.T) {
		box := sandboxtest.Start(t, h, sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: 128 << 20, PIDs: 64}})
		box.Probe(t, `
if resource.getrlimit(resource.RLIMIT_DATA) != (128 << 20, 128 << 20): breach("memory", resource.getrlimit(resource.RLIMIT_DATA))
if not 64 <= resource.getrlimit(resource.RLIMIT_NPROC)[1] <= 4096: breach("processes", resource.getrlimit(resource.RLIMIT_NPROC))
try: bytearray(1 << 30); breach("a gigabyte fits into 128 MB")
except MemoryError: pass
`)
	})
	t.Run("StdinImage", func(t *testing.T) {
		h := h
		h.Image = build(t, c, "sandbox-base:latest", "FROM BASE\nENTRYPOINT [\"python3\", \"-\"]\n", ownLanguage()+":test")
		box := sandboxtest.Start(t, h, sandbox.Spec{Limits: sandbox.Limits{MemoryBytes: 128 << 20, PIDs: 64}})
		if res := box.Run(t, wire.Run{Code: []byte("open('/data/mine', 'w').write('x'); x = bytearray(1 << 30)")}); res.Exit.Code == 0 {
			t.Errorf("a gigabyte fits into 128 MB: %+v", res.Exit)
		}
		fi, err := os.Stat(filepath.Join(box.Workspace, "mine"))
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != rootlessUser || fi.Mode().Perm()&0o002 != 0 {
			t.Errorf("what it wrote belongs to %d, %v", st.Uid, fi.Mode())
		}
	})
	t.Run("Doctor", func(t *testing.T) {
		checks := b.Probe(t.Context())
		if checks[0].Status == sandbox.Fail || !strings.Contains(checks[0].Detail, "rootless") || !strings.Contains(checks[0].Detail, "cannot limit memory") {
			t.Errorf("%+v", checks)
		}
	})
	eventually(t, "the containers to be gone", func() bool { return len(containers(t, c, inst)) == 0 })
}
