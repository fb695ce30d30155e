package proxy

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/store"
)

// prefix of every path the proxy serves.
const prefix = "/proxy/"

// statusClientGone is what a call counts as whose client went away before the answer.
const statusClientGone = 499

// call is one request on its way through the proxy.
type call struct {
	p         *Proxy
	r         *http.Request
	sandboxID string // where it comes from; empty: from the network
	start     time.Time

	service *service // nil: none of that name
	row     store.ExecutionToken
	path    path
	query   []string // keys
	cred    credential.Credential
	scrub   *scrubber

	ctx    context.Context
	cancel context.CancelCauseFunc
	watch  *watchdog

	sent     atomic.Int64 // of the request's body
	received int64        // of the answer's, as passed on
	passed   bool         // all of the answer was
	status   int
	err      *Error // the proxy's own answer
}

// ServeHTTP serves /proxy/{service}/{path} for tokens that are valid anywhere. It has to see paths as they came: mount it before
// anything that cleans them.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.serve(w, r, "") }

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, sandboxID string) {
	c := &call{p: p, r: r, sandboxID: sandboxID, start: time.Now()}
	c.ctx, c.cancel = context.WithCancelCause(r.Context())
	defer c.cancel(nil)
	if e := c.authorize(); e != nil {
		c.deny(w, c.orRevoked(e))
		return
	}
	// From here on a revocation cuts the call: it is entered before the row is looked at for the last time.
	leave, err := p.live.enter(c.row.JTI, c.cancel)
	switch {
	case errors.Is(err, errRevoked):
		c.deny(w, c.notUsable(store.ErrNotFound))
		return
	case err != nil:
		c.deny(w, tooMany("too many requests of this execution at a time", time.Second))
		return
	}
	defer leave()
	lease, err := p.calls.TryAcquire(c.row.Caller, 1)
	if err != nil {
		c.deny(w, busy("all callers together have too many requests at a time"))
		return
	}
	defer lease.Release()
	lease.Yield(func() { c.cancel(errYielded) })
	if e := c.prepare(); e != nil {
		c.deny(w, e)
		return
	}
	defer c.complete()
	defer c.expire()()
	c.forward(w)
}

// authorize checks what takes no look at the store: the token's text, and whether that allows the request.
func (c *call) authorize() *Error {
	r := c.r
	name, rest, e := splitTarget(r)
	if e != nil {
		return e
	}
	claims, result, ok := c.claims()
	if !ok {
		c.p.metrics.validated(result)
		return invalidToken().because("token: %s", result)
	}
	service, e := c.p.find(name)
	if e != nil {
		return e
	}
	c.service = service
	switch {
	case claims.Aud != executiontoken.Audience(service.Name):
		result = "service"
	case claims.Bnd != binding(c.sandboxID):
		result = "binding"
	}
	if result != "" {
		c.p.metrics.validated(result)
		return invalidToken().because("token: %s", result)
	}
	c.row = store.ExecutionToken{
		JTI: claims.JTI, Caller: claims.Sub, Service: service.Name, Execution: claims.RID, Sandbox: c.sandboxID,
		Paths: claims.Pth, Methods: claims.Mth, Expires: time.Unix(claims.Exp, 0),
	}
	if ok, retry := c.p.live.take(c.row.JTI, c.row.Expires, c.p.now(), service.TokenRate); !ok {
		return tooMany("too many requests of this execution", retry)
	}
	path, err := parsePath(rest, service.AllowEncodedSlash)
	if err != nil {
		return refuse(http.StatusBadRequest, CodeInvalidRequest, "%v", err)
	}
	c.path = path
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || strings.ContainsFunc(r.URL.RawQuery, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return refuse(http.StatusBadRequest, CodeInvalidRequest, "query refused: escape it as a URL needs it")
	}
	c.query = queryKeys(values)
	if !slices.Contains(c.row.Methods, r.Method) || !service.allowsMethod(r.Method) {
		return refuse(http.StatusForbidden, CodeNotAllowed, "method %s not allowed for this execution", clip(r.Method, 32)).because("method")
	}
	// The ceiling is looked at again: the operator may have lowered it.
	allowed, err := parsePatterns(c.row.Paths)
	if err != nil || !matchAny(allowed, path.segments) || !matchAny(service.ceiling, path.segments) {
		return refuse(http.StatusForbidden, CodeNotAllowed, "path %s not allowed for this execution", path.escaped).because("path")
	}
	if ok, retry := service.rate.take(c.row.Caller, c.p.now()); !ok {
		return tooMany("too many requests to service "+service.Name, retry)
	}
	return nil
}

