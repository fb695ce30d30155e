package executor

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/wire"
)

// TestRedact: no secret passes, however the stream is split.
func TestRedact(t *testing.T) {
	const a, b = "xt1.aaab.token", "xt1.aab" // with common beginnings, and ends that begin them
	text := "x" + a + "xt1.a" + a + b + "xt1.aa-xt1" + b + b + a[:len(a)-1]
	want := "x" + redacted + "xt1.a" + redacted + redacted + "xt1.aa-xt1" + redacted + redacted + a[:len(a)-1]
	for first := range len(text) {
		for second := first; second < len(text); second++ {
			var out bytes.Buffer
			r := redactor{out: func(p []byte) { out.Write(p) }}
			r.hide([]string{a, "", b})
			for _, part := range []string{text[:first], text[first:second], text[second:]} {
				p := []byte(part)
				r.write(p)
				clear(p) // the caller uses its buffer again
			}
			r.flush()
			if out.String() != want {
				t.Fatalf("cut at %d and %d: %q, want %q", first, second, out.String(), want)
			}
		}
	}
	var out bytes.Buffer
	r := redactor{out: func(p []byte) { out.Write(p) }}
	r.hide([]string{a})
	for _, c := range []byte(text) {
		r.write([]byte{c})
	}
	if r.flush(); strings.Contains(out.String(), a) {
		t.Errorf("byte by byte: %q", out.String())
	}
}

// services grants everything to connected callers, and remembers the grants.
type services struct {
	mu       sync.Mutex
	granted  map[string]string // run → sandbox
	released map[string]int
}

func (s *services) List(_ context.Context, caller session.Caller) []ServiceState {
	return []ServiceState{
		{Name: "datadog", DisplayName: "Datadog", Connected: caller.ID == "user:alice", ConnectURL: "https://here/connections"},
		{Name: "static", Connected: true},
	}
}

func (s *services) Grant(_ context.Context, _ session.Caller, runID, sandboxID string, ttl time.Duration, rs []ServiceRequest) (Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted[runID] = sandboxID
	if rs[0].Paths != nil {
		return Grant{}, refuse(CodeInvalidServices, "too wide")
	}
	token := "xt1.secret-" + runID
	return Grant{Env: map[string]string{"EXECUTION_TOKEN": token, "TTL": ttl.String()}, Secrets: []string{token}}, nil
}

func (s *services) Release(runID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released[runID]++
}

func (s *services) state(runID string) (sandbox string, released int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted[runID], s.released[runID]
}

func TestRunWithServices(t *testing.T) {
	fake := &services{granted: map[string]string{}, released: map[string]int{}}
	var seen *wire.Run
	var sandboxID string
	program := func(p *sessiontest.Process) wire.Exit {
		seen, sandboxID = p.Run, p.Spec.ID
		token := []byte(p.Env["EXECUTION_TOKEN"] + p.CellEnv["EXECUTION_TOKEN"])
		p.Stdout([]byte("a "))
		p.Stdout(token[:7])
		p.Stdout(token[7:])
		p.Stderr(token)
		return wire.Exit{}
	}
	wrapped := runner.Runner{Wrapper: "/w", Definition: runner.Definition{Name: "wrapped"}}
	r := newRig(t, program, func(c *Config) {
		c.Services = fake
		c.Runners = func() runner.Set { return runner.Set{keeping, wrapped} }
	})
	alice := session.Caller{ID: "user:alice"}
	ask := func(names ...string) (list []ServiceRequest) {
		for _, n := range names {
			list = append(list, ServiceRequest{Name: n})
		}
		return list
	}

	for _, persistent := range []bool{false, true} {
		res, err := r.Run(t.Context(), alice, Request{Session: "s", Runner: "python", Code: "x", Persistent: persistent,
			Env: map[string]string{"EXECUTION_TOKEN": "", "MINE": "1"}, Services: ask("datadog", "static")})
		if err != nil {
			t.Fatal(err)
		}
		if string(res.Stdout) != "a "+redacted || string(res.Stderr) != redacted {
			t.Errorf("persistent %t: output %q, %q", persistent, res.Stdout, res.Stderr)
		}
		granted, released := fake.state(res.RunID)
		if granted == "" || granted != sandboxID || released != 1 {
			t.Errorf("persistent %t: granted to %q, ran in %q, released %d times", persistent, granted, sandboxID, released)
		}
		where, other := seen.Env, seen.CellEnv
		if persistent {
			// The interpreter outlives the run, so its own environment must not have the token.
			where, other = seen.CellEnv, seen.Env
		}
		if where["EXECUTION_TOKEN"] != "xt1.secret-"+res.RunID || where["TTL"] != "1m10s" || strings.Contains(strings.Join(values(other), " "), "xt1.") {
			t.Errorf("persistent %t: env %v, cell %v", persistent, seen.Env, seen.CellEnv)
		}
		if where["MINE"] != "1" {
			t.Errorf("the caller's own variables: %v", where)
		}
	}
	if strings.Contains(r.log.String(), "xt1.") {
		t.Error("the log has a token")
	}

	for name, test := range map[string]struct {
		caller   session.Caller
		services []ServiceRequest
		runner   string
		code     Code
	}{
		"not connected": {session.Local, ask("static", "datadog"), "python", CodeServiceNotConnected},
		"unknown":       {alice, ask("Datadog"), "python", CodeUnknownService},
		"twice":         {alice, ask("static", "static"), "python", CodeInvalidServices},
		"too wide":      {alice, []ServiceRequest{{Name: "static", Paths: []string{"/**"}}}, "python", CodeInvalidServices},
		"wrapper":       {alice, ask("static"), "wrapped", CodeUnknownService},
	} {
		_, err := r.Run(t.Context(), test.caller, Request{Session: "t", Runner: test.runner, Code: "x", Services: test.services})
		if codeOf(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
		if test.code == CodeServiceNotConnected && !strings.Contains(err.Error(), "https://here/connections") {
			t.Errorf("%s: it does not say where to connect: %v", name, err)
		}
	}
	fake.mu.Lock()
	defer fake.mu.Unlock()
	for id := range fake.granted {
		if fake.released[id] != 1 {
			t.Errorf("run %s was released %d times", id, fake.released[id])
		}
	}
}

func values(m map[string]string) (list []string) {
	for v := range maps.Values(m) {
		list = append(list, v)
	}
	return list
}
