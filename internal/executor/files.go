package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/share"
	"mcp-code-sandbox/internal/workspace"
)

// MaxArtifacts bounds a list of a session's files.
const MaxArtifacts = 1000

const (
	recentSessions   = 20  // sessions that RecentFiles covers
	recentCandidates = 100 // sessions looked up to find them, since some are closed

	readWait  = 10 * time.Second // how long a call waits for its turn to read files
	readRetry = 5 * time.Second  // when a client should retry after readWait
)

// FileLink is a file of a session's workspace with its download link.
type FileLink struct {
	workspace.File
	Session string
	URL     string
}

// Artifact is a file with its content.
type Artifact struct {
	FileLink
	Content []byte
}

// DataPath returns the path of a workspace's file inside the sandbox, as contract 4 names it.
func DataPath(name string) string { return "/mnt/data/" + name }

// UploadRequest is a file to put into a caller's session.
type UploadRequest struct {
	Session   string
	Name      string // as the client sent it; see workspace.CleanName
	Content   io.Reader
	Overwrite bool
}

// Upload puts a file into the caller's session, which it creates if necessary. Refusals are
// invalid_id, invalid_path, file_exists, file_too_large, quota_exceeded and disk_full.
func (e *Executor) Upload(ctx context.Context, caller session.Caller, req UploadRequest) (link FileLink, err error) {
	defer func() { e.cfg.Metrics.refused(caller, err) }()
	name, err := workspace.CleanName(req.Name)
	if err != nil {
		return FileLink{}, e.wrap(err)
	}
	s, err := e.cfg.Sessions.Open(caller, req.Session)
	if err != nil {
		return FileLink{}, e.wrap(err)
	}
	defer s.Release()
	f, err := s.Write(name, &contextReader{ctx, req.Content}, workspace.WriteOptions{
		Overwrite: req.Overwrite, MaxBytes: int64(e.cfg.MaxUploadBytes), Quota: e.cfg.Quota,
	})
	if err != nil {
		return FileLink{}, e.wrap(err)
	}
	e.cfg.Metrics.uploaded(f.Size)
	e.log.InfoContext(ctx, "file uploaded: "+f.Name, "session_id", req.Session, "bytes", f.Size)
	e.noteUsed(caller, s.ID(), true)
	return FileLink{File: f, Session: s.ID(), URL: e.url(caller, s.ID(), f.Name)}, nil
}

// contextReader ends an upload when its client is gone.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// ListOptions selects files of a session.
type ListOptions struct {
	Prefix string   // of their names
	After  Position // of the last file that is known; zero: from the start
	Limit  int      // at most this many, and at most MaxArtifacts; zero: MaxArtifacts
}

// FileList is a part of the files of a session, newest first.
type FileList struct {
	Files []FileLink
	Total int  // how many there are from After on, at least
	More  bool // there are more than Files
}

// ListArtifacts returns the files of a session that exists. Refusals are invalid_id,
// session_not_found and busy.
func (e *Executor) ListArtifacts(
	ctx context.Context, caller session.Caller, sessionID string, opt ListOptions,
) (FileList, error) {
	s, done, err := e.openToRead(ctx, caller, sessionID)
	if err != nil {
		return FileList{}, e.wrapSession(sessionID, err)
	}
	defer done()
	limit := MaxArtifacts
	if opt.Limit > 0 {
		limit = min(limit, opt.Limit)
	}
	found, err := s.Workspace().Scan(ctx, workspace.ScanOptions{Files: limit, Match: func(f workspace.File) bool {
		at := Position{f.ModTime, sessionID, f.Name}
		return strings.HasPrefix(f.Name, opt.Prefix) && (opt.After == Position{} || at.compare(opt.After) > 0)
	}})
	if err != nil {
		return FileList{}, err
	}
	files, more := found.Files()
	return FileList{Files: e.links(caller, sessionID, files), Total: found.Total(), More: more}, nil
}