// splitTarget takes the service's name and the rest, both as they came, from a request that is of an ordinary form.
func splitTarget(r *http.Request) (name, rest string, e *Error) {
	switch {
	case r.Method == http.MethodConnect, r.URL.Host != "", r.URL.Opaque != "", !strings.HasPrefix(r.RequestURI, "/"), strings.Contains(r.RequestURI, "#"):
		return "", "", refuse(http.StatusBadRequest, CodeInvalidRequest, "the request must name a path: CONNECT, absolute URLs and * are refused")
	case r.Header.Get("Upgrade") != "" || hasToken(r.Header["Connection"], "upgrade"):
		return "", "", refuse(http.StatusBadRequest, CodeInvalidRequest, "protocol upgrades (WebSocket) are refused")
	}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), prefix)
	if !ok {
		return "", "", refuse(http.StatusNotFound, CodeNotFound, "the proxy serves /proxy/{service}/{path}")
	}
	name, _, _ = strings.Cut(rest, "/")
	return name, rest[len(name):], nil
}

// claims checks the token's text. If it is not good, result says why.
func (c *call) claims() (claims executiontoken.Claims, result string, ok bool) {
	values := c.r.Header["Authorization"]
	if len(values) != 1 {
		return claims, "missing", false
	}
	scheme, token, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return claims, "missing", false
	}
	claims, err := c.p.keys.Verify(strings.TrimSpace(token), c.p.now())
	switch {
	case errors.Is(err, executiontoken.ErrExpired):
		return claims, "expired", false
	case errors.Is(err, executiontoken.ErrSignature):
		return claims, "signature", false
	case err != nil:
		return claims, "malformed", false
	}
	return claims, "", true
}

// orRevoked returns e, or, if the token it is about is not alive, that it is not valid: a dead token tells nothing about paths.
func (c *call) orRevoked(e *Error) *Error {
	if c.row.JTI == "" || e.Code == CodeRateLimited { // which costs as little as can be
		return e
	}
	if _, err := c.p.store.ExecutionToken(c.r.Context(), c.row.JTI, c.p.now()); err != nil {
		return c.notUsable(err)
	}
	return e
}

// use counts the call. The stored row has the last word: it must be alive, of this process if it is a run's, and say what the token says.
func (c *call) use() *Error {
	p, signed := c.p, c.row
	row, err := p.store.UseExecutionToken(context.WithoutCancel(c.ctx), signed.JTI, p.now())
	if err != nil {
		return c.notUsable(err)
	}
	if row.Caller != signed.Caller || row.Service != signed.Service || row.Execution != signed.Execution || row.Sandbox != signed.Sandbox ||
		row.Sandbox != "" && row.Instance != p.instance || !slices.Equal(row.Paths, signed.Paths) || !slices.Equal(row.Methods, signed.Methods) {
		p.metrics.validated("binding")
		return invalidToken().because("token: it is not what was issued here")
	}
	c.row = row
	p.metrics.validated("valid")
	return nil
}

func (c *call) notUsable(err error) *Error {
	switch {
	case errors.Is(err, store.ErrExhausted):
		c.p.metrics.validated("exhausted")
		return refuse(http.StatusTooManyRequests, CodeExhausted, "the execution token has been used for all of its requests")
	case errors.Is(err, store.ErrNotFound):
		c.p.metrics.validated("revoked")
		return invalidToken().because("token: revoked")
	}
	return internalError(err)
}

// prepare does what has to be done before the service hears of the call: count, get the credential, leave a trace.
func (c *call) prepare() *Error {
	p := c.p
	e := c.use()
	if e != nil {
		return e
	}
	if c.cred, e = p.credential(c.ctx, c.service, c.row.Caller); e != nil {
		return e
	}
	secrets := c.cred.Secrets
	if len(secrets) == 0 {
		secrets = []string{c.cred.Value}
	}
	c.scrub = c.service.scrubber(secrets)
	rec := c.record(EventIntent)
	rec.Decision = "allow"
	if err := p.audit.append(rec); err != nil {
		return p.auditFailed(err)
	}
	return nil
}

