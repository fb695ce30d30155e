package executor

import (
	"container/list"
	"context"
	"errors"
	"io/fs"
	"math"
	"slices"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

// A root may hold thousands of sessions, so no list reads all of them.
const (
	rememberedSessions = 1000 // of all callers, in memory
	sessionCandidates  = 1000 // looked up by ListSessions: a run with Once leaves a closed session
	countedEntries     = 1000 // of a workspace, for its size
	keptRuns           = 20   // listed per session
)

// SessionInfo describes a session in a list.
type SessionInfo struct {
	ID        string
	LastUsed  time.Time // to the minute, if this server has not used the session
	Files     int
	Bytes     int64
	MoreFiles bool   // there are more than were counted
	Live      bool   // the session has a sandbox in this server
	Problem   string // why the session cannot be used, and Bytes are as last measured; or only measured
}

// ListSessions lists the caller's sessions, last used first, at most limit of them. It lists the
// sessions that RecentFiles covers, and all that count towards the caller's share. more means that
// there may be others.
func (e *Executor) ListSessions(ctx context.Context, caller session.Caller, limit int) (sessions []SessionInfo, more bool, err error) {
	ids, err := e.recentlyUsed(ctx, caller, sessionCandidates)
	if err != nil {
		return nil, false, err
	}
	ids = appendNew(ids, e.cfg.Sessions.IDs(caller), math.MaxInt)
	sessions, more, err = collect(ctx, ids, limit, func(id string) (SessionInfo, error) {
		return e.sessionInfo(ctx, caller, id)
	})
	slices.SortStableFunc(sessions, func(a, b SessionInfo) int { return b.LastUsed.Compare(a.LastUsed) })
	return sessions, more, err
}

// collect calls get for sessions until it has limit results. It skips those that are closed or
// unusable. more means that it did not look at all of them.
func collect[T any](ctx context.Context, ids []string, limit int, get func(id string) (T, error)) (list []T, more bool, err error) {
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		if len(list) == limit {
			return list, true, nil
		}
		item, err := get(id)
		if errors.Is(err, session.ErrNotFound) || isUnusable(err) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		list = append(list, item)
	}
	return list, false, nil
}

// isUnusable reports whether the files of one session are the problem, not the server.
func isUnusable(err error) bool {
	_, ok := errors.AsType[*fs.PathError](err)
	return ok && !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE)
}

func (e *Executor) sessionInfo(ctx context.Context, caller session.Caller, id string) (SessionInfo, error) {
	info, err := e.openInfo(ctx, caller, id)
	if !isUnusable(err) {
		return info, err
	}
	stored, ok := e.cfg.Sessions.Stored(caller, id)
	if !ok {
		return SessionInfo{}, err
	}
	info = SessionInfo{ID: id, LastUsed: stored.LastUsed, MoreFiles: true}
	if stored.Bytes != nil {
		info.Bytes = *stored.Bytes
	}
	if _, info.Problem = e.describe(err); info.Problem == "" {
		info.Problem = "This session's files cannot be read; the server's log says why."
		e.log.WarnContext(ctx, "cannot read the files of a session", "session_id", id, "error", err)
	}
	return info, nil
}

// openInfo is sessionInfo for a session that can be opened.
func (e *Executor) openInfo(ctx context.Context, caller session.Caller, id string) (SessionInfo, error) {
	s, done, err := e.openToRead(ctx, caller, id)
	if err != nil {
		return SessionInfo{}, err
	}
	defer done()
	info := SessionInfo{ID: id, LastUsed: s.LastUsed(), Live: s.Live()}
	if at := e.activity.lastUsed(caller, id); at.After(info.LastUsed) {
		info.LastUsed = at
	}
	if why := s.Unmeasured(); why != "" {
		info.Problem = "This session's files cannot be measured: " + why + "."
	}
	info.Files, info.Bytes, info.MoreFiles, err = s.Workspace().Count(ctx, countedEntries)
	if stored, ok := e.cfg.Sessions.Stored(caller, id); ok && info.MoreFiles && stored.Bytes != nil {
		info.Bytes = max(info.Bytes, *stored.Bytes) // as measured, of all files
	}
	return info, err
}

