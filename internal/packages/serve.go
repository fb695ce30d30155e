package packages

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
)

// request is a request of a sandbox.
type request struct {
	m    *Mirror
	w    http.ResponseWriter
	r    *http.Request
	ctx  context.Context // ends with the connection or with the sandbox's last run
	run  *run
	kind *kind
	name string // of the package, once it is known
	paid bool   // the run paid for the file when it was downloaded
	// sending is set once the answer may have begun: a refusal then cuts the connection.
	sending bool
}

// ServeSandbox answers a request for /packages/{kind}/… It counts against the newest run of the
// sandbox that has a grant, and is cut when the last one is released.
func (m *Mirror) ServeSandbox(w http.ResponseWriter, r *http.Request, sandboxID string) {
	q := &request{m: m, w: w, r: r}
	var why *refusal
	if q.run, why = m.enter(sandboxID); q.run == nil {
		m.metrics.requests.WithLabelValues("none", why.code).Inc()
		q.answer(why)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(q.run.sandbox.ctx, func() {
		cancel()
		_ = http.NewResponseController(w).SetWriteDeadline(past)
	})()
	q.ctx = ctx
	label := "none"
	if why == nil {
		why = q.serve()
	}
	if q.kind != nil {
		label = q.kind.name
	}
	if why == nil {
		m.metrics.requests.WithLabelValues(label, "ok").Inc()
		return
	}
	m.metrics.requests.WithLabelValues(label, why.code).Inc()
	switch why.code {
	case codeNotFound, codeNoRun:
	case CodeUnknown:
		m.noteUnknown(q.run, label, q.name, why)
	default:
		m.note(q.run, label, q.name, why, false)
		m.deny(q.run, label, q.name, why)
	}
	if q.sending {
		panic(http.ErrAbortHandler)
	}
	q.answer(why)
}

// answer sends a refusal.
func (q *request) answer(why *refusal) {
	h := q.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Set("npm-notice", why.message) // npm prints it
	q.w.WriteHeader(why.status())
	_ = json.NewEncoder(q.w).Encode(map[string]string{"error": why.code, "message": why.message})
}

var notServed = refuse(codeNotFound, "The mirror serves packages for installation only: no search, no listing, no publishing.")

// serve routes the request. The path's segments are decoded one by one, and each is checked.
func (q *request) serve() *refusal {
	rest, ok := strings.CutPrefix(q.r.URL.EscapedPath(), "/packages/")
	if !ok || q.r.Method != http.MethodGet && q.r.Method != http.MethodHead {
		return notServed
	}
	name, rest, _ := strings.Cut(rest, "/")
	if q.kind = q.m.kinds[name]; q.kind == nil {
		if name == PyPI || name == NPM {
			return refuse(CodeNotAllowed, "This server installs no packages from %s. The operator can turn them on with SANDBOX_PACKAGES=pypi,npm.", name)
		}
		return notServed
	}
	segments := strings.Split(rest, "/")
	for i, s := range segments {
		var err error
		if segments[i], err = url.PathUnescape(s); err != nil {
			return notServed
		}
	}
	if q.kind.name == NPM {
		return q.serveNPM(segments)
	}
	return q.servePyPI(segments)
}

// project returns the package with a name as its index and the policy have it.
func (q *request) project(name string) (*project, *index, *refusal) {
	name, ok := parseName(q.kind.name, name)
	if !ok {
		return nil, nil, refuse(CodeNotAllowed, "This is not a valid name of a package.")
	}
	q.name = name
	x, why := q.kind.indexOf(name)
	if why != nil {
		return nil, nil, why
	}
	p, why := q.load(x, name)
	if why != nil {
		return nil, nil, why
	}
	if p.missing {
		return nil, nil, refuse(CodeUnknown, "The index has no package %s. Check the name.", name)
	}
	return p, x, nil
}

// load returns a project from the cache, or asks the index for it, once for everybody.
func (q *request) load(x *index, name string) (*project, *refusal) {
	m := q.m
	key := q.kind.name + " " + name // a name belongs to one index
	old, fresh := m.pages.get(key)
	if fresh {
		return old, nil
	}
	s, why := m.ask(q.ctx, q.run, key)
	if why != nil {
		return nil, why
	}
	defer m.leave(s)
	leave, why := q.run.sandbox.wait(q.ctx)
	if why != nil {
		return nil, why
	}
	defer leave()
	p, err := m.pages.fetches.do(q.ctx, key, 2*pageTimeout, func(ctx context.Context) (*project, error) {
		if p, fresh := m.pages.get(key); fresh { // read since
			return p, nil
		}
		if !m.hold(s) { // its request has left already
			return nil, errBusy
		}
		defer m.leave(s)
		sent, known := false, false
		defer func() { // also if the parser panics
			if sent {
				m.settle(s, known)
			}
		}()
		p, err := q.fetch(ctx, x, name, old, func() { sent = true })
		if err == nil {
			known = !p.missing
			m.pages.put(key, p)
		}
		return p, err
	})
	if err != nil {
		return nil, q.failure(err)
	}
	return p, nil
}

// statusError is an answer of an index without what was asked for.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("the index answers with status %d", int(e)) }

// fetch reads a project's page, or revalidates old. It calls sent when the index may learn the
// name.
func (q *request) fetch(ctx context.Context, x *index, name string, old *project, sent func()) (*project, error) {
	m, now := q.m, q.m.cfg.Now()
	header, parse := http.Header{"Accept": {simpleAccept}}, m.parsePyPI
	page := x.url.JoinPath(name + "/")
	if q.kind.name == NPM {
		header, parse = http.Header{"Accept": {"application/json"}}, m.parseNPM
		page = x.url.JoinPath(strings.ReplaceAll(name, "/", "%2f"))
	}
	if tag := old.validator(now); tag != "" {
		header.Set("If-None-Match", tag)
	}
	resp, err := q.download(ctx, x, page, header, sent)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotModified && old != nil && header.Get("If-None-Match") != "":
		same := *old
		same.fetched = now
		return &same, nil
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusGone:
		return &project{offer: &offer{}, name: name, missing: true, fetched: now}, nil
	case resp.StatusCode != http.StatusOK:
		return nil, statusError(resp.StatusCode)
	}
	data, release, err := readAll(resp.Body, maxPage, &m.pages.reading, q.run.sandbox)
	defer release()
	if err != nil {
		return nil, err
	}
	if x.repeatsCredential(data) {
		return nil, errors.New("the index's page has the credential in it")
	}
	if len(data) > largePage {
		select {
		case m.pages.parsing <- struct{}{}:
			defer func() { <-m.pages.parsing }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	p, err := parse(x, name, resp.Request.URL, resp.Header.Get("Content-Type"), data)
	if err != nil {
		return nil, fmt.Errorf("the index's page cannot be read: %w", err)
	}
	p.name, p.fetched, p.etag = name, now, etagOf(resp.Header)
	return p, nil
}

// download sends a request to an index, and once more if that fails. Before each attempt, also for
// a redirect, it writes the audit trail.
func (q *request) download(ctx context.Context, x *index, u *url.URL, header http.Header, sent func()) (*http.Response, error) {
	start := q.m.cfg.Now()
	rec := audit.Record{Event: audit.EventIntent, Service: q.kind.name, Host: u.Host, Path: u.EscapedPath(), Decision: "allow"}
	ctx = context.WithValue(ctx, attemptsKey{}, attempts{sent: sent, record: func(target *url.URL) error {
		attempt := rec
		attempt.Host, attempt.Path = target.Host, target.EscapedPath()
		return q.m.record(q.run, attempt)
	}})
	resp, err := x.get(ctx, u, header.Clone())
	if err != nil && ctx.Err() == nil && !errors.Is(err, errAddress) && !errors.Is(err, closednet.ErrAddress) {
		resp, err = x.get(ctx, u, header.Clone())
	}
	rec.Event = audit.EventComplete
	if err != nil {
		rec.Reason, rec.Duration = CodeUnreachable, q.m.milliseconds(start)
		_ = q.m.record(q.run, rec)
		return nil, err
	}
	rec.Status = resp.StatusCode
	resp.Body = &received{ReadCloser: resp.Body, q: q, record: func(n int64, failed bool) {
		rec.Received, rec.Duration = n, q.m.milliseconds(start)
		if failed {
			rec.Reason = reasonIncomplete
		}
		_ = q.m.record(q.run, rec)
	}}
	return resp, nil
}

// reasonIncomplete is the reason in the audit trail of an answer that was not received whole.
const reasonIncomplete = "incomplete"

// failure returns the refusal for an error.
func (q *request) failure(err error) *refusal {
	if why, ok := errors.AsType[*refusal](err); ok {
		return why
	}
	isCut := q.ctx.Err() != nil && errors.Is(err, context.Canceled) // no failure
	if x, why := q.kind.indexOf(q.name); why == nil && !isCut {
		q.m.log.Warn("packages: Request failed", "kind", q.kind.name, "package", q.name, "index", x.url.Redacted(), "error", x.redacted(err))
	}
	switch {
	case errors.Is(err, errHash):
		return refuse(CodeHash, "A file of %s does not have the hash that the index gives for it, so it was not used. "+
			"Use another version, and tell the operator: the index or the way to it may be compromised.", q.name)
	case errors.Is(err, errCacheSize):
		return refuse(CodeQuota, "A file of %s does not fit: %v. The operator can raise packages.cacheBytes in SANDBOX_CONFIG.", q.name, err)
	case errors.Is(err, errTooLarge):
		return refuse(CodeQuota, "What the index says about %s is more than the server reads: %v. Use another package or version.", q.name, err)
	case errors.Is(err, errBusy):
		return refuse(CodeQuota, "The server has too many packages on their way to serve %s now. Try again later.", q.name)
	case errors.Is(err, errAddress):
		return refuse(CodeNotAllowed, "The index refers for %s to an address that is neither https nor its own, so it was not used. Use another version.", q.name)
	case errors.Is(err, closednet.ErrAddress):
		return refuse(CodeNotAllowed, "The index refers for %s to an address that the server may not reach. "+
			"The operator can add its network to allowPrivateAddresses of the index in SANDBOX_CONFIG.", q.name)
	case q.ctx.Err() != nil:
		return runEnded
	}
	return refuse(CodeUnreachable, "The package index could not be used for %s. Try again later, or ask the operator: the log of the server has the reason, "+
		"and mcp-code-sandbox doctor checks the index.", q.name)
}

// unreadTimeout bounds how long a sandbox may take nothing of a page.
const unreadTimeout = 30 * time.Second

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// setWriteDeadline sets until when the sandbox must take what is sent. It does not put off the end
// of the sandbox's last run.
func (q *request) setWriteDeadline(t time.Time) {
	control := http.NewResponseController(q.w) // a recorder of a test has no deadlines
	if _ = control.SetWriteDeadline(t); q.ctx.Err() != nil {
		_ = control.SetWriteDeadline(past)
	}
}

// taken renews the write deadline whenever the sandbox has taken a part of the page.
type taken struct {
	io.ReadSeeker
	q *request
}

func (t taken) Read(p []byte) (int, error) {
	t.q.setWriteDeadline(time.Now().Add(unreadTimeout))
	return t.ReadSeeker.Read(p)
}

// sendPage sends a project's page and notes which versions are missing, and why. A sandbox that
// does not read its pages keeps their projects in memory, so they count.
func (q *request) sendPage(p *project, contentType string, page func() []byte) *refusal {
	if !q.m.pages.sending.begin(q.run.sandbox, p) {
		return q.failure(errBusy)
	}
	defer q.m.pages.sending.end(q.run.sandbox, p)
	if p.note != nil {
		if p.newest == "" {
			return p.note
		}
		q.m.note(q.run, q.kind.name, p.name, p.note, true)
	}
	body := page()
	if why := q.m.charge(q.run, int64(len(body))); why != nil {
		return why
	}
	q.w.Header().Set("Content-Type", contentType)
	q.w.Header().Set("Vary", "Accept")
	http.ServeContent(q.w, q.r, "", time.Time{}, taken{bytes.NewReader(body), q})
	q.setWriteDeadline(time.Time{}) // the connection may serve other requests
	return nil
}

// sendFile sends a file, which it downloads if the cache does not have it. suffix is "" or
// ".metadata".
func (q *request) sendFile(x *index, f *file, hash, suffix string, check func(*content) *refusal) *refusal {
	m := q.m
	if why := m.charge(q.run, 0); why != nil {
		return why
	}
	limit := m.cfg.CacheBytes
	if suffix != "" {
		limit = maxMetadata
	}
	if f.size > limit { // unknown of metadata
		return q.failure(fmt.Errorf("%w: it has %d MB", errCacheSize, f.size>>20))
	}
	content, err := m.files.cached(q.ctx, hash)
	if content == nil && err == nil {
		content, err = q.fetchFile(x, f, hash, suffix, limit)
	}
	if err != nil {
		return q.failure(err)
	}
	defer content.Close()
	if why := m.charge(q.run, 0); why != nil {
		return why
	}
	if check != nil {
		if why := check(content); why != nil {
			return why
		}
	}
	if suffix == "" {
		if err := m.recordFile(q.run, q.kind.name, q.name+"/"+f.name, f.hash); err != nil {
			return q.failure(fmt.Errorf("write the audit trail: %w", err))
		}
		m.got(q.run, q.kind.name, q.name)
	}
	h := q.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", `"`+hash+`"`)
	body := &charged{ReadSeeker: content, q: q}
	q.sending = true
	http.ServeContent(q.w, q.r, "", time.Time{}, body)
	switch {
	case body.why != nil:
		return body.why
	case q.ctx.Err() != nil:
		return runEnded
	}
	return m.charge(q.run, 0)
}

// fetchFile downloads a file into the cache.
func (q *request) fetchFile(x *index, f *file, hash, suffix string, limit int64) (*content, error) {
	leave, why := q.run.sandbox.wait(q.ctx)
	if why != nil {
		return nil, why
	}
	defer leave()
	m, address := q.m, *f.url
	if address.Path += suffix; address.RawPath != "" {
		address.RawPath += suffix
	}
	source := x.url.String() + " " + address.String()
	return m.files.open(q.ctx, q.run.sandbox, source, hash, limit, func(ctx context.Context, put func(io.Reader) error) error {
		q.paid = true
		resp, err := q.download(ctx, x, &address, http.Header{"Accept-Encoding": {"identity"}}, func() {})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return statusError(resp.StatusCode)
		}
		m.metrics.files.Add(1)
		m.metrics.downloaded.WithLabelValues(q.kind.name).Inc()
		return put(resp.Body)
	})
}

// received counts what an index sends against the budget of the run that asked for it. It does not
// stop there, because others may wait for the same. When it is closed, it calls record.
type received struct {
	io.ReadCloser
	q      *request
	n      int64
	failed bool
	record func(n int64, failed bool)
}

func (r *received) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.n += int64(n)
	r.failed = err != nil && err != io.EOF
	_ = r.q.m.charge(r.q.run, int64(n))
	return n, err
}

func (r *received) Close() error {
	err := r.ReadCloser.Close()
	if r.record != nil {
		r.record(r.n, r.failed)
		r.record = nil
	}
	return err
}

// charged counts what it reads against the run's budget, unless its download was, and stops with
// the request.
type charged struct {
	io.ReadSeeker
	q   *request
	why *refusal // why it stopped early, unless the request has ended
}

func (c *charged) Read(p []byte) (int, error) {
	if err := c.q.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.ReadSeeker.Read(p)
	if err != nil && err != io.EOF {
		c.why = c.q.failure(err)
	}
	if c.q.paid {
		return n, err
	}
	if why := c.q.m.charge(c.q.run, int64(n)); why != nil {
		c.why = why
		return 0, why
	}
	return n, err
}
