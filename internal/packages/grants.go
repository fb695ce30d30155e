package packages

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/untrusted"
)

// The codes of a Problem and of refused requests.
const (
	CodeTooNew      = "package_too_new"
	CodeAgeUnknown  = "package_age_unknown"
	CodeNotAllowed  = "package_not_allowed"
	CodeNoWheel     = "no_wheel"
	CodeHash        = "hash_mismatch"
	CodeUnreachable = "index_unreachable"
	CodeQuota       = "quota_exceeded"
	CodeUnknown     = "package_not_found"

	codeNotFound = "not_found"
	codeNoRun    = "no_run"
)

const (
	maxProblems = 32  // of a run
	maxDenied   = 256 // records of a run
	// maxUnknownNoted bounds the unknown packages among the problems of a run.
	maxUnknownNoted = 3
	maxUpstream     = 8 // requests of a sandbox that wait for indexes at once
)

// Problem is a package, or a version of one, that a run asked for and did not get.
type Problem struct {
	Code    string
	Package string
	Message string // what is wrong and what to do
	Soft    bool   // forgotten if the run gets another version of the package
}

// refusal is the answer to a request that is not served.
type refusal struct {
	code, message string
	offer         *offer // whose newest hidden version it is about; or nil
}

func refuse(code, format string, args ...any) *refusal {
	return &refusal{code: code, message: untrusted.Clip(untrusted.Printable(fmt.Sprintf(format, args...)), 1000)}
}

var runEnded = refuse(codeNoRun, "The run has ended.")

func (r *refusal) Error() string { return r.message }

// status is 403 or 424 for what a retry would not change: clients retry the 5xx, slowly.
func (r *refusal) status() int {
	switch r.code {
	case codeNotFound, CodeUnknown:
		return http.StatusNotFound
	case CodeUnreachable:
		return http.StatusFailedDependency
	}
	return http.StatusForbidden
}

// sandbox is what the overlapping runs of a sandbox share, so that more runs do not get more of it.
type sandbox struct {
	id       string
	caller   string
	ctx      context.Context // ends with the last run
	cancel   context.CancelFunc
	upstream chan struct{} // taken while a request waits for an index, so that others have room
	runs     []*run        // that have a grant, the newest last; guarded by Mirror.mu
}

func newSandbox(id, caller string) *sandbox {
	ctx, cancel := context.WithCancel(context.Background())
	return &sandbox{id: id, caller: caller, ctx: ctx, cancel: cancel, upstream: make(chan struct{}, maxUpstream)}
}

// owner returns the sandbox's caller. Evicted files that are being read have none.
func (s *sandbox) owner() string {
	if s == nil {
		return ""
	}
	return s.caller
}

// run is a run that may use the mirror. Its counters and next are guarded by Mirror.mu.
type run struct {
	id, caller string
	sandbox    *sandbox
	next       *run // has taken over the requests of this run, which has ended

	slots     chan struct{}    // a token for each of asked
	asked     map[string]*slot // by kind and name
	exhausted chan struct{}    // closed while every slot is lost

	requests int
	bytes    int64
	unknown  int // names whose slots are lost
	problems []noted
	denied   map[denial]bool // in the audit trail
	unlisted int             // refusals beyond these

	filing sync.Mutex      // held while the record of a file is written
	filed  map[string]bool // hashes of the files in the audit trail; guarded by filing
}

// slot is what a name takes of the names that a run may ask indexes for. It is lost once the name
// was sent, until the index answers with its page. Its fields are guarded by Mirror.mu.
type slot struct {
	run  *run
	key  string
	uses int // requests that wait for the page, and the one that is sent
	lost bool
}

type denial struct{ code, name string }

// noted is a problem with a package of a kind, or with the newest hidden version of one.
type noted struct {
	Problem
	kind  string
	offer *offer
}

func (m *Mirror) newRun(caller, id string, s *sandbox) *run {
	return &run{id: id, caller: caller, sandbox: s, slots: make(chan struct{}, m.cfg.Budget.UnknownNames),
		asked: map[string]*slot{}, exhausted: make(chan struct{}), denied: map[denial]bool{}, filed: map[string]bool{}}
}

// owner returns the run that answers for the requests of r: r, or the run that has taken them over.
// The caller holds Mirror.mu.
func (r *run) owner() *run {
	for r.next != nil {
		r = r.next
	}
	return r
}

// Grant lets a run in a sandbox use the mirror until Release, and returns the variables for it.
func (m *Mirror) Grant(caller, runID, sandboxID string) map[string]string {
	m.Release(runID)
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sandboxes[sandboxID]
	if s == nil {
		s = newSandbox(sandboxID, caller)
		m.sandboxes[sandboxID] = s
	}
	r := m.newRun(caller, runID, s)
	m.runs[runID] = r
	s.runs = append(s.runs, r)
	return m.Environment()
}

