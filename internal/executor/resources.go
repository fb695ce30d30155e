package executor

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"io/fs"
	"math"
	"slices"
	"sync"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// RecentFiles never looks through all sessions there are: a root may hold thousands.
const (
	rememberedSessions = 1000 // of all callers, in memory
	recentSessions     = 20   // whose files are listed
	recentCandidates   = 100  // looked up to find those: some have been closed
	sessionCandidates  = 1000 // looked up to list sessions: every run without a session of its own has left a closed one
	countedEntries     = 1000 // of a workspace, to say how much is in it

	// clockSlack is how far the time of a file may lie before the moment it was written at: file systems round down to
	// the kernel's tick.
	clockSlack = 20 * time.Millisecond
)

// Position is a place in the order of RecentFiles, which is that of times, newest first, then of sessions and names.
type Position struct {
	ModTime time.Time
	Session string
	Name    string
}

func positionOf(f FileLink) Position { return Position{f.ModTime, f.Session, f.Name} }

func (p Position) compare(q Position) int {
	return cmp.Or(q.ModTime.Compare(p.ModTime), cmp.Compare(p.Session, q.Session), cmp.Compare(p.Name, q.Name))
}

// RecentFiles lists files of the sessions that the caller used last, newest first: at most limit of them, after a position,
// or from the start when it is zero. It knows the sessions that were used through this executor, and those whose runs the
// store remembers; a session that has only had uploads is unknown after a restart. Files whose name no client could ask
// for are left out.
func (e *Executor) RecentFiles(ctx context.Context, caller session.Caller, after Position, limit int) (files []FileLink, more bool, err error) {
	ids, err := e.recentlyUsed(ctx, caller, recentCandidates)
	if err != nil {
		return nil, false, err
	}
	found := 0
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		if found == recentSessions {
			break
		}
		of, err := e.sessionFiles(ctx, caller, id)
		if errors.Is(err, session.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		found++
		files = append(files, of...)
	}
	slices.SortFunc(files, func(a, b FileLink) int { return positionOf(a).compare(positionOf(b)) })
	if after != (Position{}) {
		files = slices.DeleteFunc(files, func(f FileLink) bool { return positionOf(f).compare(after) <= 0 })
	}
	if len(files) > limit {
		return files[:limit:limit], true, nil
	}
	return files, false, nil
}

// recentlyUsed returns the ids of sessions that the caller has used, last used first and at most limit of them. Some may have
// been closed.
func (e *Executor) recentlyUsed(ctx context.Context, caller session.Caller, limit int) ([]string, error) {
	ids := e.activity.sessions(caller, limit)
	if e.cfg.Store == nil {
		return ids, nil
	}
	stored, err := e.cfg.Store.RecentSessions(ctx, caller.ID, limit)
	if err != nil {
		return nil, err
	}
	return appendNew(ids, stored, limit), nil
}

// appendNew appends to ids those of more that it does not have, up to limit in all.
func appendNew(ids, more []string, limit int) []string {
	known := make(map[string]bool, len(ids))
	for _, id := range ids {
		known[id] = true
	}
	for _, id := range more {
		if !known[id] && len(ids) < limit {
			ids = append(ids, id)
		}
	}
	return ids
}

// ListSessions lists the caller's sessions, last used first: at most limit of them, and whether there are, or may be, more. Besides
// those that RecentFiles knows, it lists all that count towards the caller's share.
func (e *Executor) ListSessions(ctx context.Context, caller session.Caller, limit int) (sessions []SessionInfo, more bool, err error) {
	ids, err := e.recentlyUsed(ctx, caller, sessionCandidates)
	if err != nil {
		return nil, false, err
	}
	ids = appendNew(ids, e.cfg.Sessions.IDs(caller), math.MaxInt)
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		if len(sessions) == limit {
			more = true
			break
		}
		info, err := e.sessionInfo(ctx, caller, id)
		if errors.Is(err, session.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		sessions = append(sessions, info)
	}
	slices.SortStableFunc(sessions, func(a, b SessionInfo) int { return b.LastUsed.Compare(a.LastUsed) })
	return sessions, more, nil
}

// Storage returns what the caller's sessions hold on disk, and what they may.
func (e *Executor) Storage(caller session.Caller) session.Storage {
	return e.cfg.Sessions.Storage(caller)
}

func (e *Executor) sessionInfo(ctx context.Context, caller session.Caller, id string) (SessionInfo, error) {
	s, err := e.cfg.Sessions.Lookup(caller, id)
	if err != nil {
		return SessionInfo{}, err
	}
	defer s.Release()
	done, err := e.beginRead(ctx, caller)
	if err != nil {
		return SessionInfo{}, err
	}
	defer done()
	info := SessionInfo{ID: id, LastUsed: s.LastUsed(), Live: s.Live()}
	if at := e.activity.lastUsed(caller, id); at.After(info.LastUsed) {
		info.LastUsed = at
	}
	info.Files, info.Bytes, info.MoreFiles, err = s.Workspace().Count(ctx, countedEntries)
	return info, err
}

