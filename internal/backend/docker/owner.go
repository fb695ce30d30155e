package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

// insideUID is the uid and gid of code in containers where the choice is ours. Our images have an account of it.
const insideUID = 1000

// Owner is the host uid and gid that own what sandboxes write; -1 where they are the server's own user, or the engine's
// machine sees to it. It asks the engine. One that is away is taken for an ordinary one; Start finds out if it is not.
func (b *Backend) Owner(ctx context.Context) (uid, gid int) {
	e, err := b.facts(ctx)
	if err != nil {
		e = &engine{}
	}
	_, owner := e.user()
	return owner.uid, owner.gid
}

type ids struct{ uid, gid int }

// user is who code is inside, and who owns what it writes outside.
//
//	rootless engine       0 inside is the engine's own user outside, who is the server's; without a capability it is nobody special
//	server not root       the server's own ids: its workspaces are its own
//	root, mapped engine   1000 inside is another outside, which the mapping tells
//	root                  1000
//	macOS, Windows        1000; the virtual machine's file sharing gives the files to the user
func (e *engine) user() (inside string, outside ids) {
	spell := func(uid, gid int) string { return strconv.Itoa(uid) + ":" + strconv.Itoa(gid) }
	same := ids{-1, -1}
	switch {
	case runtime.GOOS != "linux":
		return spell(insideUID, insideUID), same
	case e.rootless:
		return spell(0, 0), same
	case os.Geteuid() != 0:
		return spell(os.Geteuid(), os.Getegid()), same
	}
	return spell(insideUID, insideUID), ids{e.uidBase + insideUID, e.gidBase + insideUID}
}

// usable says why sandboxes cannot be right on this engine, if they cannot.
func (b *Backend) usable(e *engine) error {
	if err := e.hasRuntime(b.cfg.Runtime); err != nil {
		return err
	}
	return e.sharesFiles()
}

// CheckRuntime says why sandboxes cannot have the runtime that they are to have. An engine that is away may have it.
func (b *Backend) CheckRuntime(ctx context.Context) error {
	e, err := b.facts(ctx)
	if err != nil {
		return nil
	}
	return e.hasRuntime(b.cfg.Runtime)
}

// hasRuntime knows the names that the engine was configured with. Engines also take names and paths of containerd's shims.
func (e *engine) hasRuntime(name string) error {
	if name == "" || len(e.runtimes) == 0 || slices.Contains(e.runtimes, name) || strings.ContainsAny(name, "./") {
		return nil
	}
	return &sandbox.Error{
		Op: "choose a runtime", Err: fmt.Errorf("the engine has no runtime %s", name),
		Fix: "register it with the engine, or set SANDBOX_DOCKER_RUNTIME to one of " + strings.Join(slices.Sorted(slices.Values(e.runtimes)), ", "),
	}
}

// sharesFiles says why the workspaces of this server cannot be right on this engine, if they cannot.
func (e *engine) sharesFiles() error {
	switch {
	case runtime.GOOS != "linux":
		return nil
	case e.mapped && os.Geteuid() != 0:
		return &sandbox.Error{
			Op: "share the workspace with the engine", Err: errors.New("the engine maps users (userns-remap), and this user cannot give files to a mapped one"),
			Fix: "run the server as root, or use a rootless engine",
		}
	case e.rootless && os.Geteuid() == 0 && !inContainer():
		return &sandbox.Error{
			Op: "share the workspace with the engine", Err: errors.New("the engine is rootless and the server is root: files of the one are not the other's"),
			Fix: "run the server as the user whose engine it is",
		}
	}
	return nil
}

// inContainer says whether the server itself is in a container, where root may well be the rootless engine's user.
func inContainer() bool {
	for _, mark := range []string{"/.dockerenv", "/run/.containerenv"} {
		if _, err := os.Stat(mark); err == nil {
			return true
		}
	}
	return false
}

// remap reads the mapping of an engine with userns-remap from the name of its directory, <uid>.<gid>, which it gives it so that
// engines with different mappings share nothing.
func remap(rootDir string) (uid, gid int, err error) {
	u, g, ok := strings.Cut(path.Base(rootDir), ".")
	uid, uerr := strconv.Atoi(u)
	gid, gerr := strconv.Atoi(g)
	if !ok || uerr != nil || gerr != nil || uid <= 0 || gid <= 0 {
		return 0, 0, &sandbox.Error{
			Op: "share the workspace with the engine", Err: fmt.Errorf("the engine maps users, and its directory %q does not tell how", rootDir),
			Fix: "use an engine without userns-remap, or a rootless one",
		}
	}
	return uid, gid, nil
}