// ReadArtifact reads a file of a session that exists. Refusals are invalid_id, invalid_path,
// session_not_found, not_found, artifact_too_large, busy, and file_busy if code holds a lease on
// it.
func (e *Executor) ReadArtifact(ctx context.Context, caller session.Caller, sessionID, path string) (Artifact, error) {
	name, s, err := e.lookup(caller, sessionID, path)
	if err != nil {
		return Artifact{}, err
	}
	defer s.Release()
	f, fi, err := s.Workspace().Open(name)
	if err != nil {
		return Artifact{}, e.wrapFile("artifact", name, err)
	}
	defer f.Close()
	return e.readAll(ctx, caller, sessionID, name, f, fi)
}

// ReadFile is ReadArtifact that also finds files of sessions that are closed and retained, as links
// to them do. Refusals are invalid_id, invalid_path, not_found, artifact_too_large and busy.
func (e *Executor) ReadFile(ctx context.Context, caller session.Caller, sessionID, path string) (Artifact, error) {
	name, err := workspace.CleanName(path)
	if err != nil {
		return Artifact{}, e.wrap(err)
	}
	f, fi, err := e.openFile(caller, sessionID, name)
	if err != nil {
		return Artifact{}, e.wrapFile("file", name, err)
	}
	defer f.Close()
	return e.readAll(ctx, caller, sessionID, name, f, fi)
}

// DeleteFile removes a file of a session that exists. Code that has it open keeps its content.
// Refusals are invalid_id, invalid_path (also for a directory), session_not_found and not_found.
func (e *Executor) DeleteFile(ctx context.Context, caller session.Caller, sessionID, path string) error {
	name, s, err := e.lookup(caller, sessionID, path)
	if err != nil {
		return err
	}
	defer s.Release()
	if err := s.Remove(ctx, name); err != nil {
		return e.wrapFile("file", name, err)
	}
	e.log.InfoContext(ctx, "file deleted: "+name, "session_id", sessionID)
	e.noteUsed(caller, sessionID, true)
	return nil
}

// lookup checks a file's name and opens its session, which must exist.
func (e *Executor) lookup(caller session.Caller, sessionID, path string) (name string, s *session.Session, err error) {
	if name, err = workspace.CleanName(path); err != nil {
		return "", nil, e.wrap(err)
	}
	if s, err = e.cfg.Sessions.Lookup(caller, sessionID); err != nil {
		return "", nil, e.wrapSession(sessionID, err)
	}
	return name, s, nil
}

// wrapFile is wrap for an operation on a file that must exist.
func (e *Executor) wrapFile(kind, name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{Code: CodeNotFound, Message: "No " + kind + " at " + DataPath(name), Err: err}
	}
	return e.wrap(err)
}

// openFile opens a regular file of a caller's session for download: of the session with that id, or
// else of the last closed and retained one that had the file. It never makes a session. The error
// is an *Error (invalid_id) or matches fs.ErrNotExist.
func (e *Executor) openFile(caller session.Caller, sessionID, name string) (*os.File, fs.FileInfo, error) {
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err == nil {
		defer s.Release()
		f, fi, err := s.Workspace().Open(name)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, fi, e.wrap(err)
		}
	} else if !errors.Is(err, session.ErrNotFound) {
		return nil, nil, e.wrap(err)
	}
	f, fi, err := e.cfg.Sessions.OpenRetained(caller, sessionID, name)
	return f, fi, e.wrap(err)
}

// readAll reads an open file of a session, within the limit.
func (e *Executor) readAll(
	ctx context.Context, caller session.Caller, sessionID, name string, f io.Reader, fi fs.FileInfo,
) (Artifact, error) {
	link := e.links(caller, sessionID, []workspace.File{{Name: name, Size: fi.Size(), ModTime: fi.ModTime()}})[0]
	if limit := int64(e.cfg.MaxReadBytes); link.Size > limit {
		return Artifact{}, tooLarge(link, limit)
	}
	if !e.room(ctx, caller, answerCopies*link.Size, memoryWait) {
		if ctx.Err() != nil {
			return Artifact{}, context.Cause(ctx)
		}
		return Artifact{}, memoryShort(link.URL)
	}
	done, err := e.beginRead(ctx, caller)
	if err != nil {
		return Artifact{}, err
	}
	defer done()
	// A run may be writing to the file. Leave out what it has gained since.
	content := bytes.NewBuffer(make([]byte, 0, link.Size+bytes.MinRead))
	if _, err := content.ReadFrom(io.LimitReader(f, link.Size)); err != nil {
		return Artifact{}, err
	}
	link.Size = int64(content.Len())
	return Artifact{FileLink: link, Content: content.Bytes()}, nil
}

