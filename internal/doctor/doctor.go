// Package doctor looks at the host and says what of it keeps code from being isolated, and how to mend it.
//
// It knows what commonly goes wrong on a Linux machine. Whether a sandbox really starts is the backend's own probe, and
// which interpreters there are is the runner package's; doctor explains.
package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

// Host is the machine as doctor sees it. System returns the real one.
type Host struct {
	OS       string
	UID      int
	ReadFile func(path string) ([]byte, error)
	Exists   func(path string) bool
	Writable func(path string) bool
	LookPath func(program string) (string, error)
	// Output runs a program and returns what it printed to stdout and stderr.
	Output func(ctx context.Context, program string, args ...string) (string, error)
	// Free returns the free bytes of the file system that holds path, or will.
	Free func(path string) (uint64, error)
}

// AppArmorProfile lets bubblewrap make user namespaces where Ubuntu 24.04 and newer restrict them.
const AppArmorProfile = `abi <abi/4.0>,
include <tunables/global>

profile bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
  include if exists <local/bwrap>
}
`

// Check examines the host for a server whose data is in root. The first failure in the list is the one to mend first.
func (h Host) Check(ctx context.Context, root string) []sandbox.Check {
	if h.OS != "linux" {
		return []sandbox.Check{{Name: "system", Status: sandbox.Fail, Detail: "the jail does not run on " + h.OS,
			Fix: "start Docker Desktop or another engine, and set SANDBOX_BACKEND to docker or auto"}}
	}
	bwrap, try := h.bubblewrap(ctx)
	return []sandbox.Check{h.kernel(), h.container(try), h.userNamespaces(), h.appArmor(try), bwrap, h.network(), h.cgroups(), h.disk(root)}
}

// CheckDisk is the part of Check that matters also where an engine does the rest.
func (h Host) CheckDisk(root string) []sandbox.Check {
	if h.Free == nil {
		return nil
	}
	return []sandbox.Check{h.disk(root)}
}

func (h Host) kernel() sandbox.Check {
	c := sandbox.Check{Name: "kernel", Detail: "Linux " + h.line("/proc/sys/kernel/osrelease")}
	var major, minor int
	if n, _ := fmt.Sscanf(h.line("/proc/sys/kernel/osrelease"), "%d.%d", &major, &minor); n == 2 && (major < 4 || major == 4 && minor < 18) {
		c.Status, c.Fix = sandbox.Fail, "use a kernel of 4.18 or newer"
	}
	return c
}

func (h Host) container(try attempt) sandbox.Check {
	c := sandbox.Check{Name: "container", Detail: "not inside one"}
	kind := h.containerKind()
	if kind == "" {
		return c
	}
	seccomp := "no seccomp filter"
	if strings.Contains(h.text("/proc/self/status"), "Seccomp:\t2") {
		seccomp = "a seccomp filter"
	}
	c.Detail = "inside " + kind + ", with " + seccomp
	if try != failed { // not the container's fault, or none at all
		return c
	}
	c.Status = sandbox.Fail
	c.Detail += ", and bubblewrap cannot make its namespaces there"
	switch kind {
	case "Kubernetes":
		c.Fix = "give the container securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}, procMount: Unmasked} and hostUsers: false"
	default:
		c.Fix = strings.ToLower(kind) + " run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined …"
	}
	return c
}

// containerKind goes by the marker files, by the cgroup's name, and by where /etc/hosts comes from: the mounts
// of a machine that merely runs containers mention them, too.
func (h Host) containerKind() string {
	trace := h.text("/proc/1/cgroup")
	for line := range strings.Lines(h.text("/proc/self/mountinfo")) {
		if strings.Contains(line, " /etc/hosts ") {
			trace += line
		}
	}
	switch {
	case strings.Contains(trace, "kubepods"), strings.Contains(trace, "kubelet"):
		return "Kubernetes"
	case h.Exists("/run/.containerenv"), strings.Contains(trace, "libpod"):
		return "Podman"
	case h.Exists("/.dockerenv"), strings.Contains(trace, "/docker/"):
		return "Docker"
	}
	return ""
}

