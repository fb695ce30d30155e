package mcpserver

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	versionStateless = "2026-07-28" // the first protocol version without sessions
	versionResources = "2025-03-26" // the first protocol version to which "initialize" declares resources
)

// method describes a method of the SDK's server.
type method struct {
	stateless   bool // exists only from versionStateless on
	needsParams bool // the SDK answers missing params with plain text
	// decode, if set, tries to decode the params as the SDK does.
	decode func(json.RawMessage) error
}

var methods = map[string]method{
	"ping":                     {},
	"tools/list":               {},
	"resources/list":           {},
	"resources/templates/list": {},
	"prompts/list":             {},
	"resources/subscribe":      {needsParams: true},
	"resources/unsubscribe":    {needsParams: true},
	"completion/complete":      {needsParams: true},
	"initialize":               {needsParams: true, decode: decodeAs[mcp.InitializeParams]},
	"tools/call":               {needsParams: true, decode: decodeAs[mcp.CallToolParamsRaw]},
	"resources/read":           {needsParams: true, decode: decodeAs[mcp.ReadResourceParams]},
	"prompts/get":              {needsParams: true, decode: decodeAs[mcp.GetPromptParams]},
	//lint:ignore SA1019 clients of older protocol versions still send it
	"logging/setLevel":     {needsParams: true, decode: decodeAs[mcp.SetLoggingLevelParams]},
	"server/discover":      {stateless: true},
	"subscriptions/listen": {stateless: true, needsParams: true},
}

func decodeAs[T any](params json.RawMessage) error { return json.Unmarshal(params, new(T)) }

// checkMethod sets an error for what the SDK would answer with plain text.
func checkMethod(m *message, batch bool) {
	if m.err != nil || m.method == "" {
		return
	}
	info, known := methods[m.method]
	notification := strings.HasPrefix(m.method, "notifications/")
	switch {
	case notification && m.id != nil:
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request: a notification has no id")
	case notification:
		switch m.method {
		case "notifications/initialized", "notifications/cancelled", "notifications/roots/list_changed", "notifications/progress":
		default:
			m.err = rpcErrorf(jsonrpc.CodeMethodNotFound, "method not found")
		}
	case !known || info.stateless:
		m.err = rpcErrorf(jsonrpc.CodeMethodNotFound, "method not found: %s", printable(m.method))
	case m.id == nil:
		m.method = "" // a request, which wants an answer, and not a notification
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, `invalid request: "id" must be a string or an integer`)
	case batch && m.method == "initialize":
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request: initialize must not be in a batch")
	}
}

// checkParams returns a one-sentence error for what the SDK would answer with a dump of the params.
func checkParams(name string, params json.RawMessage) *jsonrpc.Error {
	info := methods[name]
	switch {
	case params == nil || string(params) == "null":
		if info.needsParams {
			return rpcErrorf(jsonrpc.CodeInvalidParams, "params is required")
		}
		return nil
	case params[0] != '{':
		return rpcErrorf(jsonrpc.CodeInvalidParams, "params must be an object")
	case info.decode == nil:
		info.decode = decodeAs[struct {
			Meta map[string]any `json:"_meta"`
		}]
	}
	err := info.decode(params)
	if err == nil {
		return nil
	}
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return rpcErrorf(jsonrpc.CodeInvalidParams, "params must be valid JSON")
	}
	field := "params"
	if wrong.Field != "" {
		field += "." + printable(wrong.Field)
	}
	value, _, _ := strings.Cut(wrong.Value, " ") // drops the value of "number 5"
	return rpcErrorf(jsonrpc.CodeInvalidParams, "%s must be %s, not %s",
		field, typeName(wrong.Type.Kind().String()), typeName(value))
}

// typeName returns the JSON type of a Go kind or a JSON type, with its article.
func typeName(kind string) string {
	switch kind {
	case "string":
		return "a string"
	case "bool":
		return "a boolean"
	case "slice", "array":
		return "an array"
	case "map", "struct", "ptr", "object":
		return "an object"
	}
	return "a number"
}
