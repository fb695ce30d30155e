package jail

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

// The paths inside of the agent and of a shared zygote's source.
const (
	agentPath  = "/.sandbox-agent"
	zygotePath = "/.zygote"
)

// systemLinks are the directories of the root that are links into /usr on merged systems.
var systemLinks = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// etcPaths are the parts of the host's /etc that programs need: the linker's cache, alternatives,
// public certificates, the time zone. None describes accounts, hosts or services.
var etcPaths = []string{
	"/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates",
	"/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/localtime", "/etc/fonts", "/etc/mime.types",
}

// etc holds the sandbox's own files in /etc.
//
//go:embed etc
var etc embed.FS

// writeFiles writes the files that sandboxes mount into the instance's directory.
func (b *Backend) writeFiles() error {
	if err := os.MkdirAll(b.files, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.files, "agent"), b.cfg.AgentBinary, 0o755); err != nil {
		return err
	}
	for _, name := range etcNames() {
		text, err := etc.ReadFile("etc/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.files, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func etcNames() (names []string) {
	files, _ := etc.ReadDir("etc") // it was embedded
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// agentCaps are the agent's capabilities in the sandbox's user namespace. With them it makes and
// enters each run's namespaces and mounts, lowers limits for good and drops capabilities.
var agentCaps = []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SETPCAP", "CAP_SYS_RESOURCE"}

// unshareArgs are bubblewrap's arguments for a sandbox's namespaces.
func unshareArgs() []string {
	return []string{
		"--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
	}
}

// sandboxArgs is bubblewrap's command line for a sandbox. workspace is a path that the sandbox's
// uid can reach, or empty if the workspace comes later. It must run on the launcher's thread.
func (b *Backend) sandboxArgs(spec sandbox.Spec, workspace, agentConfig string) ([]string, error) {
	args := append(unshareArgs(),
		"--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
		"--die-with-parent", "--new-session", "--as-pid-1",
		"--cap-drop", "ALL",
	)
	caps := slices.Clip(agentCaps)
	switch {
	case spec.Network:
		caps = append(caps, "CAP_NET_ADMIN") // for the unreachable routes
	case spec.Forward:
		caps = append(caps, "CAP_NET_BIND_SERVICE") // for the ports of names, also of the name server
	}
	for _, c := range caps {
		args = append(args, "--cap-add", c)
	}
	mounts := append(slices.Clip(spec.Mounts), sandbox.Mount{Source: filepath.Join(b.files, "agent"), Target: agentPath})
	root, err := b.rootArgs(mounts, spec.Network)
	if err != nil {
		return nil, err
	}
	args = append(args, root...)
	for _, target := range sandbox.WorkspacePaths() {
		if workspace == "" {
			args = append(args, "--dir", target)
		} else {
			args = append(args, "--bind", workspace, target)
		}
	}
	return append(args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", agentPath, agentConfig), nil
}

// noCapabilities are setpriv's arguments for a program that must neither have nor get capabilities,
// although it may be started by root of an outer namespace.
var noCapabilities = []string{"--bounding-set", "-all", "--inh-caps", "-all", "--ambient-caps", "-all", "--no-new-privs"}

// unprivileged returns a command for a program that faces hostile bytes. Its uid takes away the
// capabilities of a root server, unless the server has no other uid.
func (b *Backend) unprivileged(path string, args ...string) *exec.Cmd {
	if os.Geteuid() != 0 || b.ids.credential() != nil {
		return exec.Command(path, args...)
	}
	return exec.Command("setpriv", slices.Concat(noCapabilities, []string{path}, args)...)
}

// sharedZygoteArgs is bubblewrap's command line for a shared zygote: like a sandbox's, but without
// user and pid namespaces, or its forks could not enter those of sandboxes, and without a
// workspace.
func (b *Backend) sharedZygoteArgs(spec sandbox.Spec, interpreter []string, source, setpriv string) ([]string, error) {
	args := []string{
		"--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
		"--hostname", "sandbox", "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--cap-add", "CAP_SETPCAP",
	}
	drop := append([]string{setpriv}, noCapabilities...)
	if b.ids.credential() != nil {
		uid := fmt.Sprint(b.ids.owner)
		args = append(args, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
		drop = append(drop, "--reuid", uid, "--regid", uid, "--clear-groups")
	}
	// bubblewrap would make parent directories that only root can enter.
	made := map[string]bool{"/": true}
	var makeParents func(path string)
	makeParents = func(path string) {
		if dir := filepath.Dir(path); !made[dir] {
			makeParents(dir)
			made[dir] = true
			args = append(args, "--perms", "0755", "--dir", dir)
		}
	}
	makeParents("/etc/ssl/certs")
	for _, m := range spec.Mounts {
		makeParents(m.Target)
	}
	root, err := b.rootArgs(append(slices.Clip(spec.Mounts), sandbox.Mount{Source: source, Target: zygotePath}), true)
	if err != nil {
		return nil, err
	}
	args = append(append(args, root...),
		"--tmpfs", "/tmp", "--chmod", "1777", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/")
	return slices.Concat(args, drop, interpreter, []string{zygotePath, "shared-zygote"}), nil
}

// rootArgs are the arguments for a read-only root with the mounts. It must run on the launcher's
// thread.
func (b *Backend) rootArgs(mounts []sandbox.Mount, network bool) ([]string, error) {
	var all []sandbox.Mount
	for _, name := range etcNames() {
		if name != unusedResolver(network) {
			target := strings.TrimSuffix(name, ".loopback")
			all = append(all, sandbox.Mount{Source: filepath.Join(b.files, name), Target: "/etc/" + target})
		}
	}
	args := systemArgs()
	for _, m := range append(all, mounts...) {
		path, err := b.launch.onStage(m.Source)
		if err != nil {
			return nil, err
		}
		args = append(args, "--ro-bind", path, m.Target)
	}
	return args, nil
}

// unusedResolver is the name server's file of the other sandboxes: those with a network use that of
// the network, the others their agent.
func unusedResolver(network bool) string {
	if network {
		return "resolv.conf.loopback"
	}
	return "resolv.conf"
}

// systemArgs are the arguments for the parts of a root that all sandboxes share.
func systemArgs() []string {
	args := []string{"--ro-bind", "/usr", "/usr"}
	for _, path := range systemLinks {
		if target, err := os.Readlink(path); err == nil {
			args = append(args, "--symlink", target, path)
		} else if fi, err := os.Stat(path); err == nil && fi.IsDir() {
			args = append(args, "--ro-bind", path, path)
		}
	}
	for _, path := range etcPaths {
		args = append(args, "--ro-bind-try", path, path)
	}
	args = append(args, "--tmpfs", "/dev", "--dir", "/dev/shm", "--dir", "/dev/pts", "--dir", "/tmp", "--proc", "/proc")
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		args = append(args, "--dev-bind", "/dev/"+name, "/dev/"+name)
	}
	return append(args,
		// Each run mounts its own terminals at /dev/pts. /dev/tty is the controlling one.
		"--symlink", "pts/ptmx", "/dev/ptmx", "--dev-bind-try", "/dev/tty", "/dev/tty",
		"--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/proc/self/fd/0", "/dev/stdin",
		"--symlink", "/proc/self/fd/1", "/dev/stdout", "--symlink", "/proc/self/fd/2", "/dev/stderr")
}
