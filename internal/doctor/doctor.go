// Package doctor examines the host and says what prevents code from being isolated, and how to fix
// it.
//
// It knows what commonly goes wrong on a Linux machine. The backend's own probe finds out whether a
// sandbox really starts, and package runner which interpreters exist; doctor explains.
package doctor

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
)

// Host is the machine. System returns the real one.
type Host struct {
	OS       string
	UID      int           // of the server's user
	Outer    userns.Status // of the server's outer namespace
	Server   string        // path of the server's program
	ReadFile func(path string) ([]byte, error)
	Exists   func(path string) bool
	Writable func(path string) bool
	LookPath func(program string) (string, error)
	// Output runs a program and returns what it printed to stdout and stderr.
	Output func(ctx context.Context, program string, args ...string) (string, error)
	// Free returns the free bytes of the file system of path, which may not exist yet.
	Free func(path string) (uint64, error)
	// Owner returns the user id to whom a file belongs.
	Owner func(path string) (uid int, err error)
}

// AppArmorProfile lets a program make user namespaces on Ubuntu 24.04 and newer, which restrict
// them.
func AppArmorProfile(name, program string) string {
	return fmt.Sprintf(`abi <abi/4.0>,
include <tunables/global>

profile %s %s flags=(unconfined) {
  userns,
  include if exists <local/%[1]s>
}
`, name, program)
}

// loadProfile is the command that installs an AppArmorProfile.
func loadProfile(name, program string) string {
	return fmt.Sprintf("sudo tee /etc/apparmor.d/%s <<'END' && sudo apparmor_parser -r /etc/apparmor.d/%[1]s\n%[2]sEND",
		name, AppArmorProfile(name, program))
}

// Check examines the host for a server that stores its data in root. Fix the first failure in the
// list first.
func (h Host) Check(ctx context.Context, root string) []sandbox.Check {
	if h.OS != "linux" {
		return []sandbox.Check{fail("system", "the jail does not run on "+h.OS,
			"start Docker Desktop or another engine, and set SANDBOX_BACKEND to docker or auto")}
	}
	bwrap, try := h.bubblewrap(ctx)
	return []sandbox.Check{h.kernel(), h.container(try), h.userNamespaces(), h.appArmor(try), bwrap, h.outerNamespace(try), h.network(), h.cgroups(), h.disk(root)}
}

// CheckDisk is the part of Check that also matters for a container engine.
func (h Host) CheckDisk(root string) []sandbox.Check {
	if h.Free == nil {
		return nil
	}
	return []sandbox.Check{h.disk(root)}
}

// CheckCache reports what keeps a server from filling its cache of packages in dir, which need not
// exist: rights, or the disk if the cache holds some bytes and may have limit. keys is a directory
// that the server's user has made.
func (h Host) CheckCache(dir, keys string, held, limit int64) (checks []sandbox.Check) {
	const name = "package cache"
	if h.Free == nil {
		return nil
	}
	parent := dir
	for !h.Exists(parent) && parent != path.Dir(parent) {
		parent = path.Dir(parent)
	}
	for _, d := range []string{parent, path.Join(dir, "files"), path.Join(dir, "tmp")} {
		// Root can write anywhere, so its doctor compares the owners.
		owner, err := h.Owner(d)
		user, err2 := h.Owner(keys)
		foreign := h.UID == 0 && err == nil && err2 == nil && owner != user
		switch fix := "make it writable for the server's user: sudo chown -R --reference=" + keys + " " + d; {
		case !h.Exists(d):
			continue
		case !h.Writable(d):
			return []sandbox.Check{fail(name, d+" is not writable, so the server does not start with packages", fix)}
		case foreign:
			return []sandbox.Check{warn(name, d+" belongs to another user than the server's keys: a server of that user does not start with packages", fix)}
		}
	}
	free, err := h.Free(dir)
	if need := max(limit-held, 0); err == nil && free < uint64(need) {
		return []sandbox.Check{warn(name, fmt.Sprintf("%d MB free at %s, but the cache holds %d MB and may have %d MB (packages.cacheBytes)", free>>20, dir, held>>20, limit>>20),
			"free some space, set a smaller packages.cacheBytes in SANDBOX_CONFIG, or put "+dir+" on another disk")}
	}
	return nil
}

func pass(name, detail string) sandbox.Check {
	return sandbox.Check{Name: name, Detail: detail}
}

func warn(name, detail, fix string) sandbox.Check {
	return sandbox.Check{Name: name, Status: sandbox.Warn, Detail: detail, Fix: fix}
}

func fail(name, detail, fix string) sandbox.Check {
	return sandbox.Check{Name: name, Status: sandbox.Fail, Detail: detail, Fix: fix}
}