// recentlyUsed returns the ids of at most limit sessions of the caller, last used first. Some may
// be closed. Without an answer of the database, they are those that this process remembers.
func (e *Executor) recentlyUsed(ctx context.Context, caller session.Caller, limit int) ([]string, error) {
	ids := e.activity.sessions(caller, limit)
	if e.cfg.Store == nil {
		return ids, nil
	}
	stored, err := e.cfg.Store.RecentSessions(ctx, caller.ID, limit)
	if e.cfg.Store.IsDown(err) {
		e.log.WarnContext(ctx, "the database does not answer; a list lacks sessions that were not used lately", "error", err)
		return ids, nil
	}
	if err != nil {
		return nil, err
	}
	return appendNew(ids, stored, limit), nil
}

// appendNew appends the elements of more that ids lacks, up to limit ids in total.
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

// Storage returns what the caller's sessions hold on disk, and what they may hold.
func (e *Executor) Storage(caller session.Caller) session.Storage {
	return e.cfg.Sessions.Storage(caller)
}

// CloseSession ends a session that exists, with its runs and upload links. Download links work
// while closed sessions are retained. Refusals are invalid_id and session_not_found.
func (e *Executor) CloseSession(ctx context.Context, caller session.Caller, sessionID string) error {
	e.runs.cancelSession(caller, sessionID) // also those in a queue
	return e.closeSession(ctx, caller, sessionID)
}

// CloseAndRevoke closes the session, if it exists, and ends all links to files of sessions of that
// id. Besides CloseSession's refusals it returns links_permanent: the local caller's links cannot
// be revoked, because contract 1's formula has no generation.
func (e *Executor) CloseAndRevoke(ctx context.Context, caller session.Caller, sessionID string) error {
	if caller == session.Local {
		return refuse(CodeLinksPermanent, "The links of the API token's holder cannot be revoked, and the session is still open. "+
			"Delete the files and close it without revoke_links, or have the operator change FILE_SECRET.")
	}
	if err := e.CloseSession(ctx, caller, sessionID); err != nil && codeOf(err) != CodeSessionNotFound {
		return err
	}
	return e.wrapSession(sessionID, e.cfg.Sessions.RevokeLinks(caller, sessionID))
}

func (e *Executor) closeSession(ctx context.Context, caller session.Caller, sessionID string) error {
	hadFiles := e.hasFiles(ctx, caller, sessionID)
	if err := e.cfg.Sessions.CloseSession(ctx, caller, sessionID); err != nil {
		return e.wrapSession(sessionID, err)
	}
	e.activity.remove(usedKey{caller, sessionID})
	if hadFiles {
		e.fileChanges.notify(caller)
	}
	if e.cfg.Store == nil {
		return nil
	}
	if err := e.cfg.Store.DropTickets(context.WithoutCancel(ctx), caller.ID, sessionID); err != nil {
		// The session is closed. An upload to such a link makes a new one.
		e.log.WarnContext(ctx, "cannot drop the upload links of a closed session", "session_id", sessionID, "error", err)
	}
	return nil
}

// hasFiles reports whether a session has, or may have, files.
func (e *Executor) hasFiles(ctx context.Context, caller session.Caller, sessionID string) bool {
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err != nil {
		return false
	}
	defer s.Release()
	files, _, more, err := s.Workspace().Count(ctx, countedEntries)
	return err != nil || files > 0 || more
}

// RunInfo describes a run in a list of a session's runs.
type RunInfo struct {
	ID, Runner string
	Tag        string // of the request
	Started    time.Time
	Running    bool
	Queued     *Queue // what a Running run waits for; nil: nothing
	// Of a run that has ended:
	Duration time.Duration
	ExitCode int
	Cause    sandbox.Cause
}

