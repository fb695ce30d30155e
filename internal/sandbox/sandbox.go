// Package sandbox is the contract between the program and a way to isolate code.
//
// A backend (bubblewrap jail, Docker, ...) implements [Backend]; everything that happens inside a sandbox
// is done by the agent, which a backend merely starts. The package knows no MCP, no HTTP, no sessions,
// and imports only the standard library.
package sandbox

import (
	"context"
	"io"
	"time"
)

// Backend starts sandboxes. It is safe for concurrent use.
type Backend interface {
	// Start returns when the agent inside is ready: its hello has been read and checked.
	// Cancelling ctx aborts the start only; it has no effect on a sandbox that was returned.
	// On error nothing is left behind: no process, mount, cgroup, container or directory.
	// Errors that a person can fix are of type *Error.
	Start(ctx context.Context, spec Spec) (Sandbox, error)
}

// Sandbox is one started, isolated process tree. Its methods are safe for concurrent use.
type Sandbox interface {
	// ID is the Spec's ID; or, of a sandbox that was started before it was asked for, its own.
	ID() string
	// Conn is the duplex stream to the agent, positioned after the agent's hello. It is always the same
	// value; a Read in progress ends with an error when the sandbox ends.
	Conn() io.ReadWriteCloser
	// Wait blocks until the sandbox has ended and everything of it is gone, and says why it ended.
	// Its error is ctx's alone.
	Wait(ctx context.Context) (Exit, error)
	// Close kills everything inside, unblocks Conn and Wait, and returns when nothing is left.
	// It is idempotent.
	Close(ctx context.Context) error
}

// Spec is what cannot change on a started sandbox. What differs per run travels with the run.
type Spec struct {
	ID        string // unique per start, [a-z0-9-], at most 48 bytes
	Session   string // the session's key (for labels); opaque
	SessionID string // the id the caller chose (for contract 4's label); hostile
	Runner    string // the runner's name (for labels and logs)
	Image     string // the image to start, for backends that have images
	Wrapper   string // host directory of an environment that isolates itself, for the backend that starts those; else empty
	Workspace string // host directory that becomes /data, /mnt/data and /workspace
	Moves     bool   // it will be renamed while the sandbox is there; a backend that could not follow answers errors.ErrUnsupported
	Mounts    []Mount
	Network   bool
	Forward   bool // ForwardAddr inside leads to the server, as dial streams
	Limits    Limits
	Zygotes   []Zygote // those that its runs may come from, for backends that can share them; else runs start their own
}

// Zygote is an interpreter that imports libraries once and forks a process for each run. It has the fields
// of wire.Zygote.
type Zygote struct {
	Name    string
	Argv    []string // the path of Source is added
	Env     map[string]string
	Reads   []string // prefixes of the variables that it reads while it starts
	PerRun  []string // variables among them that a run may set
	Source  []byte
	Preload []string // modules to import
	OnUse   []string // modules to import once a run has mentioned them
}

// ForwardAddr is where a process inside reaches the server, if the Spec says Forward.
const ForwardAddr = "127.0.0.1:8099"

// Mount is a host path that appears read-only inside.
type Mount struct {
	Source string
	Target string
}

// Limits hold for the whole sandbox and are enforced from outside it. Zero means no limit.
type Limits struct {
	MemoryBytes int64
	CPUs        float64
	PIDs        int
	TmpBytes    int64 // size of a run's private /tmp, and of its /dev/shm
	FileBytes   int64 // largest file a process may write
}

// Exit says why a sandbox ended.
type Exit struct {
	Cause Cause
	// Detail is one line for the log, for example what bubblewrap printed last.
	Detail string
}

// Cause is the machine-readable reason why something ended other than by its own exit.
// The empty Cause means: it ended by itself.
type Cause string

// The causes of design and API. They appear verbatim in results.
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

// Error is a failure of isolation that a person can mend.
type Error struct {
	Op  string // what was tried, for example "start bubblewrap"
	Err error
	Fix string // the exact thing to do, for example a command; may be empty

	// NetworkOnly says that the same sandbox starts without network.
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
	Fix    string // what to do when Status is not OK
}

// Status of a Check.
type Status int

// A Warn leaves runs possible, with something missing; a Fail does not.
const (
	OK Status = iota
	Warn
	Fail
)

// Prober is implemented by backends that can say whether they work here.
type Prober interface {
	// Probe tries the real thing (it starts a sandbox) and reports each part of it.
	// Runs are possible if no Check has failed.
	Probe(ctx context.Context) []Check
}

// Warmer is implemented by backends whose sandboxes share something that takes time to make.
type Warmer interface {
	// Warm makes it for sandboxes like the one described, ahead of the first. It does not wait.
	Warm(spec Spec)
}

// Preparer is implemented by backends that can start a sandbox before it is known which workspace it is for.
type Preparer interface {
	// Prepare is Start for a Spec without a Workspace. Where that cannot be done its error is errors.ErrUnsupported.
	Prepare(ctx context.Context, spec Spec) (Prepared, error)
}

// Prepared is a sandbox without a workspace. It cannot run anything before it has one.
type Prepared interface {
	Sandbox
	// Attach makes a host directory the sandbox's workspace. It is called once; after an error, which is
	// errors.ErrUnsupported where it will never succeed, the sandbox must be closed.
	Attach(ctx context.Context, workspace string) error
}

// Furnisher is implemented by backends that have sandboxes ready on directories that have no name yet.
type Furnisher interface {
	// Furnish makes a workspace of such a directory, by one rename: empty, of the right owner, and with a sandbox on it that a Start
	// with that Workspace may return. It reports whether it did; what is at path already stays.
	Furnish(path string) bool
}

// Reaper is implemented by backends whose sandboxes can leave traces when the server is killed.
type Reaper interface {
	// Reap removes what the instance left behind. The instance is known to be dead.
	Reap(ctx context.Context, instance string) error
}

// Sweeper is implemented by backends whose traces outlive even the directory of the instance that left them.
type Sweeper interface {
	// Sweep removes what this backend's installation has left where no living instance has a use for it.
	Sweep(ctx context.Context, alive func(instance string) bool) error
}

// Usage is what a sandbox has used so far.
type Usage struct {
	OOMKills    uint64 // processes killed because the memory limit was reached
	PIDs        int    // processes and threads there are
	PIDsRefused uint64 // forks refused because the process limit was reached
}

// Held is what files take up on the file system of a workspace that are deleted but open inside a sandbox: no walk finds them.
type Held struct {
	Bytes int64
	// Hidden says that there may be more: in a process that cannot be looked into, in a mapping, or on its way through a socket.
	Hidden bool
}

// HeldMeter is implemented by sandboxes whose processes can be looked into from outside. Of others, the agent tells.
type HeldMeter interface {
	Held() (Held, error)
}

// Weigher is implemented by sandboxes that can be made to yield the processors to others. The errors of both methods are
// errors.ErrUnsupported where that can never be done.
type Weigher interface {
	// CPUTime is what all processes of the sandbox have used so far.
	CPUTime() (time.Duration, error)
	// Weigh sets the sandbox's weight beside others that want the processors: 1 is that of a new one, 0 the least there is.
	Weigh(share float64) error
	// Forking is how many processes compute at this moment though they have children, and so do their parents.
	Forking() (int, error)
}

// Meter is implemented by sandboxes that can tell their usage. The session reads it before and after a
// run to tell a death by memory limit from any other SIGKILL.
type Meter interface {
	Usage() (Usage, error)
}
