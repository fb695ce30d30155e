package tools

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
)

const (
	defaultSessions = 20
	maxSessions     = 50
)

type listSessionsArguments struct {
	Limit *int `json:"limit,omitempty" jsonschema:"Maximum number of sessions (default: 20)"`
}

type listSessionsJSON struct {
	Sessions  []sessionJSON `json:"sessions"`
	Truncated bool          `json:"truncated,omitempty" jsonschema:"There may be more sessions than listed"`
	Usage     usageJSON     `json:"usage" jsonschema:"Disk usage of all your sessions, as last measured"`
	warned
}

type sessionJSON struct {
	SessionID      string `json:"session_id"`
	LastUsed       string `json:"last_used"`
	Files          int    `json:"files"`
	FilesTruncated bool   `json:"files_truncated,omitempty" jsonschema:"Not all files were counted"`
	Bytes          int64  `json:"bytes"`
	Live           bool   `json:"live" jsonschema:"The session has a sandbox, so variables of earlier runs may still exist"`
}

type usageJSON struct {
	Sessions       int   `json:"sessions"`
	Bytes          int64 `json:"bytes"`
	ClosedSessions int   `json:"closed_sessions" jsonschema:"Closed sessions, kept for a while so that links to their files work"`
	ClosedBytes    int64 `json:"closed_bytes"`
	Files          int   `json:"files" jsonschema:"Directories included"`
	ClosedFiles    int   `json:"closed_files"`
	MaxSessions    int   `json:"max_sessions,omitempty" jsonschema:"The limit of your sessions; the oldest closed ones are deleted first"`
	MaxBytes       int64 `json:"max_bytes,omitempty"`
	MaxFiles       int   `json:"max_files,omitempty"`
}

func (t *toolset) listSessionsTool() *tool {
	tool := newStructuredTool(mcp.Tool{
		Name:        "list_sessions",
		Title:       "List sessions",
		Description: "List your sessions, last used first, with the number of files in each. Use it to find an earlier session's id.",
		Annotations: &readOnly,
	}, t.listSessions)
	// Clients may validate results against an older schema, which lacks usage.
	tool.result.Required, tool.result.Properties["usage"].Required = []string{"sessions"}, nil
	return tool.limit("limit", 1, maxSessions)
}

func (t *toolset) listSessions(ctx context.Context, c *call, in listSessionsArguments) (listSessionsJSON, error) {
	limit := defaultSessions
	if in.Limit != nil {
		limit = *in.Limit
	}
	list, more, err := t.executor.ListSessions(ctx, c.caller, limit)
	if err != nil {
		return listSessionsJSON{}, err
	}
	s := t.executor.Storage(c.caller)
	out := listSessionsJSON{
		Sessions: make([]sessionJSON, len(list)), Truncated: more, warned: warned{slices.Concat(c.warnings, problems(list))},
		Usage: usageJSON{
			Sessions: s.Sessions, Bytes: s.Bytes, Files: s.Files,
			ClosedSessions: s.ClosedSessions, ClosedBytes: s.ClosedBytes, ClosedFiles: s.ClosedFiles,
			MaxSessions: s.MaxSessions, MaxBytes: s.MaxBytes, MaxFiles: s.MaxFiles,
		},
	}
	for i, s := range list {
		out.Sessions[i] = sessionJSON{
			SessionID: s.ID, LastUsed: s.LastUsed.UTC().Format(time.RFC3339), Files: s.Files, FilesTruncated: s.MoreFiles,
			Bytes: s.Bytes, Live: s.Live,
		}
	}
	return out, nil
}

// problems says once why sessions cannot be used, and which.
func problems(list []executor.SessionInfo) (warnings []string) {
	ids := map[string][]string{}
	for _, s := range list {
		if s.Problem != "" {
			ids[s.Problem] = append(ids[s.Problem], s.ID)
		}
	}
	for _, problem := range slices.Sorted(maps.Keys(ids)) {
		warnings = append(warnings, strings.Join(ids[problem], ", ")+": "+problem)
	}
	return warnings
}

type closeSessionArguments struct {
	SessionID   string `json:"session_id" jsonschema:"The session to close"`
	RevokeLinks bool   `json:"revoke_links,omitempty" jsonschema:"Revoke the session's download links, including those of an earlier session with this id (only for logged-in users)"`
}

// closeSessionJSON is contract 4's result of close_session.
type closeSessionJSON struct {
	Status    string `json:"status"`
	SessionID string `json:"session_id"`
	warned
}

func (t *toolset) closeSessionTool() *tool {
	return newStructuredTool(mcp.Tool{
		Name:  "close_session",
		Title: "Close a session",
		Description: "End a session when its work is done: its runs are stopped, and code can no longer use its files. " +
			"Existing download links keep working for a while. Using the same id again starts an empty session.",
		Annotations: &destructive,
	}, t.closeSession)
}

func (t *toolset) closeSession(ctx context.Context, c *call, in closeSessionArguments) (closeSessionJSON, error) {
	t.log.Info("[MCP] close_session", "session_id", logSession(in.SessionID))
	closeSession := t.executor.CloseSession
	if in.RevokeLinks {
		closeSession = t.executor.CloseAndRevoke
	}
	if err := closeSession(ctx, c.caller, in.SessionID); err != nil {
		return closeSessionJSON{}, err
	}
	return closeSessionJSON{Status: "closed", SessionID: in.SessionID, warned: warned{c.warnings}}, nil
}
