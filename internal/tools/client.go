package tools

import (
	"encoding/json"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	version20250326 = "2025-03-26" // notifications of changed resources
	version20250618 = "2025-06-18" // structured content, resource links
	version20251125 = "2025-11-25" // bad arguments are tool results
	version20260728 = "2026-07-28" // no initialize
)

// client holds the properties of a client that decide the form of results.
type client struct {
	// plain: an HTTP request without a session and a protocol version. It gets the contracts' JSON
	// and nothing newer.
	plain   bool
	version string
}

func clientOf[P mcp.Params](req *mcp.ServerRequest[P]) client {
	if req.Extra != nil && req.Extra.Header != nil &&
		req.Session.ID() == "" && req.Extra.Header.Get("Mcp-Protocol-Version") == "" {
		return client{plain: true}
	}
	v := req.ProtocolVersion()
	if !slices.Contains(mcp.SupportedProtocolVersions(), v) {
		v = version20251125 // the SDK's answer to a client that asks for an unknown version
	}
	return client{version: v}
}

// atLeast reports whether the client speaks the protocol version or a later one.
func (c client) atLeast(version string) bool { return !c.plain && c.version >= version }

// argumentError reports bad arguments: as a protocol error, or from 2025-11-25 on as a result,
// which the model sees.
func (c client) argumentError(err argumentError) (*mcp.CallToolResult, error) {
	if c.atLeast(version20251125) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: string(err)}}}, nil
	}
	// Contract 2 shows "data": null.
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: string(err), Data: json.RawMessage("null")}
}
