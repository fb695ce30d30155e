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

	"mcp-code-sandbox/internal/untrusted"
)

const (
	maxIDLength = 1024 // bytes of a request's id, which the answer repeats
	maxMembers  = 32   // members of a message; the specification has six
	maxBatch    = 100  // messages in one batch
)

// rpcErrorf returns an error with "data": null, as in contract 2.
func rpcErrorf(code int64, format string, args ...any) *jsonrpc.Error {
	return &jsonrpc.Error{Code: code, Message: fmt.Sprintf(format, args...), Data: json.RawMessage("null")}
}

// encodeError returns a response with e. A nil id becomes null.
func encodeError(id json.RawMessage, e *jsonrpc.Error) []byte {
	data, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   *jsonrpc.Error  `json:"error"`
	}{"2.0", id, e})
	if err != nil { // cannot happen: checkID has checked the id
		return []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"internal error","data":null}}`)
	}
	return data
}

// message is a client's JSON-RPC message, checked so that the SDK does not end a session over it.
// If err is set, the SDK must not see the message: a call is answered with err, a notification is
// dropped.
type message struct {
	raw    json.RawMessage
	id     json.RawMessage // for the answer; nil if it is missing or invalid
	method string          // empty for a response
	params json.RawMessage
	err    *jsonrpc.Error
}

// isNotification reports whether the message is well-formed and wants no answer.
func (m message) isNotification() bool { return m.id == nil && m.method != "" }

// isCall reports whether the message is a request that wants an answer.
func (m message) isCall() bool { return m.id != nil && m.method != "" }

// parse parses a body or a line: one message, or a batch. The error is about the whole of it.
func parse(data []byte) (msgs []message, batch bool, _ *jsonrpc.Error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, false, rpcErrorf(jsonrpc.CodeInvalidRequest, "the request is empty; send a JSON-RPC 2.0 message")
	}
	if !utf8.Valid(data) {
		return nil, false, rpcErrorf(jsonrpc.CodeParseError, "parse error: the message is not valid UTF-8")
	}
	notObject := rpcErrorf(jsonrpc.CodeInvalidRequest, "a JSON-RPC message must be an object")
	dec := json.NewDecoder(bytes.NewReader(data))
	switch tok, err := dec.Token(); {
	case err != nil:
		return nil, false, parseError(err)
	case tok == json.Delim('{'):
		m, perr := parseObject(data)
		return []message{m}, false, perr
	case tok != json.Delim('['):
		return nil, false, notObject
	}
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, true, parseError(err)
		}
		if len(msgs) == maxBatch {
			return nil, true, rpcErrorf(jsonrpc.CodeInvalidRequest, "a batch may hold at most %d messages", maxBatch)
		}
		m := message{err: notObject}
		if raw[0] == '{' {
			var perr *jsonrpc.Error
			if m, perr = parseObject(raw); perr != nil {
				return nil, true, perr
			}
		}
		msgs = append(msgs, m)
	}
	if err := parseEnd(dec); err != nil {
		return nil, true, parseError(err)
	}
	if len(msgs) == 0 {
		return nil, true, rpcErrorf(jsonrpc.CodeInvalidRequest, "the batch is empty")
	}
	return msgs, true, nil
}

// parseEnd reads the closing delimiter. Nothing may follow it.
func parseEnd(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("unexpected data after the message")
	}
	return nil
}

func parseError(err error) *jsonrpc.Error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = errors.New("unexpected end of JSON input")
	}
	return rpcErrorf(jsonrpc.CodeParseError, "parse error: %v", err)
}

// parseObject parses one message. It returns an error if data is not JSON. Any other problem is in
// the message's err. Names are matched exactly, and the last of several wins, as in the SDK, so
// that both see the same message.
func parseObject(data []byte) (message, *jsonrpc.Error) {
	m := message{raw: data}
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return m, parseError(err)
	}
	members := make(map[string]json.RawMessage, 4)
	for n := 0; dec.More(); n++ {
		key, err := dec.Token()
		if err != nil {
			return m, parseError(err)
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return m, parseError(err)
		}
		if n == maxMembers {
			m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, "invalid request: too many members")
			return m, nil
		}
		members[key.(string)] = value
	}
	if err := parseEnd(dec); err != nil {
		return m, parseError(err)
	}

	var idErr *jsonrpc.Error
	m.id, idErr = checkID(members["id"])
	m.params = members["params"]
	method := members["method"]
	switch {
	case string(members["jsonrpc"]) != `"2.0"`:
		m.err = rpcErrorf(jsonrpc.CodeInvalidRequest, `invalid request: "jsonrpc" must be "2.0"`)
	case idErr != nil:
		m.err = idErr
	case method == nil && (members["result"] != nil || members["error"] != nil) && m.id != nil:
		// A response. The SDK knows whether it sent a request with that id.
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

// checkID accepts strings and integers. It refuses fractions and numbers beyond 2^53, which JSON
// parsers may change. It returns the id for the answer even with an error, if the answer can repeat
// it.
func checkID(raw json.RawMessage) (json.RawMessage, *jsonrpc.Error) {
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

// printable returns a client's text for a log line or an error message.
func printable(s string) string {
	s = untrusted.Clip(s, 80)
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strings.Trim(strconv.Quote(s), `"`)
		}
	}
	return s
}
