package proxy

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/store"
)

const (
	// prefix starts every path that the proxy serves.
	prefix = "/proxy/"
	// statusClientGone is the recorded status of a call if its client left before the answer.
	statusClientGone = 499
	// grace is how long the client of a canceled call may take to read the answer.
	grace = 2 * time.Second
	// recheck is the interval at which a call in progress checks whether another process revoked
	// its token.
	recheck = 2 * time.Second
	// flushInterval delays parts of an answer of known length. ReverseProxy flushes event streams
	// and answers of unknown length at once.
	flushInterval = 5 * time.Millisecond
)

// call is one request on its way through the proxy.
type call struct {
	p         *Proxy
	r         *http.Request
	sandboxID string // empty: the call comes from the network
	start     time.Time

	service *service // nil: unknown
	row     store.ExecutionToken
	path    path
	query   []string // keys
	cred    credential.Credential
	scrub   *scrubber

	ctx    context.Context
	cancel context.CancelCauseFunc
	watch  *watchdog

	sent      atomic.Int64 // bytes of the request's body
	received  int64        // bytes of the forwarded answer's body
	delivered bool         // the whole answer was forwarded
	status    int
	err       *Error // the proxy's own answer
}

// ServeHTTP serves /proxy/{service}/{path} for tokens that are valid anywhere. It must see the path
// as the client sent it: mount it before anything that cleans paths.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.serve(w, r, "") }

// ServeSandbox serves the same for tokens that are bound to a sandbox.
func (p *Proxy) ServeSandbox(w http.ResponseWriter, r *http.Request, sandboxID string) {
	p.serve(w, r, sandboxID)
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, sandboxID string) {
	c := &call{p: p, r: r, sandboxID: sandboxID, start: time.Now()}
	c.ctx, c.cancel = context.WithCancelCause(r.Context())
	defer c.cancel(nil)
	if e := c.authorize(); e != nil {
		c.deny(w, c.orRevoked(e))
		return
	}
	// From here on a revocation cancels the call. prepare reads the stored row afterwards.
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
	defer c.cancelAtExpiry()()
	c.forward(w)
}

// authorize checks the token and what it allows, without the store.
func (c *call) authorize() *Error {
	r := c.r
	name, rest, e := splitTarget(r)
	if e != nil {
		return e
	}
	claims, problem := c.claims()
	if problem != "" {
		return c.invalid(problem)
	}
	service, e := c.p.find(name)
	if e != nil {
		return e
	}
	c.service = service
	switch {
	case claims.Aud != executiontoken.Audience(service.Name):
		return c.invalid("service")
	case claims.Bnd != binding(c.sandboxID):
		return c.invalid("binding")
	}
	c.row = store.ExecutionToken{
		JTI: claims.JTI, Caller: claims.Sub, Service: service.Name, Execution: claims.RID, Sandbox: c.sandboxID,
		Paths: claims.Pth, Methods: claims.Mth, Expires: time.Unix(claims.Exp, 0),
	}
	if ok, retry := c.p.live.take(c.row, c.p.now(), service.TokenRate); !ok {
		return tooMany("too many requests of this execution", retry)
	}
	path, err := parsePath(rest, service.AllowEncodedSlash)
	if err != nil {
		return badRequest("%v", err)
	}
	c.path = path
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || strings.ContainsFunc(r.URL.RawQuery, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return badRequest("query refused: percent-encode it")
	}
	c.query = queryKeys(values)
	if !slices.Contains(c.row.Methods, r.Method) || !service.allowsMethod(r.Method) {
		return refuse(http.StatusForbidden, CodeNotAllowed, "method %s not allowed for this execution", clip(r.Method, 32)).
			withReason("method")
	}
	// Check the ceiling again: the operator may have lowered it since the token was issued.
	allowed, err := parsePatterns(c.row.Paths)
	if err != nil || !matchAny(allowed, path.segments) || !matchAny(service.ceiling, path.segments) {
		return refuse(http.StatusForbidden, CodeNotAllowed, "path %s not allowed for this execution", path.escaped).
			withReason("path")
	}
	if ok, retry := service.rate.take(c.row.Caller, c.p.now()); !ok {
		return tooMany("too many requests to service "+service.Name, retry)
	}
	return nil
}