func (h Host) kernel() sandbox.Check {
	release := h.line("/proc/sys/kernel/osrelease")
	if older(release, 4, 18) {
		return fail("kernel", "Linux "+release, "use a kernel of 4.18 or newer")
	}
	return pass("kernel", "Linux "+release)
}

// older reports whether a version is before major.minor. A version that cannot be read is not.
func older(version string, major, minor int) bool {
	var a, b int
	n, _ := fmt.Sscanf(version, "%d.%d", &a, &b)
	return n == 2 && (a < major || a == major && b < minor)
}

func (h Host) container(try attempt) sandbox.Check {
	kind := h.containerKind()
	if kind == "" {
		return pass("container", "not inside one")
	}
	seccomp := "no seccomp filter"
	if strings.Contains(h.text("/proc/self/status"), "Seccomp:\t2") {
		seccomp = "a seccomp filter"
	}
	detail := "inside " + kind + ", with " + seccomp
	if try != failed { // the container is not the problem
		return pass("container", detail)
	}
	fix := strings.ToLower(kind) + " run --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined …"
	if kind == "Kubernetes" {
		fix = "give the container securityContext: {seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}, procMount: Unmasked} and hostUsers: false"
	}
	return fail("container", detail+", and bubblewrap cannot make its namespaces there", fix)
}

// containerKind looks at marker files, the cgroup's name and the mount of /etc/hosts. Other mounts
// mention containers also on a machine that merely runs them.
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
	const name, sysctl = "user namespaces", "echo %s | sudo tee /etc/sysctl.d/60-userns.conf && sudo sysctl --system"
	switch limit := h.line("/proc/sys/user/max_user_namespaces"); {
	case limit == "":
		return fail(name, "the kernel does not have them", "use a kernel with CONFIG_USER_NS")
	case limit == "0":
		return fail(name, "switched off (user.max_user_namespaces = 0)", fmt.Sprintf(sysctl, "user.max_user_namespaces=15000"))
	case h.line("/proc/sys/kernel/unprivileged_userns_clone") == "0":
		return fail(name, "for root only (kernel.unprivileged_userns_clone = 0)", fmt.Sprintf(sysctl, "kernel.unprivileged_userns_clone=1"))
	default:
		return pass(name, "allowed, up to "+limit)
	}
}

// restriction is 1 if AppArmor lets only programs with a profile make user namespaces.
const restriction = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"

func (h Host) appArmor(try attempt) sandbox.Check {
	const name = "AppArmor"
	switch profile := h.Exists("/etc/apparmor.d/bwrap"); {
	case h.line(restriction) != "1":
		return pass(name, "does not restrict user namespaces")
	case try == worked && h.UID != 0:
		return pass(name, "restricts user namespaces, and lets bubblewrap make them")
	case profile && try == failed:
		return warn(name, "restricts user namespaces; /etc/apparmor.d/bwrap makes an exception", "load the profile: sudo apparmor_parser -r /etc/apparmor.d/bwrap")
	case profile:
		return pass(name, "restricts user namespaces; /etc/apparmor.d/bwrap makes an exception")
	}
	// Success as root proves nothing: the server starts bubblewrap as an unprivileged user.
	return fail(name, "restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns = 1), as on Ubuntu 24.04",
		loadProfile("bwrap", "/usr/bin/bwrap"))
}

// outerNamespace reports what an ordinary user's server lacks in comparison with root's.
func (h Host) outerNamespace(try attempt) sandbox.Check {
	const name = "outer namespace"
	problem, fix := h.Outer.Explain()
	switch {
	case h.UID == 0:
		return pass(name, "a root server needs none")
	case h.Outer.Inside, problem == "": // the backend reports whether sandboxes have ids of their own
		return pass(name, "the server runs in a user namespace of its own")
	}
	if try == worked && h.line(restriction) == "1" {
		fix = loadProfile("mcp-code-sandbox", h.Server)
	}
	return warn(name, "none, so new sessions start slower, each with its own copy of Python's libraries: "+problem, fix)
}

// attempt is whether bubblewrap could make a sandbox's namespaces as this user.
type attempt int

const (
	notTried attempt = iota
	failed
	worked
)

