// Package session maps (caller, id) to a workspace and to the sandboxes that run code in it.
//
// It starts a sandbox on first use, reuses it for many runs, lets it go when idle or when room is needed,
// and watches each run from outside: time, output, disk. It knows no MCP, no HTTP and no links.
package session

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Caller is who is asking. Two callers never share a session, whatever ids they use.
type Caller struct {
	ID string
}

// Local is the holder of the API token, and the user at the other end of stdio.
var Local = Caller{ID: "local"}

var (
	// ErrNotFound says that the caller has no session of that id.
	ErrNotFound = errors.New("session not found")
	// ErrMaxSessions says that every sandbox the server may have is in use.
	ErrMaxSessions = errors.New("no session can make room for another one")
	// ErrBusy says that another run of the session is in the way.
	ErrBusy = errors.New("the session is busy: another run is in progress; wait for it to finish")
	// ErrTooManyRuns is an ErrBusy that says that the session has as many runs going as it may have.
	ErrTooManyRuns = fmt.Errorf("%w, there are as many as a session may have", ErrBusy)
	// ErrNotPersistent says that the runner has no interpreter that could live on.
	ErrNotPersistent = errors.New("this runner cannot keep state between runs")
	// ErrClosed says that the manager has been closed.
	ErrClosed = errors.New("the server is shutting down")

	errEnded = errors.New("the session has been closed")
)

// maxIDLength is the longest id, in characters.
const maxIDLength = 128

// IDError says what is wrong with a session id that a client chose.
type IDError struct {
	Problem string
}

func (e *IDError) Error() string {
	return "invalid session id: " + e.Problem
}

// CheckID reports, as an *IDError, why id cannot name a session. An id is 1 to 128 printable characters
// without slash, backslash or space; it is neither "." nor ".." and does not start with "~".
func CheckID(id string) error {
	switch {
	case id == "":
		return &IDError{"it is empty; use 1 to 128 printable characters"}
	case len(id) > maxIDLength*utf8.UTFMax, utf8.RuneCountInString(id) > maxIDLength:
		return &IDError{"it is too long; use at most 128 characters"}
	case !utf8.ValidString(id):
		return &IDError{"it is not valid UTF-8"}
	case id == "." || id == "..":
		return &IDError{fmt.Sprintf("%q is reserved; choose another", id)}
	case id[0] == '~':
		return &IDError{`it must not start with "~"`}
	}
	for _, r := range id {
		// IsPrint is false for controls, formatting characters (bidi overrides, zero widths) and every
		// space but U+0020.
		if r == '/' || r == '\\' || r == ' ' || !unicode.IsPrint(r) {
			return &IDError{fmt.Sprintf("the character %q is not allowed; use printable characters without slash, backslash or space", r)}
		}
	}
	return nil
}

// NewID makes an id for a caller who gave none.
func NewID() string {
	var b [6]byte
	rand.Read(b[:]) // never fails
	return "sess_" + hex.EncodeToString(b[:])
}
