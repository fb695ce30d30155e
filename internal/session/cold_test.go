package session_test

import (
	"context"
	"testing"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestCold: a run that must start with certain variables has no zygote. The next one gets the
// zygote in full, since its agent has not seen it.
func TestCold(t *testing.T) {
	var sent *wire.Run
	b := &sessiontest.Backend{Program: func(p *sessiontest.Process) wire.Exit {
		sent = p.Run
		return wire.Exit{}
	}}
	m := newManager(t, b, nil)
	s := open(t, m, session.Local, "x")
	defer s.Release()
	r := python
	r.Persistent, r.Env = []string{"driver"}, map[string]string{"A": "1"}
	r.Zygote = &runner.Zygote{Source: []byte("zygote")}
	run := func(persistent bool, cold map[string]string) {
		t.Helper()
		if _, err := s.Run(t.Context(), r, session.RunRequest{Persistent: persistent, Cold: cold}); err != nil {
			t.Fatal(err)
		}
	}
	cold := map[string]string{"FIRST": "1"}
	if run(false, cold); sent.Zygote != nil || sent.Env["FIRST"] != "1" || sent.Env["A"] != "1" {
		t.Errorf("a fresh run: %+v", sent)
	}
	if run(true, cold); sent.Zygote != nil || sent.Env["FIRST"] != "1" || sent.Env["A"] != "1" || sent.CellEnv["FIRST"] != "1" {
		t.Errorf("an interpreter: %+v", sent)
	}
	if run(true, nil); sent.Zygote == nil || string(sent.Zygote.Source) != "zygote" || sent.Env["FIRST"] != "" {
		t.Errorf("afterwards: %+v", sent)
	}
	granted := session.RunRequest{Persistent: true, Grant: func(context.Context, string) (map[string]string, error) {
		return map[string]string{"PATH": "/granted", "TOKEN": "t"}, nil
	}}
	if _, err := s.Run(t.Context(), r, granted); err != nil {
		t.Fatal(err)
	}
	if path, again := sent.CellEnv["PATH"]; sent.Env["PATH"] != "/granted" || again || sent.CellEnv["TOKEN"] != "t" || sent.Env["TOKEN"] != "" {
		t.Errorf("granted variables: %+v, for the cell PATH=%s", sent, path)
	}
	if r.Env["FIRST"] != "" || r.Env["PATH"] != "" {
		t.Error("the runner's own variables have changed")
	}
}
