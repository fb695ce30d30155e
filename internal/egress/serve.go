package egress

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
)

// ServeSandbox serves CONNECT and absolute-form requests from a sandbox.
func (e *Egress) ServeSandbox(w http.ResponseWriter, r *http.Request, sandboxID string) {
	runs, problem := e.runsOf(r, sandboxID)
	if r.Method != http.MethodConnect {
		if problem == nil {
			problem = e.serveURL(w, r, runs)
		}
		if problem != nil {
			problem.write(w)
		}
		return
	}
	if problem == nil {
		problem = e.connect(r.Context(), runs, r.RequestURI, func(ctx context.Context) net.Conn { return accept(ctx, w) })
	}
	if problem != nil {
		problem.writeConnect(w)
	}
}

// ServeName serves a connection that code made to a host, a name and a port, without a proxy. Port
// 0 only notes that code looked up a name that no rule allows.
func (e *Egress) ServeName(ctx context.Context, sandboxID, host string, conn net.Conn) {
	defer conn.Close()
	_ = e.connect(ctx, e.inSandbox(sandboxID), host, func(context.Context) net.Conn { return conn })
}

// connect connects code to a host and returns when the connection has ended, or with a refusal.
// accept returns the connection to the code, or nil if that or ctx has ended. It is called at most
// once, without a refusal.
func (e *Egress) connect(ctx context.Context, runs []*run, host string, accept func(context.Context) net.Conn) *refusal {
	runs, to, problem := e.admit(runs, host)
	if problem != nil {
		return problem
	}
	defer runs[0].leave()
	ctx, cancel := runs[0].bind(ctx)
	defer cancel(nil)
	if to.port == 80 { // each request is a connection of its own
		if conn := accept(ctx); conn != nil {
			e.serveHTTP(ctx, runs, to, conn)
		}
		return nil
	}
	t, problem := e.open(ctx, cancel, runs, to)
	if problem != nil {
		return problem
	}
	defer t.finish()
	if conn := accept(ctx); conn != nil {
		t.carry(conn)
	}
	return nil
}

// accept accepts a CONNECT, and returns its connection or nil. The code may not read the answer, so
// the connection ends with ctx.
func accept(ctx context.Context, w http.ResponseWriter) net.Conn {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		conn.Close()
		return nil
	}
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	return prefixed(early, conn)
}

// inSandbox returns the active runs of a sandbox.
func (e *Egress) inSandbox(sandboxID string) []*run {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.bySandbox[sandboxID])
}

// runsOf returns the runs that a request may belong to: the one that its token names, or all that
// are active in the sandbox, which belong to one caller. The latter also for the token of an ended
// run, which a client that an earlier cell made still sends.
func (e *Egress) runsOf(r *http.Request, sandboxID string) ([]*run, *refusal) {
	given := r.Header.Values("Proxy-Authorization")
	if len(given) > 0 {
		name, token, ok := (&http.Request{Header: http.Header{"Authorization": given}}).BasicAuth()
		e.mu.Lock()
		by := e.byToken[token]
		e.mu.Unlock()
		switch {
		case by != nil && by.sandbox != sandboxID:
			e.stolen(by, sandboxID)
			fallthrough
		case !ok || len(given) > 1 || name != user || token == "":
			host := shown(r.Host)
			if to, err := parseTarget(r.Host); err == nil {
				host = to.String()
			}
			p := refuse(http.StatusProxyAuthRequired, codeToken,
				"The token in the proxy's address is not one of this sandbox: use the variable HTTPS_PROXY of this run.")
			return nil, e.refused(e.inSandbox(sandboxID), host, "", p.because("the token for the proxy is not one of this sandbox"))
		case by != nil:
			return []*run{by}, nil
		}
	}
	if runs := e.inSandbox(sandboxID); len(runs) > 0 {
		return runs, nil
	}
	return nil, errEnded
}

// admit returns those of runs that may reach a host. It has entered the first one, which pays for
// the connection: the newest that can. Without any it notes the host as blocked. It resolves
// nothing.
func (e *Egress) admit(runs []*run, host string) ([]*run, target, *refusal) {
	to, err := parseTarget(host)
	if err != nil {
		host = shown(strings.TrimSuffix(host, ":0"))
		p := refuse(http.StatusForbidden, codeNotAllowed, "Code cannot connect to %s, which %v.", host, err)
		return nil, to, e.refused(runs, host, "", p.because("it "+err.Error()))
	}
	var able, spent []*run // newest first
	for _, r := range slices.Backward(runs) {
		switch {
		case !allows(r.rules, rule{target: to}):
		case e.exhausted(r) == nil:
			able = append(able, r)
		default:
			spent = append(spent, r)
		}
	}
	able = append(able, spent...)
	for i, r := range able {
		if r.enter() {
			return able[i:], to, nil
		}
	}
	switch {
	case len(able) > 0:
		return nil, to, e.refused(runs, to.String(), to.name, errEnded)
	case to.port == 0 && slices.ContainsFunc(runs, func(r *run) bool { return r.knows(to.name) }):
		return nil, to, refuse(http.StatusBadRequest, codeInvalid, "The port of %s is missing: write it as in %s:443.", to.name, to.name)
	}
	if to.port == 0 {
		to.port = e.portOf(to.name)
	}
	return nil, to, e.refused(runs, to.String(), to.name, e.notAllowed(to))
}

// portOf guesses the port for a name that code only looked up: the first that the ceiling allows.
// It returns 0 if that includes 443 or 80, or if none is allowed.
func (e *Egress) portOf(name string) uint16 {
	allowed := slices.IndexFunc(e.ceiling, func(r rule) bool { return r.covers(rule{target: target{name, r.port}}) })
	if allowed < 0 || e.isWithin(rule{target: target{name, 443}}) || e.isWithin(rule{target: target{name, 80}}) {
		return 0
	}
	return e.ceiling[allowed].port
}

// notAllowed says what would allow a target.
func (e *Egress) notAllowed(to target) *refusal {
	entry := to.String()
	rules, _ := parseEntry(entry)
	if slices.ContainsFunc(rules, e.isWithin) {
		if to.port == 0 || e.isWithin(rule{target: to}) {
			p := refuse(http.StatusForbidden, codeNotAllowed, "This run may not connect to %s: run it with %q in hosts.", entry, entry)
			p.rule = entry
			return p
		}
		entry = to.address() // the name alone is allowed, with another port
	}
	return refuse(http.StatusForbidden, codeNotAllowed, "This server does not allow %s: ask the operator to add it to network.allow.", entry).
		because("ask the operator to add " + entry + " to network.allow")
}

// refused counts a refusal and notes it for runs.
func (e *Egress) refused(runs []*run, host, name string, p *refusal) *refusal {
	e.metrics.count(name, p.code)
	e.block(runs, host, p)
	return p
}

// printable replaces what does not belong in a status line or a result.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s)
}
