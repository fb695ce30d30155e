// Package window lets the windows of one user share a server. A window is a stdio process, with one
// client. It joins the server over a Unix socket in the data directory, and the first one starts
// it.
//
// The package carries lines between a window and its server. It knows no MCP, no settings and no
// sandboxes: its callers decide which windows may share (the id of a server), how to start one, and
// what the lines mean. docs/internals.md describes the whole.
package window

import (
	"errors"
	"fmt"
)

// Kinds of lines that a server sends to a window: the first byte of each.
const (
	kindMessage = 'm' // of the protocol between client and server
	kindLog     = 'l' // for the window's stderr
	kindStatus  = 's' // a status, in JSON
)

// hello is the first line that a process sends to a server.
type hello struct {
	Stop bool `json:"stop,omitempty"` // end, instead of serving a window
}

// status is a server's message to a window about itself. An empty one comes first: the server
// answers.
type status struct {
	Ready   bool   `json:"ready,omitempty"`   // messages are served from now on
	Failed  string `json:"failed,omitempty"`  // why the server cannot start
	Stopped bool   `json:"stopped,omitempty"` // the server ends on purpose
}

// ErrUnavailable means that the windows of a data directory cannot share a server: its file system
// has no sockets, for example, or another user owns the place.
var ErrUnavailable = errors.New("no server can be shared")

func unavailable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnavailable, fmt.Errorf(format, args...))
}

// StartError says why a server that a window needs does not start.
type StartError struct{ Reason string }

func (e *StartError) Error() string { return e.Reason }
