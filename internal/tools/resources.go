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

const (
	// The session is in the path and not the host, because hosts are case-insensitive.
	uriPrefix   = "sandbox://sessions/"
	uriTemplate = uriPrefix + "{session}/{+path}"

	resourcesPage = 100

	// codeResourceNotFound is for protocol versions up to 2025-11-25. Later ones use "invalid
	// params".
	codeResourceNotFound = -32002
)

// registerResources serves the callers' files as MCP resources. It registers only the template with
// the SDK's server, which would show registered resources to every caller.
func (t *toolset) registerResources(srv *mcp.Server) {
	srv.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: uriTemplate,
		Name:        "session-file",
		Title:       "File of a session",
		Description: "A file in a session's /data: what was uploaded and what code has made. The path is relative to /data.",
	}, t.readResource)
	srv.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: outputPrefix + "{run_id}" + outputSuffix,
		Name:        "run-output",
		Title:       "Output of a run",
		Description: "What a run printed, in pieces. Each piece ends with the URI of the next.",
		MIMEType:    "text/plain",
	}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		return nil, errors.New("the middleware answers it")
	})
	srv.AddReceivingMiddleware(t.resourceMiddleware)
	w := newWatchers(srv)
	t.executor.Watch(func(caller session.Caller) { w.notify(change{caller: caller}) })
	t.executor.WatchRuns(func(caller session.Caller) { w.notify(change{caller: caller, runs: true}) })
}

func (t *toolset) resourceMiddleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch req := req.(type) {
		case *mcp.ListResourcesRequest:
			return t.listResources(ctx, method, req, next)
		case *mcp.ReadResourceRequest:
			uri := req.Params.URI
			if runID, offset, ok := parseOutputURI(uri); ok {
				return t.readOutput(ctx, req, runID, offset)
			}
			sessionID, name, ok := parseFileURI(uri)
			if !ok {
				return nil, notFound(clientOf(req), uri)
			}
			req.Params.URI = fileURI(sessionID, name) // the SDK matches it with the template
			res, err := next(ctx, method, req)
			if read, ok := res.(*mcp.ReadResourceResult); ok && err == nil {
				for _, c := range read.Contents {
					c.URI = uri
				}
			}
			return res, err
		}
		return next(ctx, method, req)
	}
}

// listResources adds the caller's newest files to the SDK's empty list.
func (t *toolset) listResources(
	ctx context.Context, method string, req *mcp.ListResourcesRequest, next mcp.MethodHandler,
) (mcp.Result, error) {
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
	files, more, err := t.executor.RecentFiles(ctx, caller, after, resourcesPage)
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

// readResource handles the template.
func (t *toolset) readResource(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	caller, err := callerOf(req.Extra)
	if err != nil {
		return nil, err
	}
	uri := req.Params.URI
	sessionID, name, ok := parseFileURI(uri)
	if !ok {
		return nil, notFound(clientOf(req), uri)
	}
	a, err := t.executor.ReadFile(ctx, caller, sessionID, name)
	if refusal, ok := errors.AsType[*executor.Error](err); ok {
		return nil, readError(refusal, clientOf(req), uri)
	}
	if err != nil {
		return nil, err
	}
	return &mcp.ReadResourceResult{
		Cacheable: mcp.Cacheable{CacheScope: "private"},
		Contents:  []*mcp.ResourceContents{contentsOf(a)},
	}, nil
}

func readError(refusal *executor.Error, c client, uri string) error {
	switch refusal.Code {
	case executor.CodeArtifactTooLarge:
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: refusal.Message, Data: json.RawMessage(encode(struct {
			URI         string `json:"uri"`
			SizeBytes   int64  `json:"size_bytes"`
			DownloadURL string `json:"download_url,omitempty"`
		}{uri, refusal.SizeBytes, refusal.DownloadURL}))}
	case executor.CodeBusy:
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: refusal.Message}
	case executor.CodeRunActive:
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: refusal.Message}
	}
	return notFound(c, uri) // or the name is invalid
}

// contentsOf returns text if the content is text, regardless of the file's name.
func contentsOf(a executor.Artifact) *mcp.ResourceContents {
	c := &mcp.ResourceContents{MIMEType: mediatype.ByName(a.Name)}
	if !isText(a.Content) {
		c.Blob = a.Content
		return c
	}
	c.Text = string(a.Content)
	if c.MIMEType == mediatype.Unknown {
		c.MIMEType = "text/plain"
	}
	return c
}

// isText reports whether content is text, whatever its file is called.
func isText(content []byte) bool { return utf8.Valid(content) && bytes.IndexByte(content, 0) < 0 }

func notFound(c client, uri string) error {
	e := &jsonrpc.Error{Code: codeResourceNotFound, Message: "Resource not found", Data: json.RawMessage(encode(map[string]string{"uri": uri}))}
	if c.atLeast(version20260728) {
		e.Code = jsonrpc.CodeInvalidParams
	}
	return e
}

// fileURI returns the URI of a file for resources/read.
func fileURI(sessionID, name string) string {
	segments := strings.Split(name, "/")
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return uriPrefix + url.QueryEscape(sessionID) + "/" + strings.Join(segments, "/")
}

// parseFileURI also accepts URIs with unescaped characters, since clients fill in the template by
// hand. It decodes nothing twice. The caller must check what it returns.
func parseFileURI(uri string) (sessionID, name string, ok bool) {
	rest, ok := strings.CutPrefix(uri, uriPrefix)
	if !ok {
		return "", "", false
	}
	sessionID, name, ok = strings.Cut(rest, "/")
	if !ok || sessionID == "" || name == "" {
		return "", "", false
	}
	sessionID, idErr := url.PathUnescape(sessionID)
	name, nameErr := url.PathUnescape(name)
	return sessionID, name, idErr == nil && nameErr == nil
}

// cursor is the end of a page of resources/list. ModTime is a number, since JSON cannot hold the
// years beyond 9999 that hostile code can set.
type cursor struct {
	ModTime int64 // nanoseconds
	Session string
	Name    []byte // JSON strings must be UTF-8, names need not
}

func encodeCursor(f executor.FileLink) string {
	return base64.RawURLEncoding.EncodeToString([]byte(encode(cursor{f.ModTime.UnixNano(), f.Session, []byte(f.Name)})))
}

func decodeCursor(text string) (executor.Position, error) {
	var c cursor
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	return executor.Position{ModTime: time.Unix(0, c.ModTime), Session: c.Session, Name: string(c.Name)}, err
}
