// Package confine holds the kernel mechanisms that isolate the processes of a run: seccomp filters,
// Landlock domains, capabilities, resource limits and mounts. The agent and run-init put them
// together; this package knows neither runs nor the server.
package confine

// RunsDir holds a private directory for each run where runs share a pid namespace. The backend
// mounts a tmpfs there that the sandbox's user can write to. It must not lie below /tmp, which
// every run may use: a Landlock rule for a directory covers everything below it.
const RunsDir = "/.runs"

// HiddenProc lists the entries of /proc that reveal or change the host. No run may see them. A
// kernel may lack some of them.
func HiddenProc() []string {
	return []string{
		"acpi", "asound", "bus", "cmdline", "config.gz", "cpuinfo_cur_freq", "diskstats", "dma", "driver", "fs",
		"interrupts", "iomem", "ioports", "irq", "kallsyms", "kcore", "key-users", "keys", "kmsg", "kpagecgroup",
		"kpagecount", "kpageflags", "latency_stats", "locks", "modules", "mtrr", "partitions", "pressure", "sched_debug",
		"scsi", "slabinfo", "softirqs", "swaps", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo",
		"zoneinfo",
	}
}
