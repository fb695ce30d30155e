package egress

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/untrusted"
)

const (
	maxBlocked = 64 // hosts that are noted for one run
	// A caller may open this many connections per second and at once, and a run this many in all:
	// each is two lines of the audit trail.
	opensPerSecond, opensAtOnce, maxOpens = 200, 1000, 10_000
	maxPacers                             = 4096
)

// Blocked is a host that a run tried to reach and may not.
type Blocked struct {
	Host  string // with a port that is not usual
	Times int
	Rule  string // the entry in hosts that would allow it, or why none does
}

// run is a run between Grant and Release.
type run struct {
	id, caller, sandbox, token string

	rules  []rule
	upload atomic.Int64  // bytes that it may still send
	opens  *rate.Limiter // of all runs of the caller
	opened atomic.Int64  // connections so far
	ctx    context.Context
	end    context.CancelCauseFunc

	stolen atomic.Bool // its token came from another sandbox

	mu       sync.Mutex
	ended    bool // no connection may begin
	active   sync.WaitGroup
	released bool // blocked has been returned
	blocked  []Blocked
	unlisted int // refusals that are neither in blocked nor in the audit trail
}

// user is the name that clients send with a run's token.
const user = "run"

// Grant lets a run that is about to start in a sandbox reach what its rules allow, until Release.
// It returns the environment of the run and the secrets in it. Without rules there is none, and
// Egress only notes what the run tries to reach.
func (e *Egress) Grant(caller, runID, sandboxID string, rules []string) (env map[string]string, secrets []string) {
	e.Release(runID) // an earlier try to start it
	r := &run{id: runID, caller: caller, sandbox: sandboxID}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	r.upload.Store(e.cfg.UploadBytes)
	for _, text := range rules {
		if parsed, err := parseEntry(text); err == nil {
			r.rules = append(r.rules, parsed...)
		}
	}
	if len(r.rules) > 0 {
		r.token = rand.Text()
		env = proxyEnv("http://" + user + ":" + r.token + "@" + sandbox.ForwardAddr)
		secrets = []string{r.token, base64.StdEncoding.EncodeToString([]byte(user + ":" + r.token))}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r.opens = e.pacer(caller)
	e.runs[runID] = r
	e.bySandbox[sandboxID] = append(e.bySandbox[sandboxID], r)
	if r.token != "" {
		e.byToken[r.token] = r
	}
	return env, secrets
}

// pacer returns the limiter of a caller's connections. The caller holds e.mu.
func (e *Egress) pacer(caller string) *rate.Limiter {
	l := e.pacers[caller]
	if l == nil {
		if len(e.pacers) >= maxPacers { // a full one is as good as a new one
			maps.DeleteFunc(e.pacers, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= opensAtOnce })
		}
		l = rate.NewLimiter(opensPerSecond, opensAtOnce)
		e.pacers[caller] = l
	}
	return l
}

// proxyEnv returns the variables that make HTTP clients use a proxy. Those that ignore them, such
// as Node's fetch, connect by name.
func proxyEnv(address string) map[string]string {
	const direct = "localhost,127.0.0.1,::1,0.0.0.0,sandbox" // the last is a sandbox's own name
	return map[string]string{
		"HTTP_PROXY": address, "http_proxy": address, "HTTPS_PROXY": address, "https_proxy": address,
		"NO_PROXY": direct, "no_proxy": direct,
	}
}

// Release ends the grant of a run and its connections, and returns what was blocked. A run without
// a grant has nothing blocked.
func (e *Egress) Release(runID string) []Blocked {
	e.mu.Lock()
	r := e.runs[runID]
	if r == nil {
		e.mu.Unlock()
		return nil
	}
	delete(e.runs, runID)
	delete(e.byToken, r.token)
	others := slices.DeleteFunc(e.bySandbox[r.sandbox], func(other *run) bool { return other == r })
	if e.bySandbox[r.sandbox] = others; len(others) == 0 {
		delete(e.bySandbox, r.sandbox)
	}
	e.mu.Unlock()

	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.end(errEnded)
	r.active.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released = true
	if r.unlisted > 0 {
		rec := e.record(r, audit.EventDenied, "")
		rec.Decision, rec.Reason = "deny", fmt.Sprintf("%d further refusals, of hosts that are not listed", r.unlisted)
		e.append(rec)
	}
	return r.blocked
}

// enter reports whether the run is active. If so, Release waits for leave.
func (r *run) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return false
	}
	r.active.Add(1)
	return true
}

func (r *run) leave() { r.active.Done() }

// bind returns a context that also ends with the run.
func (r *run) bind(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(errEnded) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}

// knows reports whether a rule allows some port of a name.
func (r *run) knows(name string) bool {
	return slices.ContainsFunc(r.rules, func(known rule) bool { return known.covers(rule{target: target{name, known.port}}) })
}

// spend takes n bytes from the upload budget.
func (r *run) spend(n int) bool { return r.upload.Add(-int64(n)) >= 0 }

// note adds to what was blocked and reports whether the host, or the reason, is new. Of a released
// run it notes nothing.
func (r *run) note(host, rule string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return false
	}
	if i := slices.IndexFunc(r.blocked, func(b Blocked) bool { return b.Host == host && b.Rule == rule }); i >= 0 {
		r.blocked[i].Times++
		return false
	}
	if len(r.blocked) >= maxBlocked {
		r.unlisted++
		return false
	}
	r.blocked = append(r.blocked, Blocked{host, 1, rule})
	return true
}

// block notes for runs why a host is blocked. The audit trail gets what was denied (a 4xx), once
// per run, and not what failed (a 5xx).
func (e *Egress) block(runs []*run, host string, p *refusal) {
	if p.rule == "" {
		return
	}
	for _, r := range runs {
		if r.note(host, p.rule) && p.status < http.StatusInternalServerError {
			rec := e.record(r, audit.EventDenied, host)
			rec.Decision, rec.Reason = "deny", untrusted.Clip(p.rule, 200)
			if p.rule == host {
				rec.Reason = p.code // the run may have it in hosts, and had not
			}
			e.append(rec)
		}
	}
}

// stolen records, once, that the token of a run came from another sandbox, which may have no run.
func (e *Egress) stolen(r *run, sandboxID string) {
	if !r.stolen.Swap(true) {
		rec := e.record(r, audit.EventDenied, "")
		rec.Decision, rec.Reason = "deny", "its token came from the sandbox "+sandboxID
		e.append(rec)
	}
}

func (e *Egress) record(r *run, event, host string) audit.Record {
	return audit.Record{
		Event: event, Room: "egress", Caller: r.caller, User: e.cfg.User(r.caller), Execution: r.id, Host: host,
	}
}

// append writes a record about something that has happened already.
func (e *Egress) append(rec audit.Record) {
	if err := e.cfg.Audit.Append(rec); err != nil {
		e.log.Error("egress: Cannot write to the audit trail", "run_id", rec.Execution, "error", err)
	}
}
