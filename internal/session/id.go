package session

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"unicode"
	"unicode/utf8"
)

// Caller identifies who is asking. Two callers never share a session, even if they use the same id.
type Caller struct {
	ID string
}

// Local is the holder of the API token, and the user of a stdio server: the operator.
var Local = Caller{ID: "local"}

// maxIDLength is the length limit of an id, in characters.
const maxIDLength = 128

// IDError says what is wrong with a session id that a client chose.
type IDError struct {
	Problem string
}

func (e *IDError) Error() string {
	return "invalid session id: " + e.Problem
}

// CheckID returns an *IDError if id cannot name a session. An id has 1 to 128 printable characters
// without slash, backslash or space. It is neither "." nor ".." and does not start with "~".
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
		// IsPrint is false for control and formatting characters (bidi overrides, zero widths) and
		// for every space except U+0020.
		if r == '/' || r == '\\' || r == ' ' || !unicode.IsPrint(r) {
			return &IDError{fmt.Sprintf("the character %q is not allowed; "+
				"use printable characters without slash, backslash or space", r)}
		}
	}
	return nil
}

// NewID returns a random id, for a caller that did not choose one.
func NewID() string {
	var b [6]byte
	rand.Read(b[:]) // never fails
	return "sess_" + hex.EncodeToString(b[:])
}

// FilesDir returns the directory of the session's files on this machine.
func (m *Manager) FilesDir(caller Caller, id string) string {
	return filepath.Join(m.cfg.Root, m.Key(caller, id), filesDir)
}

// Key returns the name of the session's directory. It reveals neither the caller nor the id.
func (m *Manager) Key(caller Caller, id string) string {
	mac := hmac.New(sha256.New, m.cfg.InstallationKey)
	for _, s := range []string{"session", caller.ID, id} {
		var n [8]byte // the length keeps ("ab", "c") and ("a", "bc") apart
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		mac.Write(n[:])
		_, _ = io.WriteString(mac, s)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

// isKey reports whether a name can be that of a session's directory.
func isKey(name string) bool {
	sum, err := hex.DecodeString(name)
	return err == nil && len(sum) == sha256.Size
}
