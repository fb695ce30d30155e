package egress

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/share"
)

// tunnel is a connection to a host. As a net.Conn it counts what passes.
type tunnel struct {
	net.Conn
	e      *Egress
	runs   []*run // of connect
	to     target
	failed *refusal // what code was told instead of the host's answer
	ctx    context.Context
	cancel context.CancelCauseFunc // of ctx: ends the connection
	lease  *share.Lease
	start  time.Time

	sent, received atomic.Int64
	half           atomic.Bool // code has sent its end
}

// halfTimeout is how long a host may be silent after code has sent its end: the agent cannot tell
// whether code still reads.
const halfTimeout = time.Minute

// open connects to a host for the first of runs, after the audit trail has a record of it. cancel
// ends ctx, and with it the connection. The caller calls finish.
func (e *Egress) open(ctx context.Context, cancel context.CancelCauseFunc, runs []*run, to target) (*tunnel, *refusal) {
	by := runs[0]
	refused := func(p *refusal) (*tunnel, *refusal) {
		return nil, e.refused(runs, to.String(), to.name, p)
	}
	if !slices.Contains(by.rules, rule{target: to}) { // a name below a wildcard tells its name server something
		by.spend(len(to.name))
	}
	if p := e.exhausted(by); p != nil {
		return refused(p)
	}
	if !by.opens.Allow() {
		return refused(refuse(http.StatusTooManyRequests, codeBusy, "Your runs open too many connections per second. Wait a second; https:// connections can be reused.").
			because("the runs of this user open too many connections per second"))
	}
	lease, err := e.tunnels.TryAcquire(by.caller, 1)
	if err != nil {
		return refused(refuse(http.StatusServiceUnavailable, codeBusy,
			"All callers together have too many connections at a time: close some, or try again in a second.").
			because("all callers together have too many connections at a time"))
	}
	lease.Yield(func() { cancel(errYielded) })
	by.opened.Add(1)
	t := &tunnel{e: e, runs: runs, to: to, ctx: ctx, cancel: cancel, lease: lease, start: time.Now()}
	rec := e.record(by, audit.EventIntent, to.address())
	rec.Decision = "allow"
	if err := e.cfg.Audit.Append(rec); err != nil {
		lease.Release()
		e.log.Error("egress: Cannot write to the audit trail, so nothing is sent", "run_id", by.id, "error", err)
		return refused(refuse(http.StatusInternalServerError, codeInternal, "The server cannot write its audit trail.").
			because("the server cannot write its audit trail"))
	}
	conn, problem := e.dial(ctx, to)
	if problem != nil {
		t.complete(problem.code)
		return refused(problem)
	}
	t.Conn = conn
	return t, nil
}

// finish closes the connection, and records what it carried and why it was ended.
func (t *tunnel) finish() {
	t.Conn.Close()
	result := resultOK
	if p := cmp.Or(causeOf(t.ctx), t.failed); p != nil {
		result = p.code
		t.e.block(t.runs, t.to.String(), p)
	} else if context.Cause(t.ctx) == context.Canceled { // other causes are how many connections end
		result = resultInterrupted
	}
	t.e.metrics.count(t.to.name, result)
	t.complete(result)
}

func (t *tunnel) complete(result string) {
	t.lease.Release()
	rec := t.e.record(t.runs[0], audit.EventComplete, t.to.address())
	rec.Reason, rec.Sent, rec.Received = result, t.sent.Load(), t.received.Load()
	rec.Duration = float64(time.Since(t.start).Microseconds()) / 1000
	t.e.append(rec)
	t.e.metrics.carried(t.to.name, rec.Sent, rec.Received)
	t.e.log.Debug("egress: Connection ended", "run_id", rec.Execution, "host", rec.Host, "result", result,
		"sent", rec.Sent, "received", rec.Received)
}

// Write sends what the budget allows.
func (t *tunnel) Write(p []byte) (int, error) {
	if !t.runs[0].spend(len(p)) {
		p := t.e.exhausted(t.runs[0])
		t.cancel(p)
		return 0, p
	}
	t.sent.Add(int64(len(p))) // first: finish may come before Write returns
	n, err := t.Conn.Write(p)
	t.sent.Add(int64(n - len(p)))
	return n, err
}