func (h Host) bubblewrap(ctx context.Context) (sandbox.Check, attempt) {
	const name = "bubblewrap"
	path, err := h.LookPath("bwrap")
	if err != nil {
		return fail(name, "not installed", "sudo apt-get install bubblewrap"), notTried
	}
	version, err := h.Output(ctx, path, "--version")
	if err != nil {
		return fail(name, path+" does not run: "+err.Error(), "sudo apt-get install --reinstall bubblewrap"), notTried
	}
	version = strings.TrimSpace(strings.TrimPrefix(version, "bubblewrap"))
	detail := version + " at " + path
	if older(version, 0, 8) {
		return fail(name, detail, "install bubblewrap 0.8.0 or newer (Debian 12, Ubuntu 24.04)"), notTried
	}
	out, err := h.Output(ctx, path, "--unshare-user", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true")
	if err != nil {
		return fail(name, detail+", but it fails: "+strings.TrimSpace(out), "fix the container, user namespaces or AppArmor as shown above"), failed
	}
	return pass(name, detail), worked
}

func (h Host) network() sandbox.Check {
	path, err := h.LookPath("slirp4netns")
	switch {
	case err != nil:
		return warn("network", "slirp4netns is not installed: runs with network: true are refused", "sudo apt-get install slirp4netns")
	case !h.Exists("/dev/net/tun"):
		return warn("network", "/dev/net/tun is missing: runs with network: true are refused", "sudo modprobe tun (in a container: --device /dev/net/tun)")
	}
	return pass("network", path)
}

const cgroupMount = "/sys/fs/cgroup"

// ownCgroups returns the paths of this process's cgroups by controller. The key of version 2 is "".
func (h Host) ownCgroups() map[string]string {
	own := map[string]string{}
	for line := range strings.Lines(h.text("/proc/self/cgroup")) {
		if parts := strings.SplitN(strings.TrimSpace(line), ":", 3); len(parts) == 3 {
			for controller := range strings.SplitSeq(parts[1], ",") {
				own[controller] = strings.TrimSuffix(parts[2], "/")
			}
		}
	}
	return own
}

func (h Host) cgroups() sandbox.Check {
	const (
		name     = "cgroups"
		fallback = "limited by rlimits only, CPU and buffers of sockets not at all"
		fix      = "start the server as root, as a service with Delegate=yes, or in a login session, where it asks systemd for a cgroup (XDG_RUNTIME_DIR must be set)"
	)
	own := h.ownCgroups()
	version, problem := "v2", "without "
	usable := h.usableV1
	if h.Exists(cgroupMount + "/cgroup.controllers") {
		dir := cgroupMount + own[""]
		if !h.Writable(dir) {
			return warn(name, "v2, not writable: memory and processes are "+fallback, fix)
		}
		have := strings.Fields(h.text(dir + "/cgroup.controllers"))
		usable = func(_ map[string]string, controller string) bool { return slices.Contains(have, controller) }
	} else {
		version, problem = "v1", "not writable: "
	}
	missing := slices.DeleteFunc([]string{"memory", "pids", "cpu"}, func(controller string) bool { return usable(own, controller) })
	switch {
	case len(own) == 0:
		return warn(name, "none: memory and processes are "+fallback, fix)
	case version == "v2" && slices.Equal(missing, []string{"cpu"}):
		return warn(name, "v2, writable, with memory and pids, but without cpu: the CPU time of sandboxes is not limited",
			"sudo systemctl edit user@.service, add the lines [Service] and Delegate=cpu memory pids, and log in again")
	case len(missing) > 0:
		return warn(name, version+", "+problem+strings.Join(missing, ", ")+": "+fallback, fix)
	case version == "v1" && !h.limitsTCP(own):
		return warn(name, "v1, writable, but the kernel has no memory.kmem.tcp.limit_in_bytes: TCP buffers do not count as memory, and a sandbox can hold any amount",
			"boot with cgroup v2: systemd.unified_cgroup_hierarchy=1 on the kernel's command line")
	}
	return pass(name, version+", writable, with memory, pids and cpu")
}

// usableV1 reports whether a controller of version 1 is writable. A container sees its own subtree
// as the root of the mount.
func (h Host) usableV1(own map[string]string, controller string) bool {
	path, ok := own[controller]
	return ok && (h.Writable(cgroupMount+"/"+controller+path) || h.Writable(cgroupMount+"/"+controller))
}

// limitsTCP reports whether version 1 can limit TCP buffers, which its memory limit does not cover.
func (h Host) limitsTCP(own map[string]string) bool {
	const mount, file = cgroupMount + "/memory", "/memory.kmem.tcp.limit_in_bytes"
	return h.Exists(mount+own["memory"]+file) || h.Exists(mount+file)
}

func (h Host) disk(root string) sandbox.Check {
	const name, fix = "disk", "free some space, or set SANDBOX_ROOT to a directory on another disk"
	free, err := h.Free(root)
	if err != nil {
		return warn(name, err.Error(), "set SANDBOX_ROOT to a directory on a local disk")
	}
	detail := strconv.FormatUint(free>>20, 10) + " MB free at " + root
	switch {
	case free < 64<<20:
		return fail(name, detail, fix)
	case free < 1<<30:
		return warn(name, detail, fix)
	}
	return pass(name, detail)
}

func (h Host) text(path string) string {
	p, err := h.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(p)
}

// line returns the first line of a file.
func (h Host) line(path string) string {
	s, _, _ := strings.Cut(h.text(path), "\n")
	return strings.TrimSpace(s)
}
