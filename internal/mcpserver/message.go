package mcpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/untrusted"
)

const (
	// versionStateless is the first protocol version without sessions.
	versionStateless = "2026-07-28"
	// versionResources is the first protocol version that is told of resources by "initialize".
	versionResources = "2025-03-26"

	maxIDLength = 1024 // bytes of a request's id, which is echoed
	maxMembers  = 32   // members of a message; the specification knows six
	maxBatch    = 100  // messages in one batch
)

// rpcError is the error member of a JSON-RPC response. Data is there to be null, as contract 2 shows it.
type rpcError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

func rpcErrorf(code int64, format string, args ...any) *rpcError {
	return &rpcError{Code: code, Message: fmt.Sprintf(format, args...)}
}

// encodeError is a whole response that carries e. A nil id is encoded as null.
func encodeError(id json.RawMessage, e *rpcError) []byte {
	data, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *rpcError       `json:"error"`
	}{"2.0", id, e})
	if err != nil {
		// The id has been checked and the rest cannot fail to encode.
		return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"internal error","data":null}}`)
	}
	return data
}

// message is one JSON-RPC message of a client, checked so far that the SDK will not end a session over it.
// When err is set, the message must not go further: a call is answered with err, a notification is dropped.
type message struct {
	raw    json.RawMessage
	id     json.RawMessage // what a reply carries; nil when there is none or it is unusable
	method string          // empty for a response
	params json.RawMessage
	err    *rpcError
}

// isNotification reports whether the message is well-formed and wants no answer.
func (m message) isNotification() bool { return m.id == nil && m.method != "" }

// isCall reports whether the message is a request that is owed a response.
func (m message) isCall() bool { return m.id != nil && m.method != "" }

// parse reads a body or a line: one message, or a batch of them. The error is about the whole of it.
func parse(data []byte) (msgs []message, batch bool, _ *rpcError) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, false, rpcErrorf(jsonrpc.CodeInvalidRequest, "the request is empty; send a JSON-RPC 2.0 message")
	}
	if !utf8.Valid(data) {
		return nil, false, rpcErrorf(jsonrpc.CodeParseError, "parse error: the message is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	tok, err := dec.Token()
	if err != nil {
		return nil, false, parseError(err)
	}
	switch tok {
	case json.Delim('{'):
		m, perr := parseObject(data)
		if perr != nil {
			return nil, false, perr
		}
		return []message{m}, false, nil
	case json.Delim('['):
	default:
		return nil, false, rpcErrorf(jsonrpc.CodeInvalidRequest, "a JSON-RPC message is an object")
	}
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, true, parseError(err)
		}
		if len(msgs) == maxBatch {
			return nil, true, rpcErrorf(jsonrpc.CodeInvalidRequest, "a batch may hold at most %d messages", maxBatch)
		}
		if raw[0] != '{' {
			msgs = append(msgs, message{err: rpcErrorf(jsonrpc.CodeInvalidRequest, "a JSON-RPC message is an object")})
			continue
		}
		m, perr := parseObject(raw)
		if perr != nil {
			return nil, true, perr
		}
		msgs = append(msgs, m)
	}
	if err := finish(dec); err != nil {
		return nil, true, parseError(err)
	}
	if len(msgs) == 0 {
		return nil, true, rpcErrorf(jsonrpc.CodeInvalidRequest, "the batch is empty")
	}
	return msgs, true, nil
}

// finish consumes the closing delimiter and makes sure that nothing follows it.
func finish(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("unexpected data after the message")
	}
	return nil
}

func parseError(err error) *rpcError {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("unexpected end of JSON input")
	}
	return rpcErrorf(jsonrpc.CodeParseError, "parse error: %v", err)
}

// parseObject reads one message. Its error means that data is not JSON; what is wrong with a JSON object
// as a message is in the message's err. Member names are matched exactly, and the last of several wins:
// the SDK does the same, so the two never see different messages.
func parseObject(data []byte) (message, *rpcError) {
	m := message{raw: data}
	var version, method, result, rerr, rawID json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return m, parseError(err)
	}
	members := 0
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return m, parseError(err)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return m, parseError(err)
		}
		if members++; members > maxMembers {
			m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request: too many members")
			return m, nil
		}
		switch key {
		case "jsonrpc":
			version = v
		case "id":
			rawID = v
		case "method":
			method = v
		case "params":
			m.params = v
		case "result":
			result = v
		case "error":
			rerr = v
		}
	}
	if err := finish(dec); err != nil {
		return m, parseError(err)
	}

	var idErr *rpcError
	m.id, idErr = checkID(rawID)
	switch {
	case string(version) != `"2.0"`:
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, `invalid request: "jsonrpc" must be "2.0"`)
	case idErr != nil:
		m.err = idErr
	case method == nil && (result != nil || rerr != nil) && m.id != nil:
		// A response to a request of ours: the SDK knows whether there was one.
	case method == nil:
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, `invalid request: "method" is required`)
	case json.Unmarshal(method, &m.method) != nil || m.method == "":
		m.method = ""
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, `invalid request: "method" must be a non-empty string`)
	default:
		m.err = checkParams(m.method, m.params)
	}
	return m, nil
}

// checkID accepts what the specification does: strings and integers. Numbers beyond 2^53 and fractions are
// refused, since a JSON parser on either side may change them. The id to answer with is returned also with an
// error, where there is one that can be echoed.
func checkID(raw json.RawMessage) (json.RawMessage, *rpcError) {
	const problem = `invalid request: "id" must be a string or an integer`
	switch {
	case raw == nil:
		return nil, nil
	case len(raw) > maxIDLength:
		return nil, rpcErrorf(jsonrpc.CodeInvalidRequest, `invalid request: "id" is too long`)
	case raw[0] == '"':
		return raw, nil
	case raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9':
		const limit = 1<<53 - 1
		if n, err := strconv.ParseInt(string(raw), 10, 64); err != nil || n > limit || n < -limit {
			return raw, rpcErrorf(jsonrpc.CodeInvalidRequest, problem+" of at most 2^53-1")
		}
		return raw, nil
	}
	return nil, rpcErrorf(jsonrpc.CodeInvalidRequest, problem)
}

// method says what the bridge must know about a method before the SDK sees it.
type method struct {
	// stateless marks a method that exists only from versionStateless on.
	stateless bool
	// needsParams: the SDK answers a missing "params" with a text.
	needsParams bool
}

// lookupMethod knows the methods that the SDK's server handles.
func lookupMethod(name string) (method, bool) {
	switch name {
	case "ping", "tools/list", "resources/list", "resources/templates/list", "prompts/list":
		return method{}, true
	case "initialize", "tools/call", "resources/read", "resources/subscribe", "resources/unsubscribe", "prompts/get",
		"completion/complete", "logging/setLevel":
		return method{needsParams: true}, true
	case "server/discover":
		return method{stateless: true}, true
	case "subscriptions/listen":
		return method{stateless: true, needsParams: true}, true
	}
	return method{}, false
}

// paramsOf returns a value to try a method's params on, nil where any object will do.
func paramsOf(method string) any {
	switch method {
	case "initialize":
		return new(mcp.InitializeParams)
	case "tools/call":
		return new(mcp.CallToolParamsRaw)
	case "resources/read":
		return new(mcp.ReadResourceParams)
	case "prompts/get":
		return new(mcp.GetPromptParams)
	case "logging/setLevel":
		//lint:ignore SA1019 clients of older protocol versions still send it
		return new(mcp.SetLoggingLevelParams)
	}
	return new(struct {
		Meta map[string]any `json:"_meta"`
	})
}

// checkParams says in a sentence what the SDK would say with a dump of the whole params.
func checkParams(method string, params json.RawMessage) *rpcError {
	if params == nil || string(params) == "null" {
		if info, ok := lookupMethod(method); ok && info.needsParams {
			return rpcErrorf(jsonrpc.CodeInvalidParams, "params is required")
		}
		return nil
	}
	if params[0] != '{' {
		return rpcErrorf(jsonrpc.CodeInvalidParams, "params must be an object")
	}
	err := json.Unmarshal(params, paramsOf(method))
	var typeErr *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &typeErr):
		return rpcErrorf(jsonrpc.CodeInvalidParams, "params%s must be %s, not %s",
			fieldPath(typeErr.Field), kindName(typeErr.Type.Kind().String()), article(typeErr.Value))
	default:
		return rpcErrorf(jsonrpc.CodeInvalidParams, "params is malformed")
	}
}

func fieldPath(field string) string {
	if field == "" {
		return ""
	}
	return "." + printable(field)
}

func kindName(kind string) string {
	switch kind {
	case "string":
		return "a string"
	case "bool":
		return "a boolean"
	case "slice", "array":
		return "an array"
	case "map", "struct", "ptr":
		return "an object"
	}
	return "a number"
}

func article(value string) string {
	value, _, _ = strings.Cut(value, " ") // "number 5" tells the value
	switch value {
	case "array", "object":
		return "an " + value
	case "bool":
		return "a boolean"
	}
	return "a " + value
}

// printable makes a client's text fit for one log line or one error message.
func printable(s string) string {
	s = untrusted.Clip(s, 80)
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strings.Trim(strconv.Quote(s), `"`)
		}
	}
	return s
}