func (e *Executor) sessionFiles(ctx context.Context, caller session.Caller, id string) ([]FileLink, error) {
	s, err := e.cfg.Sessions.Lookup(caller, id)
	if err != nil {
		return nil, err
	}
	defer s.Release()
	done, err := e.beginRead(ctx, caller)
	if err != nil {
		return nil, err
	}
	defer done()
	found, _, err := s.Workspace().List(maxArtifacts)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(f workspace.File) bool {
		clean, err := workspace.CleanName(f.Name)
		return err != nil || clean != f.Name
	})
	return e.links(caller, id, found), nil
}

// ReadFile is ReadArtifact that also finds the files of sessions which have been closed and are retained, as links to them do.
// Refusals are invalid_id, invalid_path, not_found and artifact_too_large.
func (e *Executor) ReadFile(ctx context.Context, caller session.Caller, sessionID, path string) (Artifact, error) {
	name, err := workspace.CleanName(path)
	if err != nil {
		return Artifact{}, e.wrap(err)
	}
	f, fi, err := e.OpenFile(ctx, caller, sessionID, name)
	if errors.Is(err, fs.ErrNotExist) {
		return Artifact{}, &Error{Code: CodeNotFound, Message: "No file at " + DataPath(name), Err: err}
	}
	if err != nil {
		return Artifact{}, err
	}
	defer f.Close()
	return e.readAll(ctx, caller, sessionID, name, f, fi)
}

// Watch has changed called whenever files of a caller's were made or changed by a run or an upload, or went with their session. It is
// called by whoever changed them, so it must not block. It may be called once too often.
func (e *Executor) Watch(changed func(session.Caller)) {
	e.activity.mu.Lock()
	defer e.activity.mu.Unlock()
	e.activity.watchers = append(e.activity.watchers, changed)
}

// hasFiles reports whether a session has, or may have, any file that was listed.
func (e *Executor) hasFiles(ctx context.Context, caller session.Caller, sessionID string) bool {
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err != nil {
		return false
	}
	defer s.Release()
	files, _, more, err := s.Workspace().Count(ctx, countedEntries)
	return err != nil || files > 0 || more
}

// activity is which sessions were used last, and who wants to know when files change. The zero value is ready.
type activity struct {
	mu       sync.Mutex
	order    list.List // of *use, last used first
	byID     map[usedKey]*list.Element
	watchers []func(session.Caller)

	runWatchers []func(session.Caller)
}

type usedKey struct {
	caller session.Caller
	id     string
}

type use struct {
	usedKey
	at   time.Time
	runs []RunInfo // newest first
}

func (a *activity) used(caller session.Caller, id string, changed bool) {
	a.mu.Lock()
	a.useLocked(usedKey{caller, id})
	a.mu.Unlock()
	if changed {
		a.tell(caller)
	}
}

// useLocked moves a session to the front and returns what is known of it.
func (a *activity) useLocked(key usedKey) *use {
	el := a.byID[key]
	if el == nil {
		if a.byID == nil {
			a.byID = map[usedKey]*list.Element{}
		}
		el = a.order.PushFront(&use{usedKey: key})
		a.byID[key] = el
		if a.order.Len() > rememberedSessions {
			delete(a.byID, a.order.Remove(a.order.Back()).(*use).usedKey)
		}
	}
	u := el.Value.(*use)
	u.at = time.Now()
	a.order.MoveToFront(el)
	return u
}

// closed forgets a session.
func (a *activity) closed(caller session.Caller, id string, hadFiles bool) {
	key := usedKey{caller, id}
	a.mu.Lock()
	if el := a.byID[key]; el != nil {
		a.order.Remove(el)
		delete(a.byID, key)
	}
	a.mu.Unlock()
	if hadFiles {
		a.tell(caller)
	}
}

func (a *activity) tell(caller session.Caller) {
	a.mu.Lock()
	watchers := slices.Clone(a.watchers)
	a.mu.Unlock()
	for _, changed := range watchers {
		changed(caller)
	}
}

// sessions are the ids of the caller's sessions, last used first.
func (a *activity) sessions(caller session.Caller, limit int) (ids []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for el := a.order.Front(); el != nil && len(ids) < limit; el = el.Next() {
		if u := el.Value.(*use); u.caller == caller {
			ids = append(ids, u.id)
		}
	}
	return ids
}

// lastUsed is when the session was last used, or zero.
func (a *activity) lastUsed(caller session.Caller, id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if el := a.byID[usedKey{caller, id}]; el != nil {
		return el.Value.(*use).at
	}
	return time.Time{}
}
