package session_test

import (
	"testing"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestSwitchedInterpreter: a run reports that the one before used the interpreter with the other
// network, if that is still alive.
func TestSwitchedInterpreter(t *testing.T) {
	b := &sessiontest.Backend{Program: func(*sessiontest.Process) wire.Exit { return wire.Exit{} }}
	m := newManager(t, b, nil)
	s := open(t, m, session.Local, "x")
	defer s.Release()
	keeping, other := python, shell
	keeping.Persistent, other.Persistent = []string{"driver"}, []string{"driver"}
	for i, step := range []struct {
		network, persistent, shell, switched bool
		before                               func()
	}{
		{persistent: true},
		{persistent: true},
		{network: true}, // a fresh process never has variables
		{network: true, persistent: true, shell: true},    // shell has no other interpreter
		{network: true, persistent: true, switched: true}, // once
		{network: true, persistent: true},
		{persistent: true, switched: true}, // and back
		{persistent: true},
		{network: true, persistent: true, before: func() { // there is no other one left
			for _, sb := range b.Live() {
				if !sb.Spec().Network {
					sb.Die()
					if _, err := sb.Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
		}},
	} {
		if step.before != nil {
			step.before()
		}
		r := keeping
		if step.shell {
			r = other
		}
		res, err := s.Run(t.Context(), r, session.RunRequest{Network: step.network, Persistent: step.persistent})
		if err != nil || res.Switched != step.switched {
			t.Errorf("step %d: %+v, %v", i+1, res, err)
		}
	}
}
