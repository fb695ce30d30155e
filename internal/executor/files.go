package executor

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/workspace"
)

// Upload puts a file into the caller's session, which is made if need be. Errors that the caller can do
// something about are of type *Error: invalid_id, invalid_path, file_exists, file_too_large, quota_exceeded, disk_full.
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
	e.activity.used(caller, s.ID(), true)
	return FileLink{File: f, Session: s.ID(), URL: e.url(caller, s.ID(), f.Name)}, nil
}

// UploadURL returns a link to which one file can be PUT, once, until the session is closed. The session is made if need be.
func (e *Executor) UploadURL(ctx context.Context, caller session.Caller, sessionID, name string, overwrite bool) (url string, expires time.Time, err error) {
	if name, err = workspace.CleanName(name); err != nil {
		return "", time.Time{}, e.wrap(err)
	}
	if e.cfg.Store == nil {
		return "", time.Time{}, errors.New("upload links need a store")
	}
	s, err := e.cfg.Sessions.Open(caller, sessionID)
	if err != nil {
		return "", time.Time{}, e.wrap(err)
	}
	defer s.Release()
	var b [16]byte
	rand.Read(b[:]) // never fails
	t := store.Ticket{
		ID: hex.EncodeToString(b[:]), Caller: caller.ID, Session: sessionID, Name: name,
		Overwrite: overwrite, Expires: time.Now().Add(e.cfg.UploadTTL).Truncate(time.Second),
	}
	if err := e.cfg.Store.AddTicket(ctx, t); err != nil {
		return "", time.Time{}, err
	}
	s.Keep() // the link is to this session
	e.activity.used(caller, sessionID, false)
	return e.cfg.Signer.UploadURL(e.linkID(caller, sessionID), name, t.ID, t.Expires), t.Expires, nil
}

// ReceiveUpload takes the file that was sent to a link of UploadURL. The link's signature must have been
// checked. A link works once; then the error is link_expired. An upload that breaks off, or finds no room, does not count.
func (e *Executor) ReceiveUpload(ctx context.Context, ticketID, id, name string, body io.Reader) (FileLink, error) {
	expired := &Error{Code: CodeLinkExpired, Message: "This upload link has been used or has expired. Ask for a new one."}
	if e.cfg.Store == nil {
		return FileLink{}, expired
	}
	t, err := e.cfg.Store.TakeTicket(ctx, ticketID, time.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
		return FileLink{}, expired
	case err != nil:
		return FileLink{}, err
	case e.linkID(session.Caller{ID: t.Caller}, t.Session) != id || t.Name != name:
		return FileLink{}, expired
	}
	caller := session.Caller{ID: t.Caller}
	generation := e.cfg.Sessions.Generation(caller, t.Session)
	content := &brokenReader{r: body}
	link, err := e.Upload(ctx, caller, UploadRequest{Session: t.Session, Name: t.Name, Content: content, Overwrite: t.Overwrite})
	if err != nil && (content.broken || ctx.Err() != nil || noRoom(err)) && e.isOpen(caller, t.Session, generation) {
		if err := e.cfg.Store.AddTicket(context.WithoutCancel(ctx), t); err != nil {
			e.log.WarnContext(ctx, "cannot give back the link of an upload that broke off", "session_id", t.Session, "err", err)
		}
	}
	return link, err
}

// noRoom reports whether an upload was refused for want of room, which the caller or the operator can make.
func noRoom(err error) bool {
	var refusal *Error
	return errors.As(err, &refusal) && (refusal.Code == CodeQuotaExceeded || refusal.Code == CodeDiskFull)
}

// isOpen reports whether the session is open and of that generation. One that is closed has taken its tickets with it.
func (e *Executor) isOpen(caller session.Caller, sessionID, generation string) bool {
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err != nil {
		return false
	}
	defer s.Release()
	return e.cfg.Sessions.Generation(caller, sessionID) == generation
}

// brokenReader notes whether a body broke off before its end.
type brokenReader struct {
	r      io.Reader
	broken bool
}

func (b *brokenReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.broken = err != nil && err != io.EOF
	return n, err
}

// OpenLink opens the file that a download link names. The link's signature must have been checked. Errors are those of OpenFile.
func (e *Executor) OpenLink(ctx context.Context, id, name string) (*os.File, fs.FileInfo, error) {
	key, ok := strings.CutPrefix(id, keyPrefix)
	if !ok {
		return e.OpenFile(ctx, session.Local, id, name)
	}
	key, generation, _ := strings.Cut(key, generationMark)
	f, fi, err := e.cfg.Sessions.OpenLink(key, generation, name)
	return f, fi, e.wrap(err)
}

// LinkCaller returns the caller whose session a link names, or an empty string if there is no such session.
func (e *Executor) LinkCaller(id string) string {
	key, ok := strings.CutPrefix(id, keyPrefix)
	if !ok {
		return session.Local.ID
	}
	key, _, _ = strings.Cut(key, generationMark)
	return e.cfg.Sessions.LinkCaller(key)
}

// OpenFile opens a regular file of a caller's session for download: of the session of that id, or else of the last one that
// was closed, had such a file, and is retained. It never makes a session. The error is an *Error (invalid_id), or matches
// fs.ErrNotExist.
func (e *Executor) OpenFile(_ context.Context, caller session.Caller, sessionID, name string) (*os.File, fs.FileInfo, error) {
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

// contextReader ends an upload whose client is gone.
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