// Release ends the grant of a run, and returns what the run did not get. Its transfers end with the
// last run of the sandbox; until then, the newest one takes them over. unmet are requirements of
// clients that have failed, such as "six==2.0" or "lodash@^4".
func (m *Mirror) Release(runID string, unmet ...string) (list []Problem) {
	r, problems := m.release(runID)
	if r == nil {
		return nil
	}
	for _, n := range problems {
		if p, ok := n.explain(unmet); ok {
			list = append(list, p)
		}
	}
	m.mu.Lock()
	unlisted := r.unlisted
	m.mu.Unlock()
	if unlisted > 0 {
		_ = m.recordAs(r, audit.Record{Event: audit.EventDenied, Decision: "deny", Reason: fmt.Sprintf("%d further refusals, of packages that are not listed", unlisted)})
	}
	return list
}

// release ends the grant of a run, and returns the run and its problems.
func (m *Mirror) release(runID string) (r *run, problems []noted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r = m.runs[runID]
	if r == nil {
		return nil, nil
	}
	delete(m.runs, runID)
	s := r.sandbox
	s.runs = slices.DeleteFunc(s.runs, func(other *run) bool { return other == r })
	if n := len(s.runs); n > 0 {
		r.next = s.runs[n-1]
	} else {
		s.cancel()
		delete(m.sandboxes, s.id)
	}
	// A soft problem may only explain why the run took another version.
	slices.SortStableFunc(r.problems, func(a, b noted) int {
		switch {
		case a.Soft == b.Soft:
			return 0
		case b.Soft:
			return -1
		}
		return 1
	})
	return r, slices.Clone(r.problems) // requests that end late may add to them
}

// explain returns the problem, or what is wrong with the version that the run asked for. ok is
// false if the mirror is not the reason.
func (n noted) explain(unmet []string) (p Problem, ok bool) {
	text, wanted := n.unmet(unmet)
	if text == "" || len(n.offer.dropped) >= maxDropped {
		return n.Problem, !n.Soft || n.Code != CodeNoWheel // a source release explains nothing if there are wheels
	}
	newest := ""
	for version := range n.offer.dropped {
		if mayMean(n.kind, wanted, version) && (newest == "" || newer(version, newest)) {
			newest = version
		}
	}
	why := n.offer.dropped[newest]
	if why == nil || why.code == CodeNoWheel {
		for version := range n.offer.versions {
			if mayMean(n.kind, wanted, version) { // it fits, but not this Python or platform
				return Problem{}, false
			}
		}
	}
	if why == nil {
		why = n.offer.withNewest(refuse(CodeUnknown, "There is no version of %s that fits %s.", n.Package, showRequirement(text)))
	}
	return Problem{why.code, n.Package, why.message, n.Soft}, true
}

// unmet returns the requirement that a hidden version of the package may explain, and its versions.
func (n noted) unmet(list []string) (text, versions string) {
	for _, text := range list {
		if name, versions := splitRequirement(n.kind, text); n.offer != nil && name == n.Package {
			return text, versions
		}
	}
	return "", ""
}

// enter returns the newest run of a sandbox and counts a request against it.
func (m *Mirror) enter(sandboxID string) (*run, *refusal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sandboxes[sandboxID]
	if s == nil {
		return nil, refuse(codeNoRun, "No run of this sandbox may install packages now.")
	}
	r := s.runs[len(s.runs)-1]
	if r.requests++; r.requests > m.cfg.Budget.Requests {
		return r, refuse(CodeQuota, "The run has made %d requests for packages, which is the limit. Install fewer packages per run.", m.cfg.Budget.Requests)
	}
	return r, nil
}

// charge counts bytes against the budget of the run that answers for the requests of r. A budget
// that was exhausted stays so for what was requested under it.
func (m *Mirror) charge(r *run, n int64) *refusal {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r.next != nil && r.bytes <= m.cfg.Budget.Bytes {
		r = r.next
	}
	if r.bytes += n; r.bytes > m.cfg.Budget.Bytes {
		return refuse(CodeQuota, "The run has received %d MB of packages, which is the limit. Install fewer packages per run.", m.cfg.Budget.Bytes>>20)
	}
	return nil
}

// ask takes the slot of a name, with which the run may ask an index for it; leave is to be called
// afterwards. A run has as many slots as it may ask for unknown names. It waits for one that names
// on their way may give back, unless the name has one already.
func (m *Mirror) ask(ctx context.Context, r *run, key string) (*slot, *refusal) {
	m.mu.Lock()
	known, exhausted := r.use(key), r.exhausted
	m.mu.Unlock()
	if known != nil {
		return known, nil
	}
	tooMany := refuse(CodeQuota, "The run has asked for %d packages of which the index gave no page, which is the limit. Check the names.", m.cfg.Budget.UnknownNames)
	select {
	case <-exhausted:
		return nil, tooMany
	default:
	}
	select {
	case r.slots <- struct{}{}:
	case <-exhausted:
		return nil, tooMany
	case <-ctx.Done():
		return nil, runEnded
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if known := r.use(key); known != nil { // asked since
		<-r.slots
		return known, nil
	}
	s := &slot{run: r, key: key, uses: 1}
	r.asked[key] = s
	return s, nil
}

// use returns the slot of a name for another request, or nil. The caller holds Mirror.mu.
func (r *run) use(key string) *slot {
	s := r.asked[key]
	if s != nil {
		s.uses++
	}
	return s
}

// hold keeps a slot for what is sent, since requests may leave before. It reports false if the slot
// was given back; otherwise, leave is to be called.
func (m *Mirror) hold(s *slot) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	held := s.run.asked[s.key] == s
	if held {
		s.uses++
	}
	return held
}