func tooLarge(f FileLink, limit int64) *Error {
	instead := "Use download_url instead."
	if f.URL == "" {
		instead = "Read it in parts with code instead."
	}
	unit, name := int64(1), " bytes"
	switch {
	case limit%(1<<20) == 0:
		unit, name = 1<<20, "MB"
	case limit%(1<<10) == 0:
		unit, name = 1<<10, "KB"
	}
	return &Error{
		Code: CodeArtifactTooLarge, SizeBytes: f.Size, DownloadURL: f.URL,
		// The size is rounded up, so that it always exceeds the limit.
		Message: fmt.Sprintf("%s is %d%s, exceeds %d%s limit. %s", f.Name, (f.Size+unit-1)/unit, name, limit/unit, name, instead),
	}
}

// Position is a place in the list of RecentFiles, which is sorted by time (newest first), session
// and name.
type Position struct {
	ModTime time.Time
	Session string
	Name    string
}

func positionOf(f FileLink) Position { return Position{f.ModTime, f.Session, f.Name} }

func (p Position) compare(q Position) int {
	return cmp.Or(q.ModTime.Compare(p.ModTime), cmp.Compare(p.Session, q.Session), cmp.Compare(p.Name, q.Name))
}

// RecentFiles lists at most limit files of the sessions that the caller used last, newest first,
// after a position (zero: from the start). After a restart, it omits sessions that have only had
// uploads. It leaves out files that a client cannot request by name.
func (e *Executor) RecentFiles(
	ctx context.Context, caller session.Caller, after Position, limit int,
) (files []FileLink, more bool, err error) {
	ids, err := e.recentlyUsed(ctx, caller, recentCandidates)
	if err != nil {
		return nil, false, err
	}
	lists, _, err := collect(ctx, ids, recentSessions, func(id string) ([]FileLink, error) {
		return e.sessionFiles(ctx, caller, id)
	})
	if err != nil {
		return nil, false, err
	}
	files = slices.Concat(lists...)
	slices.SortFunc(files, func(a, b FileLink) int { return positionOf(a).compare(positionOf(b)) })
	if after != (Position{}) {
		files = slices.DeleteFunc(files, func(f FileLink) bool { return positionOf(f).compare(after) <= 0 })
	}
	if len(files) > limit {
		return files[:limit:limit], true, nil
	}
	return files, false, nil
}

func (e *Executor) sessionFiles(ctx context.Context, caller session.Caller, id string) ([]FileLink, error) {
	s, done, err := e.openToRead(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	defer done()
	found, _, err := s.Workspace().List(MaxArtifacts)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(f workspace.File) bool {
		clean, err := workspace.CleanName(f.Name)
		return err != nil || clean != f.Name
	})
	return e.links(caller, id, found), nil
}

// openToRead opens a session that exists and waits for the caller's turn to read its files.
func (e *Executor) openToRead(ctx context.Context, caller session.Caller, id string) (s *session.Session, done func(), err error) {
	if s, err = e.cfg.Sessions.Lookup(caller, id); err != nil {
		return nil, nil, err
	}
	end, err := e.beginRead(ctx, caller)
	if err != nil {
		s.Release()
		return nil, nil, err
	}
	return s, func() {
		end()
		s.Release()
	}, nil
}

// newReads makes the pool of turns to list and read files. More turns than this would slow runs.
func newReads() *share.Pool {
	return share.New(share.Config{Capacity: int64(max(2, runtime.GOMAXPROCS(0)/2)), Exempt: session.Local.ID})
}

// beginRead waits for the caller's turn to read files, which lasts until done is called. The error
// is the refusal busy, or ctx's.
func (e *Executor) beginRead(ctx context.Context, caller session.Caller) (done func(), err error) {
	wait, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	turn, err := e.reads.Acquire(wait, caller.ID, 1)
	switch {
	case err == nil:
		return turn.Release, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, &Error{Code: CodeBusy, Err: err, RetryAfter: readRetry,
		Message: fmt.Sprintf("The server is busy reading files for others. Try again in %s.", seconds(readRetry))}
}
