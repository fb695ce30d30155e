package docker

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/sandbox"
)

const (
	// agentPath is where the agent is inside.
	agentPath = "/.sandbox-agent"
	// maxFiles is how many files a process may have open. Every engine can grant that many.
	maxFiles = 4096
	// tmpInodes is how many files /tmp and /dev/shm can each hold.
	tmpInodes = 65536
)

// options describes the container of a spec, except for what depends on the kind of image.
func (b *Backend) options(spec sandbox.Spec, img image, e *engine) client.ContainerCreateOptions {
	user, _ := e.user()
	noInit := false
	cfg := &container.Config{
		Image: img.ID, Hostname: "sandbox", User: user, WorkingDir: "/",
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
		OpenStdin: true, StdinOnce: true, // process 1 sees the end of its stdin when the server dies
		Healthcheck: noHealthcheck(), Labels: b.labels("sandbox"),
	}
	if spec.SessionID != "" { // a pooled sandbox has no session yet
		cfg.Labels[labelSession] = spec.SessionID
	}
	tmp := tmpfsOptions(spec.Limits, user, e)
	host := &container.HostConfig{
		NetworkMode: "none", IpcMode: "none", CgroupnsMode: "private", Runtime: b.cfg.Runtime, Init: &noInit,
		CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true,
		Tmpfs:       map[string]string{"/tmp": tmp, "/dev/shm": tmp},
		LogConfig:   container.LogConfig{Type: "none"},
		MaskedPaths: maskedPaths(), ReadonlyPaths: readonlyPaths,
		Resources: b.resources(spec.Limits),
		Mounts:    b.mounts(spec),
	}
	if e.podman { // it spells these differently, and makes more places writable than it is asked to
		host.IpcMode = "private"
		host.SecurityOpt = append(host.SecurityOpt, "mask="+strings.Join(maskedPaths(), ":"))
		for _, path := range []string{"/run", "/var/tmp"} {
			host.Tmpfs[path] = "ro,nosuid,nodev,noexec,size=65536"
		}
		if e.rootless { // see readonlyPaths
			host.Tmpfs["/dev"] = "ro,nosuid,noexec,size=65536,mode=755"
		}
	}
	// For each volume of the image the engine would create one on its disk, without a limit.
	for _, path := range img.volumes {
		if _, ok := host.Tmpfs[path]; !ok && !slices.Contains(sandbox.WorkspacePaths(), path) {
			host.Tmpfs[path] = tmp
		}
	}
	if spec.Network {
		host.NetworkMode = container.NetworkMode(b.networkName())
	} else { // not the host's name servers. Podman writes no file then, which means the same.
		host.DNS = []netip.Addr{netip.MustParseAddrPort(sandbox.ResolverAddr).Addr()}
		host.DNSSearch, host.DNSOptions = []string{"."}, []string{"timeout:1", "attempts:2"}
	}
	return client.ContainerCreateOptions{Name: containerName(spec.ID), Config: cfg, HostConfig: host}
}

// containerName is the name of a sandbox's container.
func containerName(id string) string { return "mcp-sandbox-" + id }

// noHealthcheck keeps the engine from running a program of the image.
func noHealthcheck() *container.HealthConfig { return &container.HealthConfig{Test: []string{"NONE"}} }

// labels are those of everything that this instance creates.
func (b *Backend) labels(role string) map[string]string {
	return map[string]string{
		labelApp: appName, labelInstallation: b.cfg.Installation, labelInstance: b.cfg.Instance,
		labelVersion: b.cfg.Version, labelRole: role,
	}
}

// ownLabel selects what this installation has created.
func (b *Backend) ownLabel() client.Filters {
	return make(client.Filters).Add("label", labelInstallation+"="+b.cfg.Installation)
}

// maskedPaths lists what in /proc and /sys describes the host: the engine's own list, which this
// one replaces, and more. Only /sys/fs remains of /sys: the agent reads the
// container's limits there.
func maskedPaths() []string {
	paths := []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/firmware", "/sys/hypervisor",
		"/sys/kernel", "/sys/module", "/sys/power",
	}
	for _, name := range confine.HiddenProc() {
		if path := "/proc/" + name; !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// readonlyPaths is the engine's own list, which some engines replace along with the masked one, and
// /dev, which on rootless engines belongs to the code. What is mounted below /dev is not affected.
var readonlyPaths = []string{"/dev", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// tmpfsOptions are the mount options of /tmp and /dev/shm.
func tmpfsOptions(l sandbox.Limits, user string, e *engine) string {
	tmp := "rw,nosuid,nodev,exec,mode=1777"
	if !e.podman { // it does not know these; there the memory limit also bounds the number of files
		// A directory of the image at that path overrides the mode, but not the ids.
		uid, gid, _ := strings.Cut(user, ":")
		tmp += ",uid=" + uid + ",gid=" + gid + ",nr_inodes=" + strconv.Itoa(tmpInodes)
	}
	if l.TmpBytes > 0 {
		tmp += ",size=" + strconv.FormatInt(l.TmpBytes, 10)
	}
	return tmp
}

func (b *Backend) mounts(spec sandbox.Spec) (mounts []mount.Mount) {
	bind := func(source, target string, readonly bool) {
		mounts = append(mounts, mount.Mount{
			Type: mount.TypeBind, Source: b.hostPath(source), Target: target, ReadOnly: readonly,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	for _, target := range sandbox.WorkspacePaths() {
		bind(spec.Workspace, target, false)
	}
	for _, m := range spec.Mounts {
		bind(m.Source, m.Target, true)
	}
	return mounts
}

// A sandbox's own kernel needs memory and several host threads for each thread inside, and dies
// without them. The engine's limits are therefore higher; the limits of the code are set inside.
const (
	kernelMemory      = 128 << 20
	kernelThreads     = 512
	kernelThreadsEach = 6
)

// resources are the limits that the engine enforces.
func (b *Backend) resources(l sandbox.Limits) container.Resources {
	r := container.Resources{
		Memory: l.MemoryBytes,
		// 1, not 0: for a process with 0 the kernel starts the host's crash handler.
		Ulimits: []*container.Ulimit{{Name: "core", Soft: 1, Hard: 1}, {Name: "nofile", Soft: 1024, Hard: maxFiles}},
	}
	pids := int64(l.PIDs)
	if b.ownKernel() {
		if l.MemoryBytes > 0 {
			r.Memory += kernelMemory
		}
		if l.PIDs > 0 {
			pids = pids*kernelThreadsEach + kernelThreads
		}
	}
	r.MemorySwap = r.Memory // memory and swap together: no swap
	if pids > 0 {
		r.PidsLimit = &pids
	}
	if l.CPUs > 0 { // not NanoCPUs: the engine refuses more than it has
		r.CPUPeriod, r.CPUQuota = 100_000, max(1000, int64(l.CPUs*100_000))
	}
	return r
}

// engineThreads is how many processes and threads a rootless engine and its other containers may
// have. They belong to the same user, and the kernel counts by user.
const engineThreads = 2048

// processLimits returns the limits of each single process, 0 for none. They replace those of an
// engine without cgroups, such as a rootless one to which none were delegated. They are weaker;
// doctor warns about it.
func (b *Backend) processLimits(e *engine, l sandbox.Limits) (data, processes int64) {
	if !e.memory {
		data = l.MemoryBytes
	}
	switch {
	case l.PIDs > 0 && b.ownKernel():
		processes = int64(l.PIDs)
	case l.PIDs > 0 && !e.pids:
		processes = int64(l.PIDs) + engineThreads
	}
	return data, processes
}
