// Package userns moves the server of an ordinary user into a user namespace of its own, the outer
// namespace. There it is root, and may start sandboxes as root's server does.
//
// It knows nothing of sandboxes. docs/isolation.md says what the namespace is for.
package userns

import (
	"errors"
	"os"

	"mcp-code-sandbox/internal/sandbox"
)

// Marker is the environment variable by which Enter tells the program that it starts in the
// namespace what it did. See [Adopt].
const Marker = "MCP_CODE_SANDBOX_OUTER_NAMESPACE"

// Status says what became of the outer namespace.
type Status struct {
	// Inside reports that the process is root of an outer namespace.
	Inside bool
	// HasRange reports that sandboxes may have the subordinate ids of the namespace: 1 to MaxID.
	HasRange bool
	// Problem says why the process is outside, or inside without a range. It is nil for root.
	Problem error
}

// MaxID is the highest uid and gid of an outer namespace with a subordinate range.
const MaxID = 65535

// status and the ids outside are those of the process. Adopt and Enter set them, before anything
// else runs.
var (
	status   Status
	uid, gid = os.Geteuid(), os.Getegid()
)

// Current returns the process's status.
func Current() Status { return status }

// Explain returns the problem, and how to solve it, as text.
func (s Status) Explain() (problem, fix string) {
	if known, ok := errors.AsType[*sandbox.Error](s.Problem); ok {
		return known.Err.Error(), known.Fix
	}
	if s.Problem != nil {
		problem = s.Problem.Error()
	}
	return problem, ""
}

// Decline records why the process does not try to enter an outer namespace, and what would change
// that.
func Decline(why, fix string) { status.Problem = problem(errors.New(why), fix) }

func problem(err error, fix string) error {
	return &sandbox.Error{Op: "make an outer namespace", Err: err, Fix: fix}
}

// UID returns the process's effective uid outside the outer namespace: the user whose server it is.
func UID() int { return uid }

// GID is UID for the group.
func GID() int { return gid }