// leave gives a slot back when nobody uses it any more, unless it is lost.
func (m *Mirror) leave(s *slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.uses--; s.uses == 0 && !s.lost {
		delete(s.run.asked, s.key)
		<-s.run.slots
	}
}

// settle records whether the index returned a page for the name. If not, the slot stays used.
func (m *Mirror) settle(s *slot, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, limit := s.run, m.cfg.Budget.UnknownNames
	switch {
	case s.lost == !known:
		return
	case known:
		if r.unknown == limit {
			r.exhausted = make(chan struct{})
		}
		r.unknown--
	default:
		if r.unknown++; r.unknown == limit {
			close(r.exhausted)
		}
	}
	s.lost = !known
}

// wait takes a slot with which a request may wait for an index. leave is to be called afterwards.
func (s *sandbox) wait(ctx context.Context) (leave func(), why *refusal) {
	select {
	case s.upstream <- struct{}{}:
		return func() { <-s.upstream }, nil
	case <-ctx.Done():
		return nil, runEnded
	}
}

// deny writes a refusal to the audit trail, once per run, reason and name.
func (m *Mirror) deny(r *run, kind, name string, why *refusal) {
	m.mu.Lock()
	r = r.owner()
	d := denial{why.code, name}
	known, isFull := r.denied[d], len(r.denied) >= maxDenied
	switch {
	case known:
	case isFull:
		r.unlisted++
	default:
		r.denied[d] = true
	}
	m.mu.Unlock()
	if !known && !isFull {
		_ = m.recordAs(r, audit.Record{Event: audit.EventDenied, Service: kind, Path: name, Decision: "deny", Reason: why.code})
	}
}

// recordFile writes to the audit trail, once per run, that a run gets a file, also from the cache.
// It returns nil only after the record was written, by this or another request.
func (m *Mirror) recordFile(r *run, kind, path, hash string) error {
	m.mu.Lock()
	r = r.owner()
	m.mu.Unlock()
	r.filing.Lock()
	defer r.filing.Unlock()
	if r.filed[hash] {
		return nil
	}
	err := m.recordAs(r, audit.Record{Event: audit.EventFile, Service: kind, Path: path, Decision: "allow", Digest: hash})
	if err == nil {
		r.filed[hash] = true
	}
	return err
}

// note records a problem of a run.
func (m *Mirror) note(r *run, kind, name string, why *refusal, soft bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r = r.owner()
	n := noted{Problem{why.code, name, why.message, soft}, kind, why.offer}
	isSame := func(old noted) bool { return old.Problem == n.Problem && old.kind == kind }
	if len(r.problems) < maxProblems && !slices.ContainsFunc(r.problems, isSame) {
		r.problems = append(r.problems, n)
	}
}

// noteUnknown records that the index does not know a package. Only a few are kept, which leave room
// for other problems.
func (m *Mirror) noteUnknown(r *run, kind, name string, why *refusal) {
	m.mu.Lock()
	known := 0
	for _, n := range r.owner().problems {
		if n.Code == CodeUnknown {
			known++
		}
	}
	m.mu.Unlock()
	if known < maxUnknownNoted {
		m.note(r, kind, name, why, true)
	}
}

// got forgets the soft problems of a package.
func (m *Mirror) got(r *run, kind, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r = r.owner()
	r.problems = slices.DeleteFunc(r.problems, func(n noted) bool { return n.Soft && n.kind == kind && n.Package == name })
}

// record writes to the audit trail under the run that answers for the requests of r.
func (m *Mirror) record(r *run, rec audit.Record) error {
	m.mu.Lock()
	r = r.owner()
	m.mu.Unlock()
	return m.recordAs(r, rec)
}

// recordAs writes to the audit trail under r, also after r has ended.
func (m *Mirror) recordAs(r *run, rec audit.Record) error {
	if m.cfg.Audit == nil {
		return nil
	}
	rec.Room, rec.Caller, rec.User, rec.Execution = "packages", r.caller, m.cfg.User(r.caller), r.id
	rec.Method = http.MethodGet
	return m.cfg.Audit.Append(rec)
}

// milliseconds returns the time since start for the audit trail.
func (m *Mirror) milliseconds(start time.Time) float64 {
	return float64(m.cfg.Now().Sub(start)) / float64(time.Millisecond)
}
