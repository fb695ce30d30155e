package tools

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/mediatype"
	"mcp-code-sandbox/internal/session"
)

// Files is what the resources need of the executor: each caller's own files.
type Files interface {
	// RecentFiles lists files of the sessions that the caller used last, newest first, after a position.
	RecentFiles(ctx context.Context, caller session.Caller, after executor.Position, limit int) (files []executor.FileLink, more bool, err error)
	// ReadFile reads a file of a session, also of one that was closed and is retained.
	ReadFile(ctx context.Context, caller session.Caller, sessionID, path string) (executor.Artifact, error)
	// Watch has changed called when files of a caller's have changed.
	Watch(changed func(session.Caller))
}

const (
	// The session stands in the path: its case matters, and that of a host does not.
	uriPrefix   = "sandbox://sessions/"
	uriTemplate = uriPrefix + "{session}/{+path}"

	resourcesPage = 100

	// codeResourceNotFound is that of protocol versions up to 2025-11-25; the newest has "invalid params".
	codeResourceNotFound = -32002
)

// fileURI names a file for resources/read.
func fileURI(sessionID, name string) string {
	segments := strings.Split(name, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return uriPrefix + url.QueryEscape(sessionID) + "/" + strings.Join(segments, "/")
}

// parseFileURI also takes what clients make of the template by hand: characters that should be escaped, and are not. Nothing
// is decoded twice, and what it returns is still to be checked.
func parseFileURI(uri string) (sessionID, name string, ok bool) {
	rest, ok := strings.CutPrefix(uri, uriPrefix)
	if !ok {
		return "", "", false
	}
	sessionID, name, ok = strings.Cut(rest, "/")
	if !ok || sessionID == "" || name == "" {
		return "", "", false
	}
	var errs [2]error
	sessionID, errs[0] = url.PathUnescape(sessionID)
	name, errs[1] = url.PathUnescape(name)
	return sessionID, name, errors.Join(errs[:]...) == nil
}

// resources serves the callers' files as MCP resources. Nothing of them is registered with the SDK's server, which shows the
// same to everybody: the list is made anew for each caller.
type resources struct {
	files Files
}

func registerResources(srv *mcp.Server, files Files, runs Runs) {
	r := &resources{files: files}
	srv.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: uriTemplate,
		Name:        "session-file",
		Title:       "File of a session",
		Description: "A file in a session's /data: what was uploaded and what code has made. The path is relative to /data.",
	}, r.read)
	srv.AddReceivingMiddleware(r.middleware)
	w := newWatchers(srv)
	files.Watch(func(caller session.Caller) { w.changed(caller, false) })
	runs.WatchRuns(func(caller session.Caller) { w.changed(caller, true) })
}

func (r *resources) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.ListResourcesRequest:
			return r.list(ctx, method, req, next)
		case *mcp.ReadResourceRequest:
			asked := req.Params.URI
			sessionID, name, ok := parseFileURI(asked)
			if !ok {
				return nil, notFound(clientOf(req), asked)
			}
			req.Params.URI = fileURI(sessionID, name) // so that it matches the template
			res, err := next(ctx, method, req)
			if read, ok := res.(*mcp.ReadResourceResult); ok && err == nil {
				for _, c := range read.Contents {
					c.URI = asked
				}
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

// list lists the caller's newest files. What the SDK lists is empty, and has what else belongs to such a result.
func (r *resources) list(ctx context.Context, method string, req *mcp.ListResourcesRequest, next mcp.MethodHandler) (mcp.Result, error) {
	caller, err := callerOf(req.Extra)
	if err != nil {
		return nil, err
	}
	var after executor.Position
	if req.Params != nil && req.Params.Cursor != "" {
		if after, err = decodeCursor(req.Params.Cursor); err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "invalid cursor"}
		}
		req.Params.Cursor = ""
	}
	res, err := next(ctx, method, req)
	list, ok := res.(*mcp.ListResourcesResult)
	if err != nil || !ok {
		return res, err
	}
	files, more, err := r.files.RecentFiles(ctx, caller, after, resourcesPage)
	if err != nil {
		return nil, err
	}
	list.CacheScope = "private"
	for _, f := range files {
		list.Resources = append(list.Resources, resourceOf(f, clientOf(req)))
	}
	if more {
		list.NextCursor = encodeCursor(files[len(files)-1])
	}
	return list, nil
}

func resourceOf(f executor.FileLink, c client) *mcp.Resource {
	res := &mcp.Resource{
		URI:         fileURI(f.Session, f.Name),
		Name:        f.Name,
		Description: "In session " + f.Session,
		MIMEType:    mediatype.ByName(f.Name),
		Size:        f.Size,
	}
	if c.atLeast(version20250618) {
		res.Title = path.Base(f.Name)
		res.Annotations = &mcp.Annotations{LastModified: f.ModTime.UTC().Format(time.RFC3339)}
	}
	return res
}

// read is the template's handler.
func (r *resources) read(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	caller, err := callerOf(req.Extra)
	if err != nil {
		return nil, err
	}
	uri := req.Params.URI
	sessionID, name, ok := parseFileURI(uri)
	if !ok {
		return nil, notFound(clientOf(req), uri)
	}
	a, err := r.files.ReadFile(ctx, caller, sessionID, name)
	var refusal *executor.Error
	switch {
	case errors.As(err, &refusal) && refusal.Code == executor.CodeArtifactTooLarge:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: refusal.Message, Data: json.RawMessage(encode(struct {
			URI         string `json:"uri"`
			SizeBytes   int64  `json:"size_bytes"`
			DownloadURL string `json:"download_url,omitempty"`
		}{uri, refusal.SizeBytes, refusal.DownloadURL}))}
	case errors.As(err, &refusal) && refusal.Code == executor.CodeBusy:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: refusal.Message}
	case errors.As(err, &refusal):
		return nil, notFound(clientOf(req), uri) // or no name that a file could have
	case err != nil:
		return nil, err
	}
	return &mcp.ReadResourceResult{
		Cacheable: mcp.Cacheable{CacheScope: "private"},
		Contents:  []*mcp.ResourceContents{contentsOf(a)},
	}, nil
}

// contentsOf is text where the content is text, whatever the name says.
func contentsOf(a executor.Artifact) *mcp.ResourceContents {
	c := &mcp.ResourceContents{MIMEType: mediatype.ByName(a.Name)}
	if !utf8.Valid(a.Content) || bytes.IndexByte(a.Content, 0) >= 0 {
		c.Blob = a.Content
		return c
	}
	c.Text = string(a.Content)
	if c.MIMEType == mediatype.Unknown {
		c.MIMEType = "text/plain"
	}
	return c
}

func notFound(c client, uri string) error {
	e := &jsonrpc.Error{Code: codeResourceNotFound, Message: "Resource not found", Data: json.RawMessage(encode(map[string]string{"uri": uri}))}
	if c.atLeast(version20260728) {
		e.Code = jsonrpc.CodeInvalidParams
	}
	return e
}

// cursor is where a page of resources/list ended.
type cursor struct {
	ModTime int64 // nanoseconds
	Session string
	Name    string
}

func encodeCursor(f executor.FileLink) string {
	return base64.RawURLEncoding.EncodeToString([]byte(encode(cursor{f.ModTime.UnixNano(), f.Session, f.Name})))
}

func decodeCursor(text string) (executor.Position, error) {
	var c cursor
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	return executor.Position{ModTime: time.Unix(0, c.ModTime), Session: c.Session, Name: c.Name}, err
}
