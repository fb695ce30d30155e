package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
)

// engine holds what the engine reports about itself.
type engine struct {
	version  string
	machine  string // its host name
	dir      string // of its data, on its machine
	podman   bool
	goarch   string
	rootless bool
	// mapped: outside, the uids and gids of containers are larger by uidBase and gidBase.
	mapped           bool
	uidBase, gidBase int
	runtimes         []string
	seccomp          bool
	memory, pids     bool // it can limit them
	looseTCP         bool // its memory limit leaves out the buffers of sockets, as on cgroup version 1
}

// facts asks the engine about itself, once. After a failure the next call asks again.
func (b *Backend) facts(ctx context.Context) (*engine, error) {
	b.mu.Lock()
	known := b.engine
	b.mu.Unlock()
	if known != nil {
		return known, nil
	}
	const op = "reach the engine"
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	res, err := b.client.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, b.explain(ctx, op, err)
	}
	if os := res.Info.OSType; os != "" && os != "linux" {
		return nil, &sandbox.Error{
			Op: op, Err: fmt.Errorf("it runs %s containers", os), Fix: "switch Docker Desktop to Linux containers",
		}
	}
	version, err := b.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return nil, b.explain(ctx, op, err)
	}
	e := describe(res.Info)
	e.looseTCP = e.looseTCP && !b.ownKernel()
	for _, c := range version.Components {
		if strings.Contains(c.Name, "Podman") {
			e.podman, e.version = true, "Podman "+c.Version
		}
	}
	if e.podman {
		if e.rootless, err = b.podmanRootless(ctx); err != nil {
			return nil, b.explain(ctx, op, err)
		}
		if e.rootless && res.Info.CgroupVersion == "1" { // it reports the machine's limits, not its user's
			e.memory, e.pids = false, false
		}
	}
	if e.mapped {
		if e.uidBase, e.gidBase, err = remap(e.dir); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.engine = e
	return e, nil
}

// forget makes the next start ask the engine about itself again: it may have been replaced.
func (b *Backend) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.engine = nil
}

func describe(info system.Info) *engine {
	e := &engine{
		version: info.ServerVersion, machine: info.Name, dir: info.DockerRootDir, goarch: goarch(info.Architecture),
		memory: info.MemoryLimit, pids: info.PidsLimit, looseTCP: info.CgroupVersion == "1",
		runtimes: slices.Sorted(maps.Keys(info.Runtimes)),
	}
	for _, option := range info.SecurityOptions {
		name, _, _ := strings.Cut(strings.TrimPrefix(option, "name="), ",")
		switch name {
		case "rootless":
			e.rootless = true
		case "userns":
			e.mapped = true
		case "seccomp":
			e.seccomp = true
		}
	}
	return e
}

// podmanRootless asks for a field of Podman's own, which the client does not decode.
func (b *Backend) podmanRootless(ctx context.Context) (bool, error) {
	dial := b.client.Dialer()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/info", nil)
	if err != nil {
		return false, err
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	var info struct{ Rootless bool }
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&info); err != nil {
		return false, fmt.Errorf("decode Podman's answer: %w", err)
	}
	return info.Rootless, nil
}

// goarch translates the kernel's name of an architecture to Go's.
func goarch(machine string) string {
	switch machine {
	case "x86_64":
		return "amd64"
	case "aarch64":
		return "arm64"
	}
	return machine
}

// remap reads the mapping of an engine with userns-remap from the name of its directory,
// <uid>.<gid>. Engines with different mappings use different directories.
func remap(rootDir string) (uid, gid int, err error) {
	u, g, ok := strings.Cut(path.Base(rootDir), ".")
	uid, uerr := strconv.Atoi(u)
	gid, gerr := strconv.Atoi(g)
	if !ok || uerr != nil || gerr != nil || uid <= 0 || gid <= 0 {
		return 0, 0, &sandbox.Error{
			Op: opShare, Err: fmt.Errorf("the engine maps users, but the name of its directory, %q, does not say how", rootDir),
			Fix: "use an engine without userns-remap, or a rootless one",
		}
	}
	return uid, gid, nil
}

const opShare = "share the workspace with the engine"

// insideUID is the uid and gid of code in containers where we choose it. Our images have an account
// for it.
const insideUID = 1000

// Owner returns the host uid and gid that own what sandboxes write, or -1 if it is the server's own
// user or the engine's machine takes care of it. If the engine does not answer, Owner assumes an
// ordinary one; Start checks.
func (b *Backend) Owner(ctx context.Context) (uid, gid int) {
	e, err := b.facts(ctx)
	if err != nil {
		e = &engine{}
	}
	_, owner := e.user()
	return owner.uid, owner.gid
}

type ids struct{ uid, gid int }

// user returns the user of code inside, and the owner outside of what it writes. The table in
// docs/docker.md gives the reasons.
func (e *engine) user() (inside string, outside ids) {
	spell := func(uid, gid int) string { return strconv.Itoa(uid) + ":" + strconv.Itoa(gid) }
	same := ids{-1, -1}
	switch {
	case runtime.GOOS != "linux": // the virtual machine's file sharing gives files to the user
		return spell(insideUID, insideUID), same
	case e.rootless: // 0 inside is the engine's user outside, who is also the server's
		return spell(0, 0), same
	case userns.UID() != 0: // the workspaces belong to the server's user
		return spell(userns.UID(), userns.GID()), same
	}
	return spell(insideUID, insideUID), ids{e.uidBase + insideUID, e.gidBase + insideUID}
}

// checkUsable reports why sandboxes cannot work on this engine.
func (b *Backend) checkUsable(e *engine) error {
	if err := e.checkRuntime(b.cfg.Runtime); err != nil {
		return err
	}
	return e.checkSharing()
}

// CheckRuntime reports that the engine does not have the configured runtime. An engine that does
// not answer may have it.
func (b *Backend) CheckRuntime(ctx context.Context) error {
	e, err := b.facts(ctx)
	if err != nil {
		return nil
	}
	return e.checkRuntime(b.cfg.Runtime)
}

// checkRuntime knows the names that the engine is configured with. Engines also accept names and
// paths of containerd's shims.
func (e *engine) checkRuntime(name string) error {
	if name == "" || len(e.runtimes) == 0 || slices.Contains(e.runtimes, name) || strings.ContainsAny(name, "./") {
		return nil
	}
	return &sandbox.Error{
		Op: "choose a runtime", Err: fmt.Errorf("the engine has no runtime %s", name),
		Fix: "register it with the engine, or set SANDBOX_DOCKER_RUNTIME to one of " + strings.Join(e.runtimes, ", "),
	}
}

// checkSharing reports why the engine and this server cannot share workspaces.
func (e *engine) checkSharing() error {
	switch {
	case runtime.GOOS != "linux":
		return nil
	case e.mapped && userns.UID() != 0:
		return &sandbox.Error{
			Op: opShare, Err: errors.New("the engine maps users (userns-remap), and this user cannot give files to a mapped one"),
			Fix: "run the server as root, or use a rootless engine",
		}
	case e.rootless && userns.UID() == 0 && !inContainer():
		return &sandbox.Error{
			Op: opShare, Err: errors.New("the engine is rootless and the server is root, so they cannot use each other's files"),
			Fix: "run the server as the user whose engine it is",
		}
	}
	return nil
}

// inContainer reports whether the server itself runs in a container, where root may be the rootless
// engine's user.
func inContainer() bool {
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(mark); err == nil {
			return true
		}
	}
	return false
}
