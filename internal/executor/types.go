package executor

import (
	"io"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// Stream names one of a program's two output streams.
type Stream int

// The streams of a program.
const (
	Stdout Stream = iota + 1
	Stderr
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Request is one execution of one piece of code in a caller's session.
type Request struct {
	Session string // the id the caller chose
	Runner  string // a runner's name or alias
	Code    string
	Network bool
	Env     map[string]string
	// Services are outside services that the code may call while it runs.
	Services []ServiceRequest
	// Persistent runs the code in the session's interpreter for the runner, whose variables live on between runs. Such runs
	// wait for each other: a background run for as long as it takes, others for a minute; then they are refused with session_busy.
	Persistent bool
	// Artifacts asks for the files that the run creates or changes, in place of all files. It is refused with session_busy
	// while another run of the session is going, so that nobody else's files are taken for its own.
	Artifacts bool
	// FailedArtifacts lists the artifacts of a run that failed as well.
	FailedArtifacts bool
	// Timeout bounds the run; zero: Config.ExecTimeout.
	Timeout time.Duration
	// Background has Run return when the run has begun, and the run go on. WaitRun tells the rest.
	Background bool
	// Followed keeps more output of a background run, for WaitRun calls that follow it closely.
	Followed bool
	// Handover has Run return after that time, and the run go on as a background run. Zero: never.
	Handover time.Duration
	// Once closes the session with the run.
	Once bool
	// Tag is the caller's own name for the run: RecentRuns has it, for a caller that never learned the run's id. It is not stored.
	Tag string
	// Tool is for the caller's own use: every Result about the run has it.
	Tool string
	// Observer hears about the stages of the run. It may be nil.
	Observer Observer
	// Begun is told the run's id before Run waits for anything. It may be nil.
	Begun func(runID string)
	// Queued is called when the run has to wait for others, whenever one of them has left, and with nil when the wait is over.
	// It must not block. It is not called after Run has returned. It may be nil.
	Queued func(*Queue)
	// Output gets the program's output as it comes, in order, in addition to the Result's. It must
	// not block and must not keep p. It is not called after Run has returned. It may be nil.
	Output func(stream Stream, p []byte)
}

// Observer hears about the stages of one run, in order, from one goroutine. A background run calls it after Run has
// returned. Its methods must not block. A refused request calls none of them, and a run that fails skips the rest.
type Observer interface {
	Started(runID string, r runner.Runner)
	Opened(sessionKey string)
	Ended(res Result)  // the code has ended; res has no files yet
	Listed(res Result) // res is complete; a run that must not list its files skips this
}

// silent is the Observer of a Request without one.
type silent struct{}

func (silent) Started(string, runner.Runner) {}
func (silent) Opened(string)                 {}
func (silent) Ended(Result)                  {}
func (silent) Listed(Result)                 {}

// WaitRequest says how to wait for a run.
type WaitRequest struct {
	Timeout time.Duration                 // how long at most
	Cursor  int64                         // of the Result before; zero: from the beginning
	Output  func(stream Stream, p []byte) // as a Request's, from now on
	Queued  func(*Queue)                  // as a Request's; of a run that waits already it is told at once
	// Follow returns as soon as there is output after Cursor. It sees runs of this process alone; others are waited for.
	Follow bool
}

// Queue is what a run waits for: the run of the same session and interpreter that is going.
type Queue struct {
	RunID   string
	Tool    string
	Running time.Duration // how long it has been going
	Ahead   int           // runs that come first, that one included
}

// Output is what a program printed from some point on, both streams in the order they came.
type Output struct {
	Data   []byte
	Missed int64    // bytes before Data that are no longer kept
	Stderr [][2]int // the parts of Data that came from stderr: from and up to
	Cursor int64    // where the next part begins
}

// Result is how a run ended. A failing program is a Result, not an error.
type Result struct {
	// Running is true while the run goes on. Then the fields that tell how it ended are zero.
	Running bool
	// Queued is what the run waits for. It is not nil while a run that is Running has not begun for that reason.
	Queued *Queue `json:",omitempty"`
	// TimeLeft is the most that the code may still take, of a run that is Running.
	TimeLeft time.Duration `json:"-"`
	// Recent is what was printed since the cursor that was given; of background runs only.
	Recent Output

	RunID    string
	Session  string
	Runner   string // the runner's name, never an alias
	Tool     string // the request's
	Once     bool   // the request's
	ExitCode int
	Signal   int // what ended the program, 0 when it exited by itself
	Cause    sandbox.Cause
	// NotStarted is true when it is certain that no line of the code was executed; it is set only with
	// Cause sandbox_lost or cancelled.
	NotStarted  bool
	Stopped     bool   // the server stopped and ended the run; Cause is sandbox_lost
	callerFull  bool   // all sessions of the caller together hold as much as they may
	oomKilled   bool   // a process was killed at the memory limit, and the run went on
	callerBytes int64  // what they may, where that bound the size of the run's files; otherwise zero
	diskShort   bool   // the run was stopped because the file system that holds /data is nearly full
	diskFull    bool   // the file system that holds /data has hardly any space left
	Hint        string // one sentence on what to do about a known failure; may be empty

	// Each stream is whole, or its head and tail with a line between them that says how much is missing.
	Stdout, Stderr                   []byte
	StdoutTruncated, StderrTruncated bool
	stdoutTotal, stderrTotal         int64 // what was printed, of a Result that was not stored

	Started     time.Time
	Duration    time.Duration
	Timeout     time.Duration // what the run was allowed
	MaxRSSBytes int64

	// Files are the workspace's files, newest first, whether the run succeeded or not. Where the request asks for artifacts,
	// they are those alone, and only of a run with exit code 0 unless it asks for FailedArtifacts.
	Files          []FileLink
	FilesTruncated bool

	// Displays are what the code showed beside its output, such as plots. Images are files, too.
	Displays []Display
	// DisplaysDropped counts those that are not in Displays because the server had no memory for them.
	DisplaysDropped int `json:",omitempty"`
	// DisplaysBeyond counts those that are more than a run may show.
	DisplaysBeyond int `json:",omitempty"`
	Persistent     bool
	// Of a persistent run:
	StateLost bool // the interpreter has ended, and its variables are gone
	Forgotten bool // the interpreter of earlier runs had ended before this one, which started without their variables
	Evicted   bool // that was to make room for other sessions
	Switched  bool // the run before used the session's other interpreter, with or without network, whose variables this one does not have
	// Preemption says what the caller held when the run was stopped for another one; Cause is preempted.
	Preemption *session.Preemption
	Operator   bool // the operator of the server ended the run; Cause is cancelled
	Network    bool // the request's
}

// Display is something that code showed.
type Display struct {
	MIME string
	// Data and Plain are what Content returns, of a Result that was stored.
	Data  []byte `json:",omitempty"`
	File  string `json:",omitempty"` // the workspace's file that has an image, empty where there is none
	Plain []byte `json:",omitempty"`

	kept *shown // shared by the copies of a Result of this process
}

// Content returns what was shown, and the part of stdout in whose place it may be shown, byte for byte: nil if nothing was
// printed for it. Both are nil of an image that is too large to be kept twice, and when the server needed the memory.
func (d Display) Content() (data, plain []byte) {
	if d.kept == nil {
		return d.Data, d.Plain
	}
	d.kept.mu.Lock()
	defer d.kept.mu.Unlock()
	return d.kept.data, d.kept.plain
}

// Dropped reports whether the server needed the memory of what was shown.
func (d Display) Dropped() bool { return d.kept != nil && d.kept.isDropped() }

// TimeoutMessage is contract 4's sentence about a run with the cause timeout.
func (r Result) TimeoutMessage() string {
	return "Execution timed out after " + seconds(r.Timeout)
}

// Success reports whether the program ended by itself with exit code 0.
func (r Result) Success() bool {
	return r.ExitCode == 0 && r.Signal == 0 && r.Cause == ""
}

// Dropped returns how many displays are lost because the server needed the memory. Images that are files are not.
func (r Result) Dropped() int {
	n := r.DisplaysDropped
	for _, d := range r.Displays {
		if d.File == "" && d.Dropped() {
			n++
		}
	}
	return n
}

// FileLink is a file of a session's workspace with the address it can be downloaded from.
type FileLink struct {
	workspace.File
	Session string
	URL     string
}

// Artifact is a file with what is in it.
type Artifact struct {
	FileLink
	Content []byte
}

// SessionInfo is what there is to say about a session in a list of them.
type SessionInfo struct {
	ID        string
	LastUsed  time.Time // to the minute, of a session that this server has not used
	Files     int
	Bytes     int64
	MoreFiles bool // there are more than were counted
	Live      bool // it has a sandbox now, in this server
}

// DataPath is where a file of the workspace is inside the sandbox, as contract 4 names it.
func DataPath(name string) string { return "/mnt/data/" + name }

// UploadRequest is a file to put into a caller's session.
type UploadRequest struct {
	Session   string
	Name      string // as the client gave it; see workspace.CleanName
	Content   io.Reader
	Overwrite bool
}

// Code is the machine-readable kind of an Error.
type Code = string

// The codes of an Error. They appear verbatim in tool results.
const (
	CodeInvalidID          Code = "invalid_id"
	CodeInvalidPath        Code = "invalid_path"
	CodeInvalidEnvironment Code = "invalid_environment"
	CodeUnknownRunner      Code = "unknown_runner"
	CodeCodeTooLarge       Code = "code_too_large"
	CodeFileExists         Code = "file_exists"
	CodeFileTooLarge       Code = "file_too_large"
	CodeQuotaExceeded      Code = "quota_exceeded"
	CodeDiskFull           Code = "disk_full" // the server's, whatever the quota
	CodeMaxSessions        Code = "max_sessions"
	CodeBusy               Code = "busy" // the server; the same call works later, see RetryAfter
	CodeSessionBusy        Code = "session_busy"
	CodeSessionNotFound    Code = "session_not_found"
	CodeNotFound           Code = "not_found" // of a file
	CodeFileBusy           Code = "file_busy" // code holds a lease on it
	CodeArtifactTooLarge   Code = "artifact_too_large"
	CodeBackendUnavailable Code = "backend_unavailable"
	CodeNetworkDenied      Code = "network_denied"
	CodeNotPersistent      Code = "not_persistent" // of a runner
	CodeLinkExpired        Code = "link_expired"   // of an upload
	CodeLinksPermanent     Code = "links_permanent"
	CodeRunNotFound        Code = "run_not_found"
	CodeRunElsewhere       Code = "run_elsewhere" // it goes on in another process
	CodeInvalidTimeout     Code = "invalid_timeout"

	CodeUnknownService      Code = "unknown_service"
	CodeInvalidServices     Code = "invalid_services" // what a run asks of them
	CodeServiceNotConnected Code = "service_not_connected"
)

// Error is a refusal that the caller can do something about, or that the operator can.
// Any other error of this package is the server's own failure.
type Error struct {
	Code    Code
	Message string // for the caller; holds nothing secret
	Err     error  // the reason, for the log; may be nil

	// Of artifact_too_large: the file that is.
	SizeBytes   int64
	DownloadURL string

	// Of busy: when to try again.
	RetryAfter time.Duration

	// Of service_not_connected: where the caller connects it.
	ConnectURL string
}

func (e *Error) Error() string { return e.Message }

func (e *Error) Unwrap() error { return e.Err }
