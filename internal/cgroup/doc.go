// Package cgroup limits groups of processes by control groups, version 2 or 1, whichever is
// writable, or else in a scope that it gets from systemd. It exists on Linux only and knows nothing
// of bubblewrap.
//
// Libraries for this bring eBPF along, and none can start a process inside a version 1 group: the
// process would first run outside of it.
package cgroup