// expire has the call cut when its token ends, by time or by another process.
func (c *call) expire() (stop func()) {
	p := c.p
	end := time.AfterFunc(c.row.Expires.Sub(p.now()), func() { c.cancel(errExpired) })
	stopChecks := make(chan struct{})
	check := time.AfterFunc(recheck, func() {
		ticker := time.NewTicker(recheck)
		defer ticker.Stop()
		for {
			if _, err := p.store.ExecutionToken(c.ctx, c.row.JTI, p.now()); errors.Is(err, store.ErrNotFound) {
				c.cancel(errRevoked)
			}
			select {
			case <-ticker.C:
			case <-stopChecks:
				return
			}
		}
	})
	return func() {
		end.Stop()
		check.Stop()
		close(stopChecks)
	}
}

func (c *call) record(event string) Record {
	r := Record{Event: event, Method: clip(c.r.Method, 32), Path: clip(c.path.escaped, 2048), Query: c.query}
	if c.service != nil {
		r.Service = c.service.Name
	}
	if c.row.JTI != "" {
		r.Caller, r.User, r.Execution, r.JTI = c.row.Caller, c.p.user(c.row.Caller), c.row.Execution, c.row.JTI
	}
	return r
}

// deny answers a call that does not reach the service.
func (c *call) deny(w http.ResponseWriter, e *Error) {
	p := c.p
	p.metrics.answered(c.service, e.Status, 0)
	// What a flood of bad requests could write is bounded. Refusals of a good token always leave their trace.
	if c.row.JTI != "" && e.Code != CodeRateLimited && e.Code != CodeBusy && e.Code != CodeExhausted || p.noise.Allow() {
		rec := c.record(EventDenied)
		rec.Decision, rec.Reason, rec.Status = "deny", clip(e.why(), 256), e.Status
		if err := p.audit.append(rec); err != nil {
			p.log.Error("execution_proxy: Audit trail not written", "err", err)
		}
		p.log.Warn("execution_proxy: Request denied", append(c.attrs(), "status", e.Status, "reason", clip(e.why(), 256))...)
	}
	refuseBody(w, c.r)
	writeError(w, e)
}

// complete notes how a call ended that was passed on.
func (c *call) complete() {
	took := time.Since(c.start)
	rec := c.record(EventComplete)
	rec.Status, rec.Sent, rec.Duration = c.status, c.sent.Load(), float64(took.Microseconds())/1000
	failed := ""
	switch cause := context.Cause(c.ctx); {
	case c.err != nil:
		failed = c.err.why()
	case c.passed: // the client may go away as soon as it has everything
	case errors.Is(cause, context.Canceled):
		failed = "the client went away"
	case cause != nil:
		failed = cause.Error()
	}
	rec.Reason, rec.Received = clip(failed, 256), c.received
	c.p.metrics.answered(c.service, c.status, took)
	if err := c.p.audit.append(rec); err != nil {
		c.p.log.Error("execution_proxy: Audit trail not written", "err", err)
	}
	attrs := append(c.attrs(), "status", c.status, "duration_ms", took.Milliseconds())
	if failed != "" {
		c.p.log.Warn("execution_proxy: Request failed", append(attrs, "reason", clip(failed, 256))...)
		return
	}
	c.p.log.Info("execution_proxy: Request proxied successfully", attrs...)
}

func (c *call) attrs() []any {
	service := ""
	if c.service != nil {
		service = c.service.Name
	}
	return []any{"execution_id", c.row.Execution, "user", c.p.name(c.row.Caller), "service", service,
		"method", clip(c.r.Method, 32), "path", clip(c.path.escaped, 512)}
}

// refuseBody has the connection closed, soon, if the request's body has not been read: whoever sends it slowly must not hold on to us.
func refuseBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(grace)) // where it is not supported there is nothing to hold
}

func tooMany(message string, retry time.Duration) *Error {
	e := refuse(http.StatusTooManyRequests, CodeRateLimited, "%s", message)
	e.RetryAfter = retry
	return e
}

// busy refuses a call for which there is no room now.
func busy(message string) *Error {
	e := refuse(http.StatusServiceUnavailable, CodeBusy, "%s; try again in a second", message)
	e.RetryAfter = time.Second
	return e
}

// maxQueryKeys and maxQueryKey bound what of a query goes into the audit trail.
const (
	maxQueryKeys = 32
	maxQueryKey  = 64
)

func queryKeys(values url.Values) []string {
	keys := slices.Sorted(maps.Keys(values))
	keys = keys[:min(len(keys), maxQueryKeys)]
	for i, k := range keys {
		keys[i] = clip(k, maxQueryKey)
	}
	return keys
}
