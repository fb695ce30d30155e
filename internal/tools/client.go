package tools

import (
	"encoding/json"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	version20250326 = "2025-03-26" // the first that is told of changed resources
	version20250618 = "2025-06-18" // structured content, resource links
	version20251125 = "2025-11-25" // bad arguments are results
	version20260728 = "2026-07-28" // no initialize
)

// client is what decides how a result looks.
type client struct {
	// plain: the call came over HTTP with neither a session nor a protocol version. It gets the contracts' JSON and nothing
	// newer.
	plain   bool
	version string
}

// clientOf works for the requests of every method.
func clientOf[P mcp.Params](req *mcp.ServerRequest[P]) client {
	if req.Extra != nil && req.Extra.Header != nil &&
		req.Session.ID() == "" && req.Extra.Header.Get("Mcp-Protocol-Version") == "" {
		return client{plain: true}
	}
	v := req.ProtocolVersion()
	if !slices.Contains(mcp.SupportedProtocolVersions(), v) {
		v = version20251125 // what the SDK agrees on with a client that asks for anything else
	}
	return client{version: v}
}

// atLeast reports whether the client speaks the protocol version.
func (c client) atLeast(version string) bool { return !c.plain && c.version >= version }

// argumentError answers for missing or malformed arguments: as a protocol error, or from 2025-11-25 on as a result, which
// the model gets to see.
func (c client) argumentError(err argumentError) (*mcp.CallToolResult, error) {
	if c.atLeast(version20251125) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: string(err)}}}, nil
	}
	// Contract 2 shows "data": null.
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: string(err), Data: json.RawMessage("null")}
}