// splitTarget returns the service's name and the rest of the path, both escaped as the client sent
// them.
func splitTarget(r *http.Request) (name, rest string, e *Error) {
	switch {
	case r.Method == http.MethodConnect, r.URL.Host != "", r.URL.Opaque != "",
		!strings.HasPrefix(r.RequestURI, "/"), strings.Contains(r.RequestURI, "#"):
		return "", "", badRequest("the request must name a path: CONNECT, absolute URLs and * are refused")
	case r.Header.Get("Upgrade") != "" || hasToken(r.Header["Connection"], "upgrade"):
		return "", "", badRequest("protocol upgrades (WebSocket) are refused")
	}
	rest, ok := strings.CutPrefix(r.URL.EscapedPath(), prefix)
	if !ok {
		return "", "", refuse(http.StatusNotFound, CodeNotFound, "the proxy serves /proxy/{service}/{path}")
	}
	name, _, _ = strings.Cut(rest, "/")
	return name, rest[len(name):], nil
}

// claims verifies the request's token. problem is empty, or the metric's name for what is wrong.
func (c *call) claims() (claims executiontoken.Claims, problem string) {
	values := c.r.Header["Authorization"]
	if len(values) != 1 {
		return claims, "missing"
	}
	scheme, token, found := strings.Cut(values[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return claims, "missing"
	}
	claims, err := c.p.keys.Verify(strings.TrimSpace(token), c.p.now())
	switch {
	case errors.Is(err, executiontoken.ErrExpired):
		return claims, "expired"
	case errors.Is(err, executiontoken.ErrSignature):
		return claims, "signature"
	case err != nil:
		return claims, "malformed"
	}
	return claims, ""
}

// invalid counts a refused token. The client does not learn why.
func (c *call) invalid(problem string) *Error {
	c.p.metrics.validated(problem)
	return invalidToken().withReason("token: %s", problem)
}

// orRevoked returns e, or that the token is invalid if it was revoked: a revoked token reveals
// nothing about paths.
func (c *call) orRevoked(e *Error) *Error {
	if c.row.JTI == "" || e.Code == CodeRateLimited { // refusing a flood must stay cheap
		return e
	}
	if _, err := c.p.store.ExecutionToken(c.r.Context(), c.row.JTI, c.p.now()); err != nil {
		return c.notUsable(err)
	}
	return e
}

// notUsable converts the store's error about a token.
func (c *call) notUsable(err error) *Error {
	switch {
	case errors.Is(err, store.ErrExhausted):
		c.p.metrics.validated("exhausted")
		return refuse(http.StatusTooManyRequests, CodeExhausted, "the execution token has no requests left")
	case errors.Is(err, store.ErrNotFound):
		return c.invalid("revoked")
	}
	return internalError(err)
}

// prepare counts the call, gets the credential and writes to the audit trail, in this order, before
// anything is sent to the service.
func (c *call) prepare() *Error {
	e := c.use()
	if e != nil {
		return e
	}
	if c.cred, e = c.p.credential(c.ctx, c.service, c.row.Caller); e != nil {
		return e
	}
	secrets := c.cred.Secrets
	if len(secrets) == 0 {
		secrets = []string{c.cred.Value}
	}
	c.scrub = c.service.scrubber(secrets)
	rec := c.record(audit.EventIntent)
	rec.Decision = "allow"
	if err := c.p.audit.Append(rec); err != nil {
		return c.p.auditFailed(err)
	}
	return nil
}

// use counts the call in the stored row. The row must be live, belong to this process if it is a
// run's, and match the signed token.
func (c *call) use() *Error {
	p, signed := c.p, c.row
	row, err := p.store.UseExecutionToken(context.WithoutCancel(c.ctx), signed.JTI, p.now())
	if err != nil {
		return c.notUsable(err)
	}
	if row.Caller != signed.Caller || row.Service != signed.Service || row.Execution != signed.Execution ||
		row.Sandbox != signed.Sandbox || row.Sandbox != "" && row.Instance != p.instance ||
		!slices.Equal(row.Paths, signed.Paths) || !slices.Equal(row.Methods, signed.Methods) {
		return c.invalid("binding").withReason("token: it differs from the stored one")
	}
	c.row = row
	p.metrics.validated("valid")
	return nil
}

// cancelAtExpiry cancels the call when its token expires or another process revokes it.
func (c *call) cancelAtExpiry() (stop func()) {
	p := c.p
	expiry := time.AfterFunc(c.row.Expires.Sub(p.now()), func() { c.cancel(errExpired) })
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
		expiry.Stop()
		check.Stop()
		close(stopChecks)
	}
}

