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

const (
	keyPrefix      = "~" // no session id starts with it
	generationMark = "."
)

// linkID returns the id by which links name a session: the id itself for the local caller, else the
// session's key, since ids are unique only per caller, and the generation, so that links end with
// the session.
func (e *Executor) linkID(caller session.Caller, id string) string {
	if caller == session.Local {
		return id
	}
	return keyPrefix + e.cfg.Sessions.Key(caller, id) + generationMark + e.cfg.Sessions.Generation(caller, id)
}

// parseLinkID returns the session's key and generation. It reports false for an id of the local
// caller.
func parseLinkID(id string) (key, generation string, ok bool) {
	if id, ok = strings.CutPrefix(id, keyPrefix); !ok {
		return "", "", false
	}
	key, generation, _ = strings.Cut(id, generationMark)
	return key, generation, true
}

// url returns the download link of a file.
func (e *Executor) url(caller session.Caller, id, name string) string {
	return e.cfg.Signer.FileURL(e.linkID(caller, id), name)
}

func (e *Executor) links(caller session.Caller, id string, files []workspace.File) []FileLink {
	links := make([]FileLink, len(files))
	linkID := e.linkID(caller, id)
	for i, f := range files {
		links[i] = FileLink{File: f, Session: id, URL: e.cfg.Signer.FileURL(linkID, f.Name)}
	}
	return links
}

// OpenLink opens the file that a download link names. The caller has checked the link's signature.
// The error is an *Error (invalid_id) or matches fs.ErrNotExist.
func (e *Executor) OpenLink(id, name string) (*os.File, fs.FileInfo, error) {
	key, generation, ok := parseLinkID(id)
	if !ok {
		return e.openFile(session.Local, id, name)
	}
	f, fi, err := e.cfg.Sessions.OpenLink(key, generation, name)
	return f, fi, e.wrap(err)
}

// LinkCaller returns the owner of the session that a link names, or "" if the session does not
// exist.
func (e *Executor) LinkCaller(id string) string {
	key, _, ok := parseLinkID(id)
	if !ok {
		return session.Local.ID
	}
	return e.cfg.Sessions.LinkCaller(key)
}

// UploadURL returns a link for a single PUT of a file. It expires when the session is closed. It
// creates the session if necessary.
func (e *Executor) UploadURL(
	ctx context.Context, caller session.Caller, sessionID, name string, overwrite bool,
) (url string, expires time.Time, err error) {
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
		Overwrite: overwrite, Expires: e.cfg.Store.Now().Add(e.cfg.UploadTTL).Truncate(time.Second),
	}
	if err := e.cfg.Store.AddTicket(ctx, t); err != nil {
		return "", time.Time{}, err
	}
	s.Keep() // the link names this session
	e.noteUsed(caller, sessionID, false)
	return e.cfg.Signer.UploadURL(e.linkID(caller, sessionID), name, t.ID, t.Expires), t.Expires, nil
}

// ReceiveUpload stores the file that a client sent to a link of UploadURL. The caller has checked
// the link's signature. A used link is refused with link_expired. The link stays valid if the
// upload breaks off or finds no space.
func (e *Executor) ReceiveUpload(ctx context.Context, ticketID, id, name string, body io.Reader) (FileLink, error) {
	expired := refuse(CodeLinkExpired, "This upload link has been used or has expired. Ask for a new one.")
	if e.cfg.Store == nil {
		return FileLink{}, expired
	}
	t, err := e.cfg.Store.TakeTicket(ctx, ticketID, e.cfg.Store.Now())
	caller := session.Caller{ID: t.Caller}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return FileLink{}, expired
	case err != nil:
		return FileLink{}, err
	case e.linkID(caller, t.Session) != id || t.Name != name:
		return FileLink{}, expired
	}
	generation := e.cfg.Sessions.Generation(caller, t.Session)
	content := &breakReader{r: body}
	link, err := e.Upload(ctx, caller, UploadRequest{Session: t.Session, Name: t.Name, Content: content, Overwrite: t.Overwrite})
	if err == nil {
		return link, nil
	}
	noSpace := codeOf(err) == CodeQuotaExceeded || codeOf(err) == CodeDiskFull
	if (content.broken || ctx.Err() != nil || noSpace) && e.isOpen(caller, t.Session, generation) {
		if err := e.cfg.Store.AddTicket(context.WithoutCancel(ctx), t); err != nil {
			e.log.WarnContext(ctx, "cannot renew the link of an upload that failed", "session_id", t.Session, "error", err)
		}
	}
	return FileLink{}, err
}

// isOpen reports whether the session is open and of that generation. Closing drops its tickets.
func (e *Executor) isOpen(caller session.Caller, sessionID, generation string) bool {
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err != nil {
		return false
	}
	defer s.Release()
	return e.cfg.Sessions.Generation(caller, sessionID) == generation
}

// breakReader records whether a body broke off before its end.
type breakReader struct {
	r      io.Reader
	broken bool
}

func (b *breakReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.broken = err != nil && err != io.EOF
	return n, err
}
