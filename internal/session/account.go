package session

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/workspace"
)

// Storage is what a caller's sessions hold on disk, as last measured, and what they may.
type Storage struct {
	Sessions       int // that are open
	ClosedSessions int // that are closed and retained for their links
	Bytes          int64
	ClosedBytes    int64
	Files          int // directories and everything else included
	ClosedFiles    int
	MaxSessions    int   // of both kinds; zero: any number
	MaxBytes       int64 // of both kinds; zero: any number
	MaxFiles       int   // of both kinds; zero: any number
}

// CallerError says that a caller's share of the server's storage is used up. It matches workspace.ErrQuota.
type CallerError struct {
	Storage
	TooManySessions bool
	TooManyFiles    bool // otherwise the bytes are used up
}

func (e *CallerError) Error() string {
	if e.TooManySessions {
		return fmt.Sprintf("the caller has %d sessions of at most %d", e.Sessions, e.MaxSessions)
	}
	if e.TooManyFiles {
		return fmt.Sprintf("the caller's sessions hold %d files of at most %d", e.Files, e.MaxFiles)
	}
	return fmt.Sprintf("the caller's sessions hold %d bytes of at most %d", e.Bytes, e.MaxBytes)
}

// Is reports whether target is workspace.ErrQuota.
func (e *CallerError) Is(target error) bool { return target == workspace.ErrQuota }

// accounts know what every session on disk holds, open or closed, and so what every caller does. The numbers are those of the
// last measurement: of a run, an upload or a deletion, or else of meta.json.
type accounts struct {
	mu      sync.Mutex
	byDir   map[string]*entry
	callers map[Caller]*account
}

// entry is one session's directory.
type entry struct {
	dir    string
	caller Caller
	id     string
	use    workspace.Usage
	closed time.Time // zero: it is open
	known  bool      // use is a measurement
}

type account struct {
	Storage
	uploading workspace.Usage // of uploads that are not a file yet
	recent    [recentMinutes]growth
	dirs      map[string]*entry
}

func (a *accounts) of(c Caller) *account {
	acc := a.callers[c]
	if acc == nil {
		acc = &account{dirs: map[string]*entry{}}
		a.callers[c] = acc
	}
	return acc
}

// count adds an entry to its caller's sums, or with sign -1 takes it out.
func (a *accounts) count(e *entry, sign int) {
	acc := a.of(e.caller)
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

// put notes a session's directory. Without a usage, what is known of it stays.
func (a *accounts) put(dir string, caller Caller, id string, closed time.Time, use *workspace.Usage) *entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.putLocked(dir, caller, id, closed)
	if use != nil {
		a.setLocked(e, *use)
	}
	return e
}

func (a *accounts) putLocked(dir string, caller Caller, id string, closed time.Time) *entry {
	e := a.byDir[dir]
	if e == nil {
		e = &entry{dir: dir, caller: caller, id: id, closed: closed}
		a.byDir[dir] = e
		a.of(caller).dirs[dir] = e
		a.count(e, 1)
	}
	return e
}

// admit notes a new session's directory if its caller then has at most so many. Otherwise it takes the place of the session that the
// caller closed first, which admit returns for its files to be deleted. ok is false when there is none.
func (a *accounts) admit(dir string, caller Caller, id string, most int) (closed string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if acc := a.of(caller); a.byDir[dir] == nil && acc.Sessions+acc.ClosedSessions >= most {
		if closed = a.oldestClosedLocked(caller, false); closed == "" {
			return "", false
		}
		a.dropLocked(closed)
	}
	a.putLocked(dir, caller, id, time.Time{})
	return closed, true
}

// set notes what a directory, if it is known, holds.
func (a *accounts) set(dir string, use workspace.Usage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.byDir[dir]; e != nil {
		a.setLocked(e, use)
	}
}

// setEntry is set for the directory of an entry, which may have moved. It does nothing when there is no account of it any more.
func (a *accounts) setEntry(e *entry, use workspace.Usage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e != nil && a.byDir[e.dir] == e {
		a.setLocked(e, use)
	}
}

// holds returns what an entry has.
func (a *accounts) holds(e *entry) workspace.Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return e.use
}

func (a *accounts) setLocked(e *entry, use workspace.Usage) {
	if e.known {
		a.of(e.caller).grow(use.Bytes-e.use.Bytes, use.Files-e.use.Files)
	}
	a.count(e, -1)
	e.use, e.known = use, true
	a.count(e, 1)
}

// drop forgets a directory and reports whether it was known.
func (a *accounts) drop(dir string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dropLocked(dir)
}

func (a *accounts) dropLocked(dir string) bool {
	e := a.byDir[dir]
	if e == nil {
		return false
	}
	a.count(e, -1)
	delete(a.byDir, dir)
	acc := a.callers[e.caller]
	acc.grow(-e.use.Bytes, -e.use.Files)
	delete(acc.dirs, dir)
	if len(acc.dirs) == 0 && acc.uploading == (workspace.Usage{}) {
		delete(a.callers, e.caller)
	}
	return true
}

// retain notes that a session was closed, and that its directory is now another.
func (a *accounts) retain(dir, target string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.byDir[dir]
	if e == nil {
		return
	}
	acc := a.of(e.caller)
	if twin := a.byDir[target]; twin != nil { // a scan was faster
		a.count(twin, -1)
	}
	a.count(e, -1)
	delete(a.byDir, dir)
	delete(acc.dirs, dir)
	e.dir, e.closed = target, at
	a.byDir[target], acc.dirs[target] = e, e
	a.count(e, 1)
}

// use returns a caller's sums, and what its uploads in progress take.
func (a *accounts) use(c Caller) (Storage, workspace.Usage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if acc := a.callers[c]; acc != nil {
		return acc.Storage, acc.uploading
	}
	return Storage{}, workspace.Usage{}
}

// ids returns the ids of a caller's open sessions, in order.
func (a *accounts) ids(c Caller) (ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if acc := a.callers[c]; acc != nil {
		for _, e := range acc.dirs {
			if e.closed.IsZero() {
				ids = append(ids, e.id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// uploading adds to what the caller's uploads in progress take.
func (a *accounts) uploading(c Caller, bytes int64, files int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc := a.of(c)
	acc.uploading.Bytes += bytes
	acc.uploading.Files += files
}

// oldestClosed returns the directory of the caller's session that was closed first, or an empty string. With holding, those that
// hold nothing do not count.
func (a *accounts) oldestClosed(c Caller, holding bool) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.oldestClosedLocked(c, holding)
}

func (a *accounts) oldestClosedLocked(c Caller, holding bool) string {
	acc := a.callers[c]
	if acc == nil {
		return ""
	}
	oldest := ""
	for dir, e := range acc.dirs {
		if e.closed.IsZero() || holding && e.use == (workspace.Usage{}) {
			continue
		}
		if oldest == "" || e.closed.Before(acc.dirs[oldest].closed) {
			oldest = dir
		}
	}
	return oldest
}

// dirs returns the directories that are known, or those of them of which no measurement is.
func (a *accounts) dirs(unmeasured bool) map[string]entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := map[string]entry{}
	for dir, e := range a.byDir {
		if !unmeasured || !e.known {
			found[dir] = *e
		}
	}
	return found
}
