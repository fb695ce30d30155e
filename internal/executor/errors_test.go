package executor

import (
	"strings"
	"testing"

	"mcp-code-sandbox/internal/session"
)

// TestDescribeUsed: the message says which limit a user has reached and what to do.
func TestDescribeUsed(t *testing.T) {
	for _, tc := range []struct {
		used session.CallerError
		want string
	}{
		{session.CallerError{Storage: session.Storage{Bytes: 4 << 20, MaxBytes: 5 << 20}}, "Not enough space: your sessions hold 4 MB of the 5 MB that a user of this server may store. Delete files"},
		{session.CallerError{Storage: session.Storage{MaxBytes: 5 << 20}}, "This is more than the 5 MB that a user of this server may store."},
		{session.CallerError{Storage: session.Storage{MaxBytes: 5 << 20, Unmeasured: 1}}, "Not enough space: a session that cannot be measured counts as full, and you have 1. list_sessions says which"},
		{session.CallerError{Storage: session.Storage{Sessions: 3}, TooManySessions: true}, "You have 3 sessions, the most"},
	} {
		if got := describeUsed(&tc.used); !strings.HasPrefix(got, tc.want) || strings.Contains(got, "a limited amount") {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}
