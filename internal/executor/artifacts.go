package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// ListArtifacts returns the files of a session that exists, newest first. truncated says that there are more. Refusals are
// invalid_id, session_not_found and busy.
func (e *Executor) ListArtifacts(ctx context.Context, caller session.Caller, sessionID string) (files []FileLink, truncated bool, err error) {
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err != nil {
		return nil, false, e.wrapSession(sessionID, err)
	}
	defer s.Release()
	done, err := e.beginRead(ctx, caller)
	if err != nil {
		return nil, false, err
	}
	defer done()
	list, truncated, err := s.Workspace().List(maxArtifacts)
	if err != nil {
		return nil, false, err
	}
	return e.links(caller, sessionID, list), truncated, nil
}

// ReadArtifact reads a file of a session that exists. Refusals are invalid_id, invalid_path, session_not_found, not_found,
// artifact_too_large, busy, and file_busy for a file that code holds a lease on.
func (e *Executor) ReadArtifact(ctx context.Context, caller session.Caller, sessionID, path string) (Artifact, error) {
	name, err := workspace.CleanName(path)
	if err != nil {
		return Artifact{}, e.wrap(err)
	}
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err != nil {
		return Artifact{}, e.wrapSession(sessionID, err)
	}
	defer s.Release()
	f, fi, err := s.Workspace().Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Artifact{}, &Error{Code: CodeNotFound, Message: "No artifact at " + DataPath(name), Err: err}
	}
	if err != nil {
		return Artifact{}, e.wrap(err)
	}
	defer f.Close()
	return e.readAll(ctx, caller, sessionID, name, f, fi)
}

// readAll reads an open file of a session, within the limit.
func (e *Executor) readAll(ctx context.Context, caller session.Caller, sessionID, name string, f io.Reader, fi fs.FileInfo) (Artifact, error) {
	link := e.links(caller, sessionID, []workspace.File{{Name: name, Size: fi.Size(), ModTime: fi.ModTime()}})[0]
	limit := int64(e.cfg.MaxReadBytes)
	if link.Size > limit {
		return Artifact{}, tooLarge(link, limit)
	}
	if !e.room(ctx, caller, answerCopies*link.Size, roomWait) {
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
	// A run may be writing to it: the size of a moment ago promises nothing. What it has gained since is left out.
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
	unit, name := unitOf(limit)
	return &Error{
		Code: CodeArtifactTooLarge, SizeBytes: f.Size, DownloadURL: f.URL,
		// Rounded up, so that it is never said to be as large as the limit.
		Message: fmt.Sprintf("%s is %d%s, exceeds %d%s limit. %s", f.Name, (f.Size+unit-1)/unit, name, limit/unit, name, instead),
	}
}

// unitOf is the largest unit of which n is a whole number.
func unitOf(n int64) (unit int64, name string) {
	switch {
	case n%(1<<20) == 0:
		return 1 << 20, "MB"
	case n%(1<<10) == 0:
		return 1 << 10, "KB"
	}
	return 1, " bytes"
}

// DeleteFile removes a file of a session that exists. Code that has it open goes on with what it has. Refusals are invalid_id,
// invalid_path, also for a directory, session_not_found and not_found.
func (e *Executor) DeleteFile(ctx context.Context, caller session.Caller, sessionID, path string) error {
	name, err := workspace.CleanName(path)
	if err != nil {
		return e.wrap(err)
	}
	s, err := e.cfg.Sessions.Lookup(caller, sessionID)
	if err != nil {
		return e.wrapSession(sessionID, err)
	}
	defer s.Release()
	err = s.Remove(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{Code: CodeNotFound, Message: "No file at " + DataPath(name), Err: err}
	}
	if err != nil {
		return e.wrap(err)
	}
	e.log.InfoContext(ctx, "file deleted: "+name, "session_id", sessionID)
	e.activity.used(caller, sessionID, true)
	return nil
}

// CloseSession ends a session that exists, with its runs and upload links. Download links go on working for as long as closed sessions
// are retained. Refusals are invalid_id and session_not_found.
func (e *Executor) CloseSession(ctx context.Context, caller session.Caller, sessionID string) error {
	e.runs.cancelSession(caller, sessionID) // also those that wait for their turn
	return e.closeSession(ctx, caller, sessionID)
}

// CloseAndRevoke closes the session, if there is one, and ends the links to files of its and of closed sessions of that id.
// Besides those of CloseSession, links_permanent is a refusal: the API token's links have a formula without a generation.
func (e *Executor) CloseAndRevoke(ctx context.Context, caller session.Caller, sessionID string) error {
	if caller == session.Local {
		return &Error{Code: CodeLinksPermanent, Message: "The links of the API token's holder cannot be revoked, and the session is still open. " +
			"Delete the files and close it without revoke_links, or have the operator change FILE_SECRET."}
	}
	err := e.CloseSession(ctx, caller, sessionID)
	var refusal *Error
	if err != nil && (!errors.As(err, &refusal) || refusal.Code != CodeSessionNotFound) {
		return err
	}
	return e.wrapSession(sessionID, e.cfg.Sessions.RevokeLinks(caller, sessionID))
}

func (e *Executor) closeSession(ctx context.Context, caller session.Caller, sessionID string) error {
	hadFiles := e.hasFiles(ctx, caller, sessionID)
	if err := e.cfg.Sessions.CloseSession(ctx, caller, sessionID); err != nil {
		return e.wrapSession(sessionID, err)
	}
	e.activity.closed(caller, sessionID, hadFiles)
	if e.cfg.Store == nil {
		return nil
	}
	if err := e.cfg.Store.DropTickets(context.WithoutCancel(ctx), caller.ID, sessionID); err != nil {
		// The session is closed. A link that is used all the same makes a new one.
		e.log.WarnContext(ctx, "cannot drop the upload links of a closed session", "session_id", sessionID, "err", err)
	}
	return nil
}
