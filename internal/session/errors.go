package session

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/session/storage"
	"mcp-code-sandbox/internal/workspace"
)

var (
	// ErrNotFound says that the caller has no session with that id.
	ErrNotFound = errors.New("session not found")
	// ErrMaxSessions says that every sandbox the server may have is in use.
	ErrMaxSessions = errors.New("no session can make room for another one")
	// ErrBusy says that another run of the session is in progress.
	ErrBusy = errors.New("the session is busy: another run is in progress; wait for it to finish")
	// ErrTooManyRuns is an ErrBusy: the session has as many overlapping runs as it may have.
	ErrTooManyRuns = fmt.Errorf("%w; the session already has as many runs as it may", ErrBusy)
	// ErrNotPersistent says that the runner has no interpreter that keeps state between runs.
	ErrNotPersistent = errors.New("this runner cannot keep state between runs")
	// ErrForeign says that the server lacks the ids that a session's files belong to.
	ErrForeign = errors.New("its files belong to ids that this server does not have")
	// ErrClosed says that the manager has been closed, or is draining (see Drain).
	ErrClosed = errors.New("the server is shutting down")

	errEnded   = errors.New("the session has been closed")
	errSlowEnd = errors.New("earlier sandboxes are slow to end")
)

// MaxSessionsError says that every sandbox the server may have is in use and none of them can make
// room. It matches ErrMaxSessions.
type MaxSessionsError struct {
	Running   int           // sessions that run code
	Recent    int           // sessions with an interpreter that was used within EvictIdle
	EvictIdle time.Duration // see Config
	// RunningOwn and RecentOwn are the ids of the caller's own sessions among them, sorted.
	RunningOwn, RecentOwn []string
	// RetryAfter is when the first session can be evicted if it stays idle; zero: one must end
	// first.
	RetryAfter time.Duration
}

func (e *MaxSessionsError) Error() string {
	return fmt.Sprintf("%v (%d run code, %d were used recently)", ErrMaxSessions, e.Running, e.Recent)
}

// Is reports whether target is ErrMaxSessions.
func (e *MaxSessionsError) Is(target error) bool { return target == ErrMaxSessions }

// retryAfter is when a client should try again that was refused with an OverloadError.
const retryAfter = 5 * time.Second

// OverloadError says that the server is too busy to start a sandbox in time. No code was executed.
type OverloadError struct {
	RetryAfter time.Duration
	Err        error // what took too long
}

func overloaded(err error) *OverloadError { return &OverloadError{retryAfter, err} }

func (e *OverloadError) Error() string { return "the server is busy: " + e.Err.Error() }

func (e *OverloadError) Unwrap() error { return e.Err }

// Storage is what a caller's sessions hold on disk, as last measured, and what they may hold.
type Storage = storage.Storage

// CallerError says that a caller has reached a limit of its storage. It matches workspace.ErrQuota.
type CallerError struct {
	Storage
	TooManySessions bool
	TooManyFiles    bool // if neither is set, the bytes are used up
}

func (e *CallerError) Error() string {
	switch {
	case e.TooManySessions:
		return fmt.Sprintf("the caller has %d sessions of at most %d", e.Sessions, e.MaxSessions)
	case e.TooManyFiles:
		return fmt.Sprintf("the caller's sessions hold %d files of at most %d", e.Files, e.MaxFiles)
	}
	return fmt.Sprintf("the caller's sessions hold %d bytes of at most %d", e.Bytes, e.MaxBytes)
}

// Is reports whether target is workspace.ErrQuota.
func (e *CallerError) Is(target error) bool { return target == workspace.ErrQuota }

// DiskError says that the disk is nearly full and that the caller, whose sessions have recently
// grown the most, may not run code for now. It matches syscall.ENOSPC.
type DiskError struct{}

func (*DiskError) Error() string {
	return "the disk is nearly full, and the caller has recently filled it the most"
}

// Is reports whether target is syscall.ENOSPC.
func (*DiskError) Is(target error) bool { return target == syscall.ENOSPC }