func (h Host) userNamespaces() sandbox.Check {
	c := sandbox.Check{Name: "user namespaces"}
	switch limit := h.line("/proc/sys/user/max_user_namespaces"); {
	case limit == "":
		c.Status, c.Detail, c.Fix = sandbox.Fail, "the kernel has none", "use a kernel with CONFIG_USER_NS"
	case limit == "0":
		c.Status, c.Detail = sandbox.Fail, "switched off (user.max_user_namespaces = 0)"
		c.Fix = "echo user.max_user_namespaces=15000 | sudo tee /etc/sysctl.d/60-userns.conf && sudo sysctl --system"
	case h.line("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		c.Status, c.Detail = sandbox.Fail, "for root only (kernel.unprivileged_userns_clone = 0)"
		c.Fix = "echo kernel.unprivileged_userns_clone=1 | sudo tee /etc/sysctl.d/60-userns.conf && sudo sysctl --system"
	default:
		c.Detail = "allowed, up to " + limit
	}
	return c
}

func (h Host) appArmor(try attempt) sandbox.Check {
	c := sandbox.Check{Name: "AppArmor"}
	if h.line("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") != "1" {
		c.Detail = "does not restrict user namespaces"
		return c
	}
	if try == worked && h.UID != 0 {
		c.Detail = "restricts user namespaces, and lets bubblewrap make them"
		return c
	}
	if h.Exists("/etc/apparmor.d/bwrap") {
		c.Detail = "restricts user namespaces; /etc/apparmor.d/bwrap makes an exception"
		if try == failed {
			c.Status, c.Fix = sandbox.Warn, "load the profile: sudo apparmor_parser -r /etc/apparmor.d/bwrap"
		}
		return c
	}
	// Root's own try proves nothing: the server starts bubblewrap as an unprivileged user.
	c.Status = sandbox.Fail
	c.Detail = "restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1), as on Ubuntu 24.04"
	c.Fix = "sudo tee /etc/apparmor.d/bwrap <<'END' && sudo apparmor_parser -r /etc/apparmor.d/bwrap\n" + AppArmorProfile + "END"
	return c
}

// attempt is how bubblewrap did when it was to make a sandbox's namespaces, as this user.
type attempt int

const (
	notTried attempt = iota
	failed
	worked
)

func (h Host) bubblewrap(ctx context.Context) (sandbox.Check, attempt) {
	c := sandbox.Check{Name: "bubblewrap"}
	path, err := h.LookPath("bwrap")
	if err != nil {
		c.Status, c.Detail, c.Fix = sandbox.Fail, "not installed", "sudo apt-get install bubblewrap"
		return c, notTried
	}
	version, err := h.Output(ctx, path, "--version")
	if err != nil {
		c.Status, c.Detail, c.Fix = sandbox.Fail, path+" does not run: "+err.Error(), "sudo apt-get install --reinstall bubblewrap"
		return c, notTried
	}
	version = strings.TrimSpace(strings.TrimPrefix(version, "bubblewrap"))
	c.Detail = version + " at " + path
	if older(version, 0, 8) {
		c.Status, c.Fix = sandbox.Fail, "install bubblewrap 0.8.0 or newer (Debian 12, Ubuntu 24.04)"
		return c, notTried
	}
	out, err := h.Output(ctx, path, "--unshare-user", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true")
	if err != nil {
		c.Status = sandbox.Fail
		c.Detail += ", but it fails: " + strings.TrimSpace(out)
		c.Fix = "mend what is wrong with the container, user namespaces or AppArmor above"
		return c, failed
	}
	return c, worked
}

func older(version string, major, minor int) bool {
	var a, b int
	if n, _ := fmt.Sscanf(version, "%d.%d", &a, &b); n != 2 {
		return false
	}
	return a < major || a == major && b < minor
}

func (h Host) network() sandbox.Check {
	c := sandbox.Check{Name: "network"}
	path, err := h.LookPath("slirp4netns")
	if err != nil {
		c.Status, c.Detail, c.Fix = sandbox.Warn, "slirp4netns is not installed: runs with network: true are refused", "sudo apt-get install slirp4netns"
		return c
	}
	if !h.Exists("/dev/net/tun") {
		c.Status, c.Detail, c.Fix = sandbox.Warn, "/dev/net/tun is missing: runs with network: true are refused", "sudo modprobe tun (in a container: --device /dev/net/tun)"
		return c
	}
	c.Detail = path
	return c
}

func (h Host) cgroups() sandbox.Check {
	c := sandbox.Check{Name: "cgroups"}
	const mount = "/sys/fs/cgroup"
	own := map[string]string{} // by controller list; "" is v2
	for line := range strings.Lines(h.text("/proc/self/cgroup")) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			own[parts[1]] = parts[2]
		}
	}
	const fix = "start the server as root, or with a cgroup of its own: systemd-run --user --scope -p Delegate=yes mcp-code-sandbox serve"
	if h.Exists(mount + "/cgroup.controllers") {
		dir := mount + strings.TrimSuffix(own[""], "/")
		have := strings.Fields(h.text(dir + "/cgroup.controllers"))
		var missing []string
		for _, want := range []string{"memory", "pids", "cpu"} {
			if !slices.Contains(have, want) {
				missing = append(missing, want)
			}
		}
		switch {
		case !h.Writable(dir):
			c.Status, c.Detail, c.Fix = sandbox.Warn, "v2, not writable: memory and processes are limited by rlimits only, buffers of sockets not at all", fix
		case len(missing) > 0:
			c.Status, c.Detail, c.Fix = sandbox.Warn, "v2, without "+strings.Join(missing, ", ")+": limited by rlimits only, buffers of sockets not at all", fix
		default:
			c.Detail = "v2, writable, with memory, pids and cpu"
		}
		return c
	}
	var writable, missing []string
	for _, want := range []string{"memory", "pids", "cpu"} {
		for list, path := range own {
			if slices.Contains(strings.Split(list, ","), want) {
				// A container sees its own subtree as the root of the mount.
				if h.Writable(mount+"/"+want+strings.TrimSuffix(path, "/")) || h.Writable(mount+"/"+want) {
					writable = append(writable, want)
				}
			}
		}
		if !slices.Contains(writable, want) {
			missing = append(missing, want)
		}
	}
	switch {
	case len(own) == 0:
		c.Status, c.Detail, c.Fix = sandbox.Warn, "none: memory and processes are limited by rlimits only, buffers of sockets not at all", fix
	case len(missing) > 0:
		c.Status, c.Detail, c.Fix = sandbox.Warn, "v1, not writable: "+strings.Join(missing, ", ")+"; limited by rlimits only, buffers of sockets not at all", fix
	case !h.limitsTCP(own):
		c.Status, c.Detail = sandbox.Warn, "v1, writable, but the kernel has no memory.kmem.tcp.limit_in_bytes: TCP buffers do not count as memory, and a sandbox can hold any amount"
		c.Fix = "boot with cgroup v2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line"
	default:
		c.Detail = "v1, writable, with memory, pids and cpu"
	}
	return c
}

