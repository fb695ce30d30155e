// Package jail isolates with bubblewrap: namespaces, a read-only root of just what is needed, an
// unprivileged uid and a cgroup, and the agent as process 1. It needs no daemon and no root.
//
// The package knows nothing of sessions, runs or languages. It exists on Linux only.
package jail
