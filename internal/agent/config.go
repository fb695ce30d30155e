package agent

// OwnThreads is how many threads the agent and the inits of a few runs have. Backends grant them on top of
// the limit of processes, which is meant for the code.
const OwnThreads = 64

// RunsDir is where the agent of a sandbox without capabilities keeps a private directory for each run. The
// backend mounts a tmpfs there that the sandbox's uid can write to. It cannot lie below /tmp, which every run may use
// whole: Landlock grants a directory with all that is below it.
const RunsDir = "/.runs"

// Config is what the backend tells the agent when it starts it, as JSON in its last argument.
type Config struct {
	// Unreachable lists networks (CIDR) to which no packet may go, whatever the default route.
	Unreachable []string `json:"unreachable,omitempty"`
	// Forward makes the agent listen on sandbox.ForwardAddr and carry connections to the server.
	Forward bool `json:"forward,omitempty"`
	// DataBytes and Processes are rlimits for every process of a run, for where there is no cgroup.
	DataBytes uint64 `json:"data_bytes,omitempty"`
	Processes uint64 `json:"processes,omitempty"`
	// NoZygote says that there is too little memory for one.
	NoZygote bool `json:"no_zygote,omitempty"`
	// Zygotes announces those that come from outside. They speak on ZygoteFD and the descriptors after it.
	Zygotes []Adopted `json:"zygotes,omitempty"`
	// Expect says that the workspace comes later, on WorkspaceFD.
	Expect *Expected `json:"expect,omitempty"`
}

// Expected is a workspace that is not there yet.
type Expected struct {
	TmpBytes int64 `json:"tmp_bytes"` // the size of /tmp of the run that follows it
}

// Adopted is a zygote that the backend provides.
type Adopted struct {
	Name string            `json:"name"`
	Env  map[string]string `json:"env,omitempty"` // what it was started with
	// Reads and PerRun are those of wire.Zygote.
	Reads  []string `json:"reads,omitempty"`
	PerRun []string `json:"per_run,omitempty"`
	// Soon says that it has imported its libraries and needs only come: a run may as well wait for it.
	Soon bool `json:"soon,omitempty"`
}

// HiddenProc are the entries of /proc that tell about the host or act on it: no run may see them. Kernels lack some.
func HiddenProc() []string {
	return []string{
		"acpi", "asound", "bus", "cmdline", "config.gz", "cpuinfo_cur_freq", "diskstats", "dma", "driver", "fs", "interrupts", "iomem", "ioports",
		"irq", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats",
		"modules", "mtrr", "partitions", "pressure", "sched_debug", "scsi", "slabinfo", "softirqs", "swaps",
		"sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo", "zoneinfo",
	}
}