// limitsTCP says whether version 1 has the limit that TCP buffers need there, beside that of memory.
func (h Host) limitsTCP(own map[string]string) bool {
	const mount, file = "/sys/fs/cgroup/memory", "/memory.kmem.tcp.limit_in_bytes"
	for list, path := range own {
		if slices.Contains(strings.Split(list, ","), "memory") {
			return h.Exists(mount+strings.TrimSuffix(path, "/")+file) || h.Exists(mount+file)
		}
	}
	return false
}

func (h Host) disk(root string) sandbox.Check {
	c := sandbox.Check{Name: "disk"}
	free, err := h.Free(root)
	if err != nil {
		c.Status, c.Detail, c.Fix = sandbox.Warn, err.Error(), "set SANDBOX_ROOT to a directory on a local disk"
		return c
	}
	c.Detail = strconv.FormatUint(free>>20, 10) + " MB free at " + root
	switch {
	case free < 64<<20:
		c.Status, c.Fix = sandbox.Fail, "free some space, or set SANDBOX_ROOT to a directory on another disk"
	case free < 1<<30:
		c.Status, c.Fix = sandbox.Warn, "free some space, or set SANDBOX_ROOT to a directory on another disk"
	}
	return c
}

func (h Host) text(path string) string {
	p, err := h.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(p)
}

func (h Host) line(path string) string {
	s, _, _ := strings.Cut(h.text(path), "\n")
	return strings.TrimSpace(s)
}
