package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
)

// outerCommands are the commands that open the jail or the files of sessions, which may belong to
// the user's subordinate ids.
var outerCommands = []string{"serve", "stdio", "run", "doctor", "sessions"}

// enterOuterNamespace starts this program again in an outer namespace, if the command needs one. It
// returns if it already runs there, or cannot. run reports what is wrong with the command line.
func enterOuterNamespace(args, environ []string) {
	if userns.UID() == 0 || userns.Current().Inside {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(kongExit); !ok { // --help
				panic(p)
			}
		}
	}()
	env := variables(environ)
	var c cli
	parser, err := newParser(&c, env, io.Discard, io.Discard)
	if err != nil {
		return
	}
	kctx, err := parser.Parse(args)
	if err != nil || c.validate(env, userns.UID()) != nil {
		return
	}
	if command, _, _ := strings.Cut(kctx.Command(), " "); !slices.Contains(outerCommands, command) || command == "stdio" && c.isWindow() {
		return
	}
	if why, fix := c.whyNoOuterNamespace(env); why != "" {
		userns.Decline(why, fix)
		return
	}
	userns.Enter(args, withPostgresUser(environ), c.whyNoRange())
}

// whyNoOuterNamespace says which setting keeps an ordinary user's server out of an outer namespace,
// and how to change that. It is empty if none does.
func (s *settings) whyNoOuterNamespace(env map[string]string) (why, fix string) {
	const separate = "serve such environments with a server of their own"
	switch {
	case s.OuterNamespace == "off":
		return "SANDBOX_OUTER_NAMESPACE is off", "set it to auto"
	case s.Backend == backendDocker:
		return "SANDBOX_BACKEND is docker", "set it to jail"
	case len(s.NixEnvs) > 0:
		return "NIX_SANDBOX_ENVS names environments that isolate themselves", separate
	}
	// Wrappers may use sudo, podman or nix, which work only outside.
	if wrappers, _ := s.sources(env).DiscoverWrappers(); len(wrappers) > 0 {
		return "the environment " + wrappers[0].Name + " isolates itself, perhaps with programs that work only outside", separate
	}
	return "", ""
}

// whyNoRange reports a directory that code must be able to read, but that only the user can:
// sandboxes then need the user's own id.
func (s *settings) whyNoRange() error {
	dirs, _ := filepath.Glob(filepath.Join(s.Root, "runners", "*")) // the patterns are valid
	own, _ := filepath.Glob(filepath.Join(ownRunnersDir(s), "*"))
	for _, dir := range slices.Concat([]string{s.ProjectDir}, dirs, own) {
		if fi, err := os.Stat(dir); err == nil && fi.IsDir() && fi.Mode()&0o005 != 0o005 {
			return &sandbox.Error{
				Op: "use subordinate ids", Err: fmt.Errorf("only you can read %s, which code needs", dir),
				Fix: "chmod -R o+rX " + dir + ", if others may read it",
			}
		}
	}
	return nil
}
