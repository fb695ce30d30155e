// Package sandbox is the contract between the program and a way to isolate code.
//
// A backend (bubblewrap jail, Docker, ...) implements [Backend]: it starts sandboxes. The agent
// inside each sandbox does everything else. A backend that can do more implements [Preparer],
// [Prober] or [Reaper], and its sandboxes may implement [Meter] and [Weigher].
//
// The package knows no MCP, no HTTP and no sessions. It imports only the standard library.
package sandbox

import (
	"context"
	"errors"
	"io"
	"time"
)

// Backend starts sandboxes. It is safe for concurrent use.
type Backend interface {
	// Start returns when the agent inside has said hello. Cancelling ctx aborts the start, but does
	// not affect a sandbox that was returned. After an error nothing is left: no process, mount,
	// cgroup, container or directory. Errors that a person can fix are of type *Error.
	Start(ctx context.Context, spec Spec) (Sandbox, error)
}

// Preparer is implemented by backends that can start a sandbox before its workspace is known.
type Preparer interface {
	// Prepare is Start for a Spec without a Workspace. A backend makes what sandboxes of one kind
	// share, such as shared zygotes, when it first prepares or starts one. The error is
	// errors.ErrUnsupported if Prepare will never succeed here.
	Prepare(ctx context.Context, spec Spec) (Prepared, error)
}

// Prober is implemented by backends that can check whether they work on this machine.
type Prober interface {
	// Probe starts a sandbox and reports on each part of the start. Code can run if no Check has
	// failed.
	Probe(ctx context.Context) []Check
}

// Reaper is implemented by backends whose sandboxes can leave traces when the server is killed.
type Reaper interface {
	// Reap removes what dead instances of this installation left: all that belongs to an instance
	// for which alive returns false. It never touches what a live instance uses, nor another
	// installation.
	Reap(ctx context.Context, alive func(instance string) bool) error
}

// Sandbox is one started, isolated process tree. Its methods are safe for concurrent use.
type Sandbox interface {
	// ID returns spec.ID. A pooled sandbox keeps the ID it was started with.
	ID() string
	// Conn returns the duplex stream to the agent, positioned after the agent's hello. It always
	// returns the same value. When the sandbox ends, a blocked Read returns an error.
	Conn() io.ReadWriteCloser
	// Wait blocks until the sandbox has ended and nothing of it is left, and reports why it ended.
	// It returns an error only if ctx is done.
	Wait(ctx context.Context) (Exit, error)
	// Close kills everything inside, unblocks Conn and Wait, and returns when nothing is left. It
	// is idempotent.
	Close(ctx context.Context) error
}

// Prepared is a sandbox without a workspace. It cannot run code before Attach.
type Prepared interface {
	Sandbox
	// Attach makes a host directory the sandbox's workspace. It is called once. After an error the
	// sandbox must be closed. The error is errors.ErrUnsupported if Attach will never succeed here.
	Attach(ctx context.Context, workspace string) error
}

// Meter is implemented by sandboxes that the server can measure from outside.
type Meter interface {
	// Usage returns the totals so far. A session compares two of them to tell a process that was
	// killed at the memory limit from one that was killed by any other SIGKILL.
	Usage() (Usage, error)
	// Held measures the deleted files that processes inside keep open. The error is
	// errors.ErrUnsupported if only the agent can tell.
	Held() (Held, error)
}

// Weigher is implemented by sandboxes whose share of the processors can be changed while they run.
// Its methods return errors.ErrUnsupported where the system offers no way to do so.
type Weigher interface {
	// CPUTime returns the CPU time that all processes of the sandbox have used.
	CPUTime() (time.Duration, error)
	// Weigh sets the sandbox's weight relative to others: 1 is the weight of a new sandbox, 0 the
	// lowest.
	Weigh(share float64) error
	// Forking counts the running processes that have both a running parent and a child.
	Forking() (int, error)
}

// Spec describes a sandbox. It holds everything that cannot change once the sandbox has started;
// what differs per run travels with the run.
type Spec struct {
	ID        string // unique per start, [a-z0-9-], at most 48 bytes
	Session   string // the session's key, for labels; opaque
	SessionID string // the id that the caller chose, for contract 4's label; hostile
	Runner    string // the runner's name, for labels and logs
	Image     string // the image to start, for backends that have images
	Wrapper   string // host directory of an environment that isolates itself; else empty
	Workspace string // host directory that is mounted at WorkspacePaths
	Moves     bool   // Workspace will be renamed; a backend that cannot follow returns errors.ErrUnsupported
	Mounts    []Mount
	Network   bool
	Forward   bool // ForwardAddr and names inside lead to the server, as dial streams
	Limits    Limits
	Zygotes   []Zygote // for backends that share zygotes among sandboxes; elsewhere the agent starts its own
	// Prestart is the program of most runs, if it can wait for its code. A sandbox that is prepared
	// starts it for the first run.
	Prestart *Prestart
}