// RecentRuns lists the last runs of a session in this process, newest first.
func (e *Executor) RecentRuns(caller session.Caller, sessionID string) []RunInfo {
	list := e.activity.runs(usedKey{caller, sessionID})
	for i := range list {
		if r := e.runs.find(caller, list[i].ID); r != nil && list[i].Running {
			list[i].Queued = r.queue()
		}
	}
	return list
}

// Watch calls changed when a run, an upload or the end of a session changes a caller's files. It
// may call it without a change. changed must not block.
func (e *Executor) Watch(changed func(session.Caller)) { e.fileChanges.add(changed) }

// WatchRuns calls changed when a run of a caller starts or ends. changed must not block.
func (e *Executor) WatchRuns(changed func(session.Caller)) { e.runChanges.add(changed) }

// noteUsed records that a session was used now, and notifies the watchers if its files changed.
func (e *Executor) noteUsed(caller session.Caller, id string, changed bool) {
	e.activity.update(usedKey{caller, id}, func(*use) {})
	if changed {
		e.fileChanges.notify(caller)
	}
}

// noteStarted lists a run. It leaves out a run that closes its session: nobody can ask for that
// session's runs.
func (e *Executor) noteStarted(r *run) {
	if r.req.Once || r.req.Internal {
		return
	}
	e.activity.update(usedKey{r.caller, r.req.Session}, func(u *use) {
		u.runs = slices.Insert(u.runs, 0, RunInfo{ID: r.id, Runner: r.runner, Tag: r.req.Tag, Started: r.started, Running: true})
		u.runs = u.runs[:min(len(u.runs), keptRuns)]
	})
	e.runChanges.notify(r.caller)
}

// noteEnded records how a run ended, and removes a refused run.
func (e *Executor) noteEnded(r *run) {
	if r.req.Once || r.req.Internal {
		return
	}
	e.activity.endRun(r)
	e.runChanges.notify(r.caller)
}

// watchers are functions to call when a caller's files or runs change. The zero value is ready to
// use.
type watchers struct {
	mu    sync.Mutex
	funcs []func(session.Caller)
}

func (w *watchers) add(f func(session.Caller)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.funcs = append(w.funcs, f)
}

func (w *watchers) notify(caller session.Caller) {
	w.mu.Lock()
	funcs := slices.Clone(w.funcs)
	w.mu.Unlock()
	for _, f := range funcs {
		f(caller)
	}
}

// activity holds the most recently used sessions and their runs. The zero value is ready to use.
type activity struct {
	mu    sync.Mutex
	order list.List // of *use, last used first
	byID  map[usedKey]*list.Element
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

// update moves a session to the front and calls change with it.
func (a *activity) update(key usedKey, change func(*use)) {
	a.mu.Lock()
	defer a.mu.Unlock()
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
	change(u)
}

// endRun updates the entry of a run that has ended.
func (a *activity) endRun(r *run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.findLocked(usedKey{r.caller, r.req.Session})
	if u == nil {
		return
	}
	i := slices.IndexFunc(u.runs, func(info RunInfo) bool { return info.ID == r.id })
	switch {
	case i < 0:
	case r.err != nil:
		u.runs = slices.Delete(u.runs, i, i+1)
	default:
		info := &u.runs[i]
		info.Running, info.Duration, info.ExitCode, info.Cause = false, r.res.Duration, r.res.ExitCode, r.res.Cause
	}
}

func (a *activity) remove(key usedKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if el := a.byID[key]; el != nil {
		a.order.Remove(el)
		delete(a.byID, key)
	}
}

// findLocked returns a session, nil if it is unknown.
func (a *activity) findLocked(key usedKey) *use {
	if el := a.byID[key]; el != nil {
		return el.Value.(*use)
	}
	return nil
}

func (a *activity) runs(key usedKey) []RunInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.findLocked(key); u != nil {
		return slices.Clone(u.runs)
	}
	return nil
}

// lastUsed returns when the session was last used, or zero.
func (a *activity) lastUsed(caller session.Caller, id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.findLocked(usedKey{caller, id}); u != nil {
		return u.at
	}
	return time.Time{}
}

// sessions returns the ids of at most limit sessions of the caller, last used first.
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
