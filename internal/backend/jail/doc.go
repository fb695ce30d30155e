// Package jail isolates with bubblewrap: namespaces, a minimal read-only root, an unprivileged uid,
// a cgroup, and the agent as process 1. It needs no daemon and no root privileges.
//
// The package knows nothing of sessions, runs or languages. It exists on Linux only.
package jail