// forward sends the request to the service and its answer to the client.
func (c *call) forward(w http.ResponseWriter) {
	rc := http.NewResponseController(w)
	_ = rc.EnableFullDuplex() // fails for HTTP/2, which always is
	c.watch = newWatchdog(c.service.Timeout, c.cancel)
	defer c.watch.stop()

	// After cancellation, a client that neither reads nor sends must not hold the connection.
	fired := make(chan struct{})
	stop := context.AfterFunc(c.ctx, func() {
		defer close(fired)
		now := time.Now()
		_ = errors.Join(rc.SetReadDeadline(now), rc.SetWriteDeadline(now.Add(grace)))
	})
	body := &watchedBody{c: c}
	body.ended.Store(c.r.ContentLength == 0)
	defer func() {
		if !stop() {
			<-fired
		}
		if c.err == nil { // the answer is complete: keep the connection usable
			_ = rc.SetWriteDeadline(time.Time{})
		}
		if !body.ended.Load() { // net/http reads the rest, and then sets its own deadlines
			_ = rc.SetReadDeadline(time.Now().Add(grace))
		}
	}()

	w.Header().Del("X-Content-Type-Options") // the answer has its own
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			c.rewrite(pr)
			if pr.Out.Body != nil {
				body.ReadCloser = pr.Out.Body
				pr.Out.Body = body
			}
		},
		Transport:      finalOnly{c.service.transport},
		FlushInterval:  flushInterval,
		BufferPool:     &c.p.buffers,
		ErrorLog:       log.New(io.Discard, "", 0),
		ModifyResponse: c.modify,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			c.err = c.failure(err, body.failed.Load())
			w.Header().Set("Connection", "close") // it may have a deadline or a half-read body
			writeError(w, c.err)
		},
	}
	proxy.ServeHTTP(&statusWriter{ResponseWriter: w, c: c}, c.r.WithContext(c.ctx))
	if c.err == nil { // the client need not wait for the audit trail
		c.delivered = rc.Flush() == nil // an error means that the client left
	}
}

// rewrite builds the service's request. Only allowed header fields are copied.
func (c *call) rewrite(pr *httputil.ProxyRequest) {
	base := c.service.BaseURL
	out := pr.Out
	out.URL = &url.URL{
		Scheme:   base.Scheme,
		Host:     base.Host,
		Path:     strings.TrimSuffix(base.Path, "/") + c.path.plain,
		RawPath:  strings.TrimSuffix(base.EscapedPath(), "/") + c.path.escaped,
		RawQuery: c.r.URL.RawQuery,
	}
	out.Host = base.Host
	out.Trailer, out.TransferEncoding = nil, nil
	header := http.Header{}
	for name, values := range out.Header { // ReverseProxy has removed the fields that Connection names
		if forwarded(name) || c.service.headers[name] {
			header[name] = values
		}
	}
	header.Set("Accept-Encoding", "identity")
	header.Set(c.cred.Header, c.cred.Value)
	out.Header = header
}

// answerError rejects a service's answer. Its text is shown to the client.
type answerError string

func (e answerError) Error() string { return string(e) }

// modify removes from the answer what the caller must not see.
func (c *call) modify(res *http.Response) error {
	c.watch.answered(c.service.IdleTimeout)
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		return answerError("the service switched protocols without being asked")
	case res.StatusCode < 200: // net/http would panic
		return answerError("the service answered with an invalid status")
	}
	if err := c.rewriteLocation(res); err != nil {
		return err
	}
	answer, changed, err := decodeBody(&watchedAnswer{Reader: res.Body, watch: c.watch}, res.Header["Content-Encoding"])
	if err != nil {
		return answerError("the service's answer is compressed in a way that cannot be searched for secrets")
	}
	if changed {
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	if c.scrub != nil {
		answer = newScrubReader(answer, c.scrub)
	}
	c.cleanHeader(res.Header)
	res.Header.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	res.Header.Set("X-Content-Type-Options", "nosniff")
	res.Header.Set("Cache-Control", privateCacheControl(res.Header["Cache-Control"]))
	c.cleanHeader(res.Trailer) // the names, which are announced before the body
	res.Body = &answerBody{Reader: answer, Closer: res.Body, end: func() { c.cleanHeader(res.Trailer) }}
	return nil
}

// cleanHeader removes the fields that are not for the caller, and secrets from the others.
func (c *call) cleanHeader(h http.Header) {
	for name := range h {
		if dropped(name) {
			delete(h, name)
		}
	}
	if c.scrub != nil {
		c.scrub.header(h)
	}
}

