package docker

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/agent/confine"
	"mcp-code-sandbox/internal/sandbox"
)

// agentPath is where the agent is inside.
const agentPath = "/.sandbox-agent"

// maskedPaths are what of /proc and /sys tells about the host: the engine's own list, which this one replaces, and more.
func maskedPaths() []string {
	paths := []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
		"/proc/timer_list", "/proc/timer_stats",
		// What is left of /sys is /sys/fs, where the agent reads the container's own limits.
		"/sys/block", "/sys/bus", "/sys/class", "/sys/dev", "/sys/devices", "/sys/firmware", "/sys/hypervisor", "/sys/kernel", "/sys/module", "/sys/power",
	}
	for _, name := range confine.HiddenProc() {
		if path := "/proc/" + name; !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// readonlyPaths are the engine's own list, which setting the masked ones would replace, too, on some engines, and /dev, which
// is the code's own where an engine is rootless. What is mounted below it stays as it is.
var readonlyPaths = []string{"/dev", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

const (
	// maxFiles is how many files a process may have open: what every engine can grant, whatever it was granted itself.
	maxFiles = 4096
	// tmpInodes is how many files /tmp and /dev/shm hold each.
	tmpInodes = 65536
)

// containerName is the name of a sandbox's container: known before there is one.
func containerName(id string) string { return "mcp-sandbox-" + id }

// options is the container for a spec, without what depends on the kind of image.
func (b *Backend) options(spec sandbox.Spec, img image, e *engine) client.ContainerCreateOptions {
	user, _ := e.user()
	closed := false
	cfg := &container.Config{
		Image: img.ID, Hostname: "sandbox", User: user, WorkingDir: "/",
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
		OpenStdin: true, StdinOnce: true, // process 1 sees the end of its stdin when the server dies
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}}, // a program of the image's that the engine would start
		Labels:      b.labels("sandbox"),
	}
	if spec.SessionID != "" { // else it is ready for one
		cfg.Labels[labelSession] = spec.SessionID
	}
	l := spec.Limits
	tmp := "rw,nosuid,nodev,exec,mode=1777"
	if !e.podman { // which does not know these; there the memory limit bounds the number of files, too
		// The ids, because a directory that the image has at the place passes its mode on, whatever is said here.
		uid, gid, _ := strings.Cut(user, ":")
		tmp += ",uid=" + uid + ",gid=" + gid + ",nr_inodes=" + strconv.Itoa(tmpInodes)
	}
	if l.TmpBytes > 0 {
		tmp += ",size=" + strconv.FormatInt(l.TmpBytes, 10)
	}
	host := &container.HostConfig{
		NetworkMode: "none", IpcMode: "none", PidMode: "", UTSMode: "", CgroupnsMode: "private",
		CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true, Init: &closed,
		Tmpfs:       map[string]string{"/tmp": tmp, "/dev/shm": tmp},
		LogConfig:   container.LogConfig{Type: "none"},
		Runtime:     b.cfg.Runtime,
		MaskedPaths: maskedPaths(), ReadonlyPaths: readonlyPaths,
		Resources: container.Resources{
			Memory: l.MemoryBytes, MemorySwap: l.MemoryBytes, // together: no swap on top
			// 1, not 0: the kernel starts the host's crash handler for a process with 0, and not for one with 1.
			Ulimits: []*container.Ulimit{{Name: "core", Soft: 1, Hard: 1}, {Name: "nofile", Soft: 1024, Hard: maxFiles}},
		},
	}
	if l.PIDs > 0 {
		n := int64(l.PIDs)
		host.PidsLimit = &n
	}
	if b.ownKernel() {
		roomForKernel(&host.Resources)
	}
	if l.CPUs > 0 { // not NanoCPUs: the engine refuses more of them than it has
		host.CPUPeriod, host.CPUQuota = 100_000, max(1000, int64(l.CPUs*100_000))
	}
	if e.podman { // it has other words for these, and makes more places writable than were asked for
		host.IpcMode = "private"
		host.SecurityOpt = append(host.SecurityOpt, "mask="+strings.Join(maskedPaths(), ":"))
		for _, path := range []string{"/run", "/var/tmp"} {
			host.Tmpfs[path] = "ro,nosuid,nodev,noexec,size=65536"
		}
		if e.rootless { // where it is the code's own; see readonlyPaths
			host.Tmpfs["/dev"] = "ro,nosuid,noexec,size=65536,mode=755"
		}
	}
	bind := func(source, target string, readonly bool) {
		host.Mounts = append(host.Mounts, mount.Mount{
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
	// The engine would make a volume for each, on its disk and without a limit.
	for _, path := range img.volumes {
		if _, ok := host.Tmpfs[path]; !ok && !slices.Contains(sandbox.WorkspacePaths(), path) {
			host.Tmpfs[path] = tmp
		}
	}
	if spec.Network {
		host.NetworkMode = container.NetworkMode(b.networkName())
	}
	return client.ContainerCreateOptions{Name: containerName(spec.ID), Config: cfg, HostConfig: host}
}

// engineThreads is what a rootless engine and its other containers may have of processes and threads: they are the same user's,
// and the kernel counts by user.
const engineThreads = 2048

// A kernel of the sandbox's own has memory and, for each thread inside, threads on the host, and ends if it gets none. So the engine's
// limit of threads is far above that inside, which the processes carry: that kernel counts those of one sandbox alone.
const (
	kernelMemory      = 128 << 20
	kernelThreads     = 512
	kernelThreadsEach = 6
)

// roomForKernel raises limits that are meant for code by what the kernel of its sandbox takes.
func roomForKernel(r *container.Resources) {
	if r.Memory > 0 {
		r.Memory += kernelMemory
		r.MemorySwap = r.Memory
	}
	if r.PidsLimit != nil {
		*r.PidsLimit = *r.PidsLimit*kernelThreadsEach + kernelThreads
	}
}

// processLimits are the limits that each process carries itself, 0 for none: for an engine without cgroups, as a rootless one is where
// none were delegated to its user. They are weaker, and doctor says so.
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

// labels are those of everything that this instance makes.
func (b *Backend) labels(role string) map[string]string {
	return map[string]string{
		labelApp: appName, labelInstallation: b.cfg.Installation, labelInstance: b.cfg.Instance,
		labelVersion: b.cfg.Version, labelRole: role,
	}
}

// create makes a container. When ctx ends before the engine has answered, the container that may still come of it is removed.
func (b *Backend) create(ctx context.Context, opt client.ContainerCreateOptions) (id string, err error) {
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	b.mu.Lock()
	b.used = true
	b.live[opt.Name] = struct{}{}
	b.mu.Unlock()
	type answer struct {
		id  string
		err error
	}
	made := make(chan answer, 1)
	b.work.Go(func() {
		// Not under ctx: giving the request up would leave open whether there is a container.
		cctx, cancel := timeout(b.ctx, createTimeout)
		defer cancel()
		res, err := b.client.ContainerCreate(cctx, opt)
		made <- answer{res.ID, b.explain(cctx, "make a container", err)}
	})
	select {
	case a := <-made:
		if a.err != nil {
			b.disown(opt.Name)
		}
		return a.id, a.err
	case <-ctx.Done():
		gone := make(chan struct{})
		b.work.Go(func() {
			defer close(gone)
			if a := <-made; a.err == nil {
				b.remove(a.id, opt.Name)
			} else {
				b.disown(opt.Name) // the sweeper finds what an engine that hung makes of it later
			}
		})
		select {
		case <-gone:
		case <-time.After(abandonAfter):
		}
		return "", context.Cause(ctx)
	}
}

// abandonAfter is how long a start that was given up waits for its container to be gone.
const abandonAfter = 3 * time.Second

// disown lets the sweeper remove a container of that name.
func (b *Backend) disown(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.live, name)
}

// remove kills and removes a container, and tries again until the engine says that it is gone, or the backend ends.
func (b *Backend) remove(id, name string) {
	b.unguard(id)
	defer b.disown(name)
	wait := 10 * time.Millisecond
	for said := false; ; {
		err := b.removeOnce(b.ctx, id)
		if err == nil || b.ctx.Err() != nil {
			return
		}
		if wait >= time.Second && !said {
			said = true
			b.log.Warn("a container cannot be removed yet; trying on", "container", name, "error", err)
		}
		select {
		case <-time.After(wait):
		case <-b.ctx.Done():
			return
		}
		wait = min(2*wait, 5*time.Second)
	}
}

// removeOnce returns nil when the container is gone.
func (b *Backend) removeOnce(ctx context.Context, id string) error {
	ctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	_, err := b.client.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	return err // also "removal is already in progress": it is not gone yet
}

// removeAll removes every container of the installation that which says yes to, by its instance and its name.
func (b *Backend) removeAll(ctx context.Context, which func(instance, name string) bool) error {
	lctx, cancel := timeout(ctx, callTimeout)
	defer cancel()
	list, err := b.client.ContainerList(lctx, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelInstallation+"="+b.cfg.Installation),
	})
	if err != nil {
		return b.explain(lctx, "list containers", err)
	}
	var last error
	for _, c := range list.Items {
		name := ""
		if len(c.Names) > 0 {
			name = strings.TrimPrefix(c.Names[0], "/")
		}
		if c.Labels[labelInstallation] != b.cfg.Installation || !which(c.Labels[labelInstance], name) {
			continue
		}
		if err := b.removeOnce(ctx, c.ID); err != nil && !cerrdefs.IsConflict(err) {
			last = err
			continue
		}
		b.log.Info("removed a container that nobody had any more", "container", name, "instance", c.Labels[labelInstance])
	}
	return last
}

// Reap implements sandbox.Reaper: it removes the containers and networks of dead instances, and containers of
// this one that nobody uses, such as those of a start that failed half-way.
func (b *Backend) Reap(ctx context.Context, alive func(instance string) bool) error {
	dead := func(instance string) bool { return instance != b.cfg.Instance && !alive(instance) }
	err := b.removeAll(ctx, func(instance, name string) bool {
		// Checked after the engine has listed them: a container that was started meanwhile is in use.
		b.mu.Lock()
		_, used := b.live[name]
		b.mu.Unlock()
		return dead(instance) || instance == b.cfg.Instance && !used
	})
	return errors.Join(err, b.removeNetworks(ctx, dead))
}
