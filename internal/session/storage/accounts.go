// Package storage counts what the sessions of each caller hold on disk, and what their limits
// leave.
//
// Its numbers are those of the last measurement: of a run, an upload or a deletion. It knows
// callers and directories by name only, and reads no file.
package storage

import (
	"math"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

// Limits bound what all sessions of one caller hold together, closed ones included. Zero: no limit.
type Limits struct {
	Sessions int
	Bytes    int64
	Files    int
}

// Storage is what a caller's sessions hold, as last measured, and what they may hold.
type Storage struct {
	Sessions       int // open sessions
	ClosedSessions int // closed sessions that are retained for their links
	Bytes          int64
	ClosedBytes    int64
	Files          int // including directories
	ClosedFiles    int
	Unmeasured     int // sessions, open and closed, that cannot be measured: the sums lack them

	// The limits apply to open and closed sessions together. Zero: no limit.
	MaxSessions int
	MaxBytes    int64
	MaxFiles    int
}

// Accounts has an account for every caller. Its methods are safe for concurrent use.
type Accounts struct {
	limits Limits
	exempt string

	mu      sync.Mutex
	byDir   map[string]*Entry
	callers map[string]*account
}

// Entry is the directory of one session, open or closed.
type Entry struct {
	accounts *Accounts
	dir      string
	caller   string
	id       string
	closed   time.Time // zero: the session is open
	use      workspace.Usage
	measured bool // use is a measurement
}

type account struct {
	Storage                 // what counts towards the limits, unmeasured sessions included
	uploads workspace.Usage // in progress
	growth  recentGrowth
	entries map[string]*Entry // by directory
}

// New returns empty accounts. The limits do not apply to the exempt caller.
func New(limits Limits, exempt string) *Accounts {
	return &Accounts{limits: limits, exempt: exempt, byDir: map[string]*Entry{}, callers: map[string]*account{}}
}

// Limits returns the limits of the caller.
func (a *Accounts) Limits(caller string) Limits {
	if caller == a.exempt {
		return Limits{}
	}
	return a.limits
}

// Of returns what the caller's sessions hold.
func (a *Accounts) Of(caller string) (st Storage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if acc := a.callers[caller]; acc != nil {
		st = acc.measured()
	}
	limits := a.Limits(caller)
	st.MaxSessions, st.MaxBytes, st.MaxFiles = limits.Sessions, limits.Bytes, limits.Files
	return st
}

// IDs returns the ids of the caller's open sessions, sorted.
func (a *Accounts) IDs(caller string) (ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if acc := a.callers[caller]; acc != nil {
		for _, e := range acc.entries {
			if e.closed.IsZero() {
				ids = append(ids, e.id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// Excess returns by how much the caller's open sessions and uploads exceed the limits; a negative
// number is the rest. If they exceed the limits together with the closed sessions, closed is
// the directory of the closed session to delete first.
func (a *Accounts) Excess(caller string) (over workspace.Usage, closed string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.callers[caller]
	if acc == nil {
		acc = &account{}
	}
	over = workspace.Usage{Bytes: math.MinInt64 / 2, Files: math.MinInt / 2}
	if a.limits.Bytes > 0 {
		over.Bytes = acc.Bytes + acc.uploads.Bytes - a.limits.Bytes
	}
	if a.limits.Files > 0 {
		over.Files = acc.Files + acc.uploads.Files - a.limits.Files
	}
	if over.Bytes+acc.ClosedBytes > 0 || over.Files+acc.ClosedFiles > 0 {
		closed = acc.oldestClosed(true)
	}
	return over, closed
}

// AddUpload adds to what the caller's uploads in progress hold.
func (a *Accounts) AddUpload(caller string, bytes int64, files int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.accountLocked(caller)
	acc.uploads.Bytes += bytes
	acc.uploads.Files += files
}

// Admit adds the directory of a new session. At the limit of sessions, the caller's session that
// was closed first makes way: Admit removes it from the account and returns its directory for the
// files to be deleted. ok is false if no session qualifies.
func (a *Accounts) Admit(dir, caller, id string) (closed string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.accountLocked(caller)
	if a.byDir[dir] == nil && acc.Sessions+acc.ClosedSessions >= a.limits.Sessions {
		if closed = acc.oldestClosed(false); closed == "" {
			return "", false
		}
		a.dropLocked(closed)
	}
	a.putLocked(dir, caller, id, time.Time{})
	return closed, true
}

// Put adds a session's directory, if it is unknown, and sets what it holds unless use is nil.
func (a *Accounts) Put(dir, caller, id string, closed time.Time, use *workspace.Usage) *Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.putLocked(dir, caller, id, closed)
	if use != nil {
		a.setLocked(e, *use)
	}
	return e
}

func (a *Accounts) putLocked(dir, caller, id string, closed time.Time) *Entry {
	e := a.byDir[dir]
	if e == nil {
		e = &Entry{accounts: a, dir: dir, caller: caller, id: id, closed: closed}
		a.byDir[dir] = e
		acc := a.accountLocked(caller)
		acc.entries[dir] = e
		acc.add(e, 1)
	}
	return e
}

// Set sets what the session holds, wherever its directory is now. It does nothing for a nil entry
// and for one that was dropped.
func (e *Entry) Set(use workspace.Usage) {
	if e == nil {
		return
	}
	e.accounts.mu.Lock()
	defer e.accounts.mu.Unlock()
	if e.accounts.byDir[e.dir] == e {
		e.accounts.setLocked(e, use)
	}
}

// Caller returns the caller of the session.
func (e *Entry) Caller() string { return e.caller }

// Usage returns what the session holds.
func (e *Entry) Usage() workspace.Usage {
	e.accounts.mu.Lock()
	defer e.accounts.mu.Unlock()
	return e.use
}

func (a *Accounts) setLocked(e *Entry, use workspace.Usage) {
	acc := a.callers[e.caller]
	if e.measured {
		acc.growth.add(use.Bytes-e.use.Bytes, use.Files-e.use.Files)
	}
	acc.add(e, -1)
	e.use, e.measured = use, true
	acc.add(e, 1)
}

// Close records that a session was closed at a time, and that its directory was moved to target.
func (a *Accounts) Close(dir, target string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byDir[dir]
	if e == nil {
		return
	}
	acc := a.callers[e.caller]
	if found := a.byDir[target]; found != nil { // by a scan since it was moved
		acc.add(found, -1)
	}
	acc.add(e, -1)
	delete(a.byDir, dir)
	delete(acc.entries, dir)
	e.dir, e.closed = target, at
	a.byDir[target], acc.entries[target] = e, e
	acc.add(e, 1)
}

// Drop removes a directory and reports whether it was known.
func (a *Accounts) Drop(dir string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dropLocked(dir)
}

func (a *Accounts) dropLocked(dir string) bool {
	e := a.byDir[dir]
	if e == nil {
		return false
	}
	acc := a.callers[e.caller]
	acc.add(e, -1)
	acc.growth.add(-e.use.Bytes, -e.use.Files)
	delete(a.byDir, dir)
	delete(acc.entries, dir)
	if len(acc.entries) == 0 && acc.uploads == (workspace.Usage{}) {
		delete(a.callers, e.caller)
	}
	return true
}

// OldestClosed returns the directory of the caller's session that was closed first, of those that
// hold anything, or an empty string.
func (a *Accounts) OldestClosed(caller string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if acc := a.callers[caller]; acc != nil {
		return acc.oldestClosed(true)
	}
	return ""
}

// Entries returns the known directories, or only those that were never measured.
func (a *Accounts) Entries(unmeasured bool) map[string]*Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := map[string]*Entry{}
	for dir, e := range a.byDir {
		if !unmeasured || !e.measured {
			found[dir] = e
		}
	}
	return found
}

func (a *Accounts) accountLocked(caller string) *account {
	acc := a.callers[caller]
	if acc == nil {
		acc = &account{entries: map[string]*Entry{}}
		a.callers[caller] = acc
	}
	return acc
}

// measured returns the sums without the sessions that cannot be measured.
func (acc *account) measured() Storage {
	if acc.Unmeasured == 0 {
		return acc.Storage
	}
	sums := account{Storage: acc.Storage}
	for _, e := range acc.entries {
		if e.use.Unmeasured != "" {
			sums.add(e, -1)
			sums.add(&Entry{closed: e.closed}, 1)
		}
	}
	sums.Unmeasured = acc.Unmeasured
	return sums.Storage
}

// add adds an entry to the sums, or subtracts it if sign is -1.
func (acc *account) add(e *Entry, sign int) {
	if e.use.Unmeasured != "" {
		acc.Unmeasured += sign
	}
	if e.closed.IsZero() {
		acc.Sessions += sign
		acc.Bytes += int64(sign) * e.use.Bytes
		acc.Files += sign * e.use.Files
		return
	}
	acc.ClosedSessions += sign
	acc.ClosedBytes += int64(sign) * e.use.Bytes
	acc.ClosedFiles += sign * e.use.Files
}

func (acc *account) oldestClosed(skipEmpty bool) (oldest string) {
	for dir, e := range acc.entries {
		if e.closed.IsZero() || skipEmpty && e.use == (workspace.Usage{}) {
			continue
		}
		if oldest == "" || e.closed.Before(acc.entries[oldest].closed) {
			oldest = dir
		}
	}
	return oldest
}