// WorkspaceDir is where code finds its workspace and starts in.
const WorkspaceDir = "/data"

// WorkspacePaths returns every path of the workspace inside a sandbox.
func WorkspacePaths() []string { return []string{WorkspaceDir, "/mnt/data", "/workspace"} }

// ForwardAddr is where a process inside reaches the server, if Spec.Forward is set.
const ForwardAddr = "127.0.0.1:8099"

// ResolverAddr is the name server of a sandbox without network, if Spec.Forward is set. It knows
// only the names that the runs in progress may reach; see wire.Run.
const ResolverAddr = "127.0.0.1:53"

// Zygote describes an interpreter that imports libraries once and forks a process for each run. It
// has the fields of wire.Zygote.
type Zygote struct {
	Name    string
	Argv    []string // the path of Source is appended
	Env     map[string]string
	Reads   []string // prefixes of the variables that it reads while it starts
	PerRun  []string // variables among them that a run may set
	Source  []byte
	Preload []string // modules to import
	OnUse   []string // modules to import once a run has mentioned them
}

// Prestart describes a program that can be started before its code is known.
type Prestart struct {
	Argv   []string
	File   string // the name of the code file
	Env    map[string]string
	Reads  []string // prefixes of the variables that it reads while it starts
	Helper []string // the command of a process that waits beside it
}

// Mount is a host path that appears read-only inside.
type Mount struct {
	Source string
	Target string
}

// Limits apply to the whole sandbox and are enforced from outside it. Zero means no limit.
type Limits struct {
	MemoryBytes int64
	CPUs        float64
	PIDs        int
	TmpBytes    int64 // size of a run's private /tmp, and of its /dev/shm
	FileBytes   int64 // largest file a process may write
}

// Exit reports why a sandbox ended.
type Exit struct {
	Cause  Cause
	Detail string // one line for the log, such as bubblewrap's last message
}

// Cause is the machine-readable reason why something ended other than by its own exit. It is empty
// if it exited by itself.
type Cause string

// The causes appear verbatim in results.
const (
	CauseTimeout     Cause = "timeout"
	CauseCancelled   Cause = "cancelled"
	CauseOutOfMemory Cause = "out_of_memory"
	CauseOutputLimit Cause = "output_limit"
	CauseDiskQuota   Cause = "disk_quota"
	CausePIDsLimit   Cause = "pids_limit"
	CauseKilled      Cause = "killed"
	CausePreempted   Cause = "preempted"
	CauseLost        Cause = "sandbox_lost"
)

// Usage is the usage of a sandbox since its start.
type Usage struct {
	OOMKills    uint64 // processes that the kernel killed at the memory limit
	PIDs        int    // processes and threads at this moment
	PIDsRefused uint64 // forks refused at the process limit
}

// Held is the disk space of files in the workspace's file system that are deleted but still open
// inside a sandbox. Walking the directory tree does not find them.
type Held struct {
	Bytes int64
	// Hidden reports that there may be more: in a process that cannot be inspected, in a mapping,
	// or in transit through a socket.
	Hidden bool
}

// Error is a failure of isolation that a person can fix.
type Error struct {
	Op  string // the operation, such as "start bubblewrap"
	Err error
	Fix string // the exact thing to do, such as a command; may be empty

	// NetworkOnly reports that the same sandbox would start without network.
	NetworkOnly bool
}

func (e *Error) Error() string {
	s := e.Op + ": " + e.Err.Error()
	if e.Fix != "" {
		s += " (fix: " + e.Fix + ")"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Check is one line of doctor's table.
type Check struct {
	Name   string
	Status Status
	Detail string // what was found
	Fix    string // what to do if Status is not OK
}

// Status is the outcome of a Check.
type Status int

// After a Warn, code can run but something is missing. After a Fail, it cannot.
const (
	OK Status = iota
	Warn
	Fail
)

// Failure returns the failed Check of an error.
func Failure(name string, err error) Check {
	c := Check{Name: name, Status: Fail, Detail: err.Error()}
	if known := (*Error)(nil); errors.As(err, &known) {
		c.Detail, c.Fix = known.Op+": "+known.Err.Error(), known.Fix
	}
	return c
}