func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.Conn.Read(p)
	t.received.Add(int64(n))
	if t.half.Load() {
		t.limitSilence()
	}
	return n, err
}

// CloseWrite says that code sends no more.
func (t *tunnel) CloseWrite() error {
	t.half.Store(true)
	t.limitSilence()
	return closeWrite(t.Conn)
}

func (t *tunnel) limitSilence() { _ = t.SetReadDeadline(time.Now().Add(halfTimeout)) }

// exhausted returns why a run may open no more connections, or nil.
func (e *Egress) exhausted(r *run) *refusal {
	switch {
	case r.upload.Load() < 0:
		return refuse(http.StatusForbidden, codeBudget, "The run has sent the %d bytes that it may send: send less, or ask the operator for a higher network.uploadBytes.",
			e.cfg.UploadBytes).because("the run has used up its upload budget (network.uploadBytes)")
	case r.opened.Load() >= maxOpens:
		return refuse(http.StatusForbidden, codeConnections, "The run has opened %d connections, the most that one run may: reuse https:// connections.", maxOpens).
			because(fmt.Sprintf("the run has opened %d connections, the most that one run may", maxOpens))
	}
	return nil
}

// carry carries bytes between the code and the host until both have ended, one fails or ctx ends.
// It closes both. TLS must ask for the host's name, and port 443 must be TLS.
func (t *tunnel) carry(code net.Conn) {
	defer code.Close()
	defer context.AfterFunc(t.ctx, func() {
		t.Conn.Close()
		code.Close()
	})()
	received := make(chan struct{})
	go func() {
		defer close(received)
		t.e.copy(code, t, t.cancel)
	}()
	if checked, err := t.checkFirst(code); err == nil {
		t.e.copy(t, checked, t.cancel)
	} else {
		t.cancel(err)
	}
	<-received
}

// checkFirst reads what code sends first, and checks it. It returns the connection from its
// beginning. An error, a *refusal or another, means that nothing may be sent.
func (t *tunnel) checkFirst(code net.Conn) (net.Conn, error) {
	must := t.to.port == 443
	if must {
		_ = code.SetReadDeadline(time.Now().Add(helloTimeout))
	}
	first := make([]byte, 4<<10)
	n, err := code.Read(first)
	if beginsTLS(first[:n]) {
		_ = code.SetReadDeadline(time.Now().Add(helloTimeout))
		more, _ := io.ReadAtLeast(code, first[n:], recordStart-n)
		n += more
	}
	first = first[:n]
	switch {
	case must && n > 0 && first[0] == recordHandshake, !must && beginsTLS(first):
		code = prefixed(first, code) // of which bytes after the hello may be left
		first, err = readHello(code, t.to.name)
	case must && (n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded)):
		err = tlsRefusal("code must use TLS on port 443 of %s", t.to.name)
	case n > 0 || errors.Is(err, io.EOF) && !must: // the host may still send
		err = nil
	}
	_ = code.SetReadDeadline(time.Time{})
	return prefixed(first, code), err
}

// copy copies until src ends, and passes the end on. An error ends the connection.
func (e *Egress) copy(dst, src net.Conn, cancel context.CancelCauseFunc) {
	buf := e.buffers.Get()
	defer e.buffers.Put(buf)
	// The wrappers hide ReadFrom and WriteTo, which use small buffers of their own.
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, buf)
	if err == nil {
		err = closeWrite(dst)
	}
	if err != nil {
		cancel(err)
	}
}

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// prefixed returns conn with bytes that were read from it before.
func prefixed(early []byte, conn net.Conn) net.Conn {
	if len(early) == 0 {
		return conn
	}
	return &prefixedConn{conn, bytes.NewReader(bytes.Clone(early))}
}

type prefixedConn struct {
	net.Conn
	early *bytes.Reader
}

func (c *prefixedConn) Read(p []byte) (int, error) {
	if c.early.Len() > 0 {
		return c.early.Read(p)
	}
	return c.Conn.Read(p)
}

func (c *prefixedConn) CloseWrite() error { return closeWrite(c.Conn) }