// failure returns the proxy's answer when the service's cannot be forwarded.
func (c *call) failure(err error, clientBroke bool) *Error {
	cause := context.Cause(c.ctx)
	reason := advise(err).Error() // may quote the service's answer
	if c.scrub != nil {
		reason = c.scrub.text(reason)
	}
	answer, badAnswer := errors.AsType[answerError](err)
	network, isNetwork := errors.AsType[net.Error](err)
	switch {
	case errors.Is(cause, errRevoked), errors.Is(cause, errExpired):
		return invalidToken().withReason("%v", cause)
	case errors.Is(cause, errYielded):
		return busy("the request was ended to make room for another caller: you had more than your share").withReason("%v", cause)
	case errors.Is(cause, errSlowClient):
		return refuse(http.StatusRequestTimeout, CodeInvalidRequest, "the request did not arrive in time").withReason("%v", cause)
	case errors.Is(cause, errTimeout):
		return timedOut().withReason("%v", cause)
	case c.r.Context().Err() != nil:
		return refuse(statusClientGone, CodeInvalidRequest, "").withReason("the client left")
	case clientBroke:
		return badRequest("the request's body is broken").withReason("%s", reason)
	case badAnswer:
		return refuse(http.StatusBadGateway, CodeUnavailable, "%s", answer).withReason("%s", reason)
	case isNetwork && network.Timeout():
		return timedOut().withReason("%s", reason)
	}
	return unavailable().withReason("%s", reason)
}

// deny answers a call that does not reach the service.
func (c *call) deny(w http.ResponseWriter, e *Error) {
	c.p.metrics.answered(c.service, e.Status, 0)
	// Bound what a flood of bad requests writes, but record every other refusal of a valid token.
	flood := c.row.JTI == "" || e.Code == CodeRateLimited || e.Code == CodeBusy || e.Code == CodeExhausted
	if !flood || c.p.floodLimit.Allow() {
		rec := c.record(audit.EventDenied)
		rec.Decision, rec.Reason, rec.Status = "deny", clip(e.logReason(), 256), e.Status
		c.p.tryAudit(rec)
		c.p.log.Warn("execution_proxy: Request denied", append(c.attrs(), "status", e.Status, "reason", rec.Reason)...)
	}
	if c.r.ContentLength != 0 {
		// Close the connection soon: a client that sends its body slowly must not hold it.
		w.Header().Set("Connection", "close")
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(grace)) // best effort
	}
	writeError(w, e)
}

// complete records how a forwarded call ended.
func (c *call) complete() {
	took := time.Since(c.start)
	failed := ""
	switch cause := context.Cause(c.ctx); {
	case c.err != nil:
		failed = c.err.logReason()
	case c.delivered: // the client may leave as soon as it has the answer
	case errors.Is(cause, context.Canceled):
		failed = "the client left"
	case cause != nil:
		failed = cause.Error()
	}
	rec := c.record(audit.EventComplete)
	rec.Status, rec.Reason, rec.Sent, rec.Received = c.status, clip(failed, 256), c.sent.Load(), c.received
	rec.Duration = float64(took.Microseconds()) / 1000
	c.p.metrics.answered(c.service, c.status, took)
	c.p.tryAudit(rec)
	attrs := append(c.attrs(), "status", c.status, "duration_ms", took.Milliseconds())
	if failed != "" {
		c.p.log.Warn("execution_proxy: Request failed", append(attrs, "reason", rec.Reason)...)
		return
	}
	c.p.log.Info("execution_proxy: Request proxied successfully", attrs...)
}

func (c *call) record(event string) audit.Record {
	r := audit.Record{Event: event, Method: clip(c.r.Method, 32), Path: clip(c.path.escaped, 2048), Query: c.query}
	if c.service != nil {
		r.Service = c.service.Name
	}
	if c.row.JTI != "" {
		r.Caller, r.User, r.Execution, r.JTI = c.row.Caller, c.p.user(c.row.Caller), c.row.Execution, c.row.JTI
	}
	return r
}

func (c *call) attrs() []any {
	service := ""
	if c.service != nil {
		service = c.service.Name
	}
	return []any{"execution_id", c.row.Execution, "user", c.p.name(c.row.Caller), "service", service,
		"method", clip(c.r.Method, 32), "path", clip(c.path.escaped, 512)}
}
