package jail

import (
	"os"
	"path/filepath"

	"mcp-code-sandbox/internal/sandbox"
)

// agentPath is where the agent is inside.
const agentPath = "/.sandbox-agent"

// systemLinks are the directories of the root that are links into /usr on merged systems.
var systemLinks = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// etcPaths are what of the host's /etc programs need: the linker's cache, the choice among alternatives,
// public certificates, the time zone. Nothing here is about accounts, hosts or services.
var etcPaths = []string{
	"/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/ca-certificates",
	"/etc/pki/tls/certs", "/etc/pki/ca-trust/extracted", "/etc/localtime", "/etc/fonts", "/etc/mime.types",
}

var deviceNodes = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}

// agentCaps are the capabilities of the agent in the sandbox's own user namespace: to make each run's
// namespaces and mounts, to enter them, to lower limits for good, to drop what is left.
var agentCaps = []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SETPCAP", "CAP_SYS_RESOURCE"}

// bwrapArgs is bubblewrap's command line. place turns a host path into one that the sandbox's uid can reach.
func (b *Backend) bwrapArgs(spec sandbox.Spec, agentConfig string, place func(string) (string, error)) ([]string, error) {
	args := []string{
		"--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
		"--uid", "1000", "--gid", "1000", "--hostname", "sandbox",
		"--die-with-parent", "--new-session", "--as-pid-1",
		"--cap-drop", "ALL",
	}
	caps := agentCaps
	if spec.Network {
		caps = append(caps[:len(caps):len(caps)], "CAP_NET_ADMIN") // for the unreachable routes
	}
	for _, c := range caps {
		args = append(args, "--cap-add", c)
	}

	args = append(args, systemArgs()...)
	bind := func(flag, source, target string) error {
		path, err := place(source)
		if err == nil {
			args = append(args, flag, path, target)
		}
		return err
	}
	for name := range etcFiles {
		if name == "resolv.conf" && !spec.Network {
			continue
		}
		if err := bind("--ro-bind", filepath.Join(b.files, name), "/etc/"+name); err != nil {
			return nil, err
		}
	}
	if err := bind("--ro-bind", filepath.Join(b.files, "agent"), agentPath); err != nil {
		return nil, err
	}
	for _, m := range spec.Mounts {
		if err := bind("--ro-bind", m.Source, m.Target); err != nil {
			return nil, err
		}
	}
	for _, target := range sandbox.WorkspacePaths() {
		if spec.Workspace == "" { // it comes later
			args = append(args, "--dir", target)
			continue
		}
		if err := bind("--bind", spec.Workspace, target); err != nil {
			return nil, err
		}
	}
	return append(args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/", agentPath, agentConfig), nil
}

// systemArgs are the parts of a root that are the same for everybody.
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
	for _, path := range deviceNodes {
		args = append(args, "--dev-bind", path, path)
	}
	// Each run mounts its own terminals at /dev/pts. /dev/tty is whichever of them a process is controlled by.
	args = append(args, "--symlink", "pts/ptmx", "/dev/ptmx", "--dev-bind-try", "/dev/tty", "/dev/tty")
	for _, l := range [][2]string{{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"}} {
		args = append(args, "--symlink", l[0], l[1])
	}
	return args
}
