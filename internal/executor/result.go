package executor

import (
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

// Result says how a run ended, or what is known while it is Running. A failing program is a Result,
// not an error.
type Result struct {
	Running  bool          // the fields about the end are zero
	Queued   *Queue        `json:",omitempty"` // what a Running run waits for
	TimeLeft time.Duration `json:"-"`          // the most time that a Running run may still take
	Recent   Output        // what a background run printed since the request's cursor

	RunID   string
	Session string
	Runner  string // the runner's name, never an alias
	Tool    string // of the request
	Once    bool   // of the request

	ExitCode int
	Signal   int // the signal that ended the program; 0 if it exited by itself
	Cause    sandbox.Cause
	// NotStarted is true only if no line of the code was executed. It is set only with the causes
	// sandbox_lost and cancelled.
	NotStarted bool
	Stopped    bool   // the server stopped and ended the run; Cause is sandbox_lost
	Hint       string // what to do about a known failure, in a sentence or two; may be empty

	callerFull  bool   // all sessions of the caller together have reached their limit
	callerBytes int64  // the caller's limit, if it bounded the size of the run's files
	oomKilled   bool   // a process was killed at the memory limit and the run continued
	diskShort   bool   // the run was stopped because the disk of /data is nearly full
	unmeasured  string // why the files in /data cannot be measured, and what to do
	diskFull    bool   // the disk of /data is full

	// Each stream is complete, or consists of its head, a line about the omission, and its tail.
	Stdout, Stderr           []byte
	StdoutCut, StderrCut     *Cut   `json:",omitempty"` // what is missing; nil if the stream is complete
	Order                    []Span `json:",omitempty"` // of what was printed and shown; see Pieces
	Spooled                  bool   `json:",omitempty"` // OutputFile has all of it
	OutputURL                string `json:"-"`          // the download link of OutputFile
	stdoutTotal, stderrTotal int64  // bytes printed; not stored

	Started     time.Time
	Duration    time.Duration
	Timeout     time.Duration // of the run
	MaxRSSBytes int64

	// Files are the workspace's files, newest first. If the request asks for Artifacts, they are
	// only those, and only of a run with exit code 0 unless it asks for FailedArtifacts.
	Files          []FileLink
	FilesTotal     int `json:",omitempty"` // how many there are, at least
	FilesTruncated bool

	// Displays are what the code showed in addition to its output, such as plots. Images are also
	// saved as files.
	Displays        []Display
	DisplaysDropped int `json:",omitempty"` // missing because the server had no memory for them
	DisplaysBeyond  int `json:",omitempty"` // missing because a run may show no more

	Persistent bool
	// Of a persistent run:
	StateLost bool // the interpreter has ended, and its variables are gone
	Forgotten bool // the interpreter of earlier runs had ended, and their variables were gone
	Evicted   bool // that interpreter was ended to make room for other sessions
	Switched  bool // the run before used the session's other interpreter, with or without network

	Preemption *session.Preemption // what the caller held when the run was stopped; Cause is preempted
	Operator   bool                // the operator of the server ended the run; Cause is cancelled
	Network    bool                // of the request
	Blocked    []Blocked           `json:",omitempty"` // hosts that the code tried to reach and may not
	Installed  []Package           `json:",omitempty"` // packages that the run added to the session
	// Replaced are packages of the session that are another version of the runner's. The code used
	// them, and Python started slowly. If Outdated, they came or changed after the process had
	// started, which may have loaded another version.
	Replaced []Package `json:",omitempty"`
	Outdated bool      `json:",omitempty"`
	// Conflicts are pip's sentences about versions that do not fit together, after it installed the
	// packages of the request.
	Conflicts []string `json:",omitempty"`
}

// Queue is what a run waits for: the active run of the same session and interpreter.
type Queue struct {
	RunID   string
	Tool    string
	Running time.Duration // how long that run has been active
	Ahead   int           // runs that come first, including that one
}

// setEnd copies how the code ended.
func (r *Result) setEnd(end session.RunResult) {
	r.ExitCode, r.Signal, r.Cause = end.ExitCode, end.Signal, end.Cause
	r.NotStarted, r.MaxRSSBytes = !end.Started, end.MaxRSSBytes
	r.StateLost, r.Forgotten, r.Evicted, r.Switched = end.StateLost, end.Forgotten, end.Evicted, end.Switched
	r.Preemption, r.Operator = end.Preemption, end.Operator
	r.callerFull, r.diskShort, r.oomKilled = end.CallerFull, end.DiskShort, end.OOMKilled
	r.unmeasured = end.Unmeasured
}

// Success reports whether the program ended by itself with exit code 0.
func (r Result) Success() bool {
	return r.ExitCode == 0 && r.Signal == 0 && r.Cause == ""
}

// TimeoutMessage is contract 4's sentence about a run with the cause timeout.
func (r Result) TimeoutMessage() string {
	return "Execution timed out after " + seconds(r.Timeout)
}

// Dropped returns how many displays the server had no memory for. It does not count saved images.
func (r Result) Dropped() int {
	n := r.DisplaysDropped
	for _, d := range r.Displays {
		if d.File == "" && d.Dropped() {
			n++
		}
	}
	return n
}
