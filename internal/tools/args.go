package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// maxEnvironmentJSON bounds the JSON of an object of strings before it is decoded; what may be in it is for the engine
// to say.
const maxEnvironmentJSON = 1 << 20

// argumentError is what is wrong with the arguments of a call, in contract 2's words. It never quotes a value.
type argumentError string

func (e argumentError) Error() string { return string(e) }

// arguments reads a call's arguments one by one and remembers the first thing that is wrong.
type arguments struct {
	members map[string]json.RawMessage
	err     error
}

// known are the arguments of all tools. Others are ignored, as the schemas allow them, and not kept.
func known(name string) bool {
	switch name {
	case "conversationId", "session_id", "language", "code", "network", "environment",
		"filename", "content", "content_base64", "overwrite", "path", "encoding", "env", "session",
		"timeout_seconds", "background", "run_id", "cursor", "services", "limit":
		return true
	}
	return false
}

// parseArguments accepts an object, or nothing at all.
func parseArguments(raw json.RawMessage) (*arguments, error) {
	a := &arguments{members: make(map[string]json.RawMessage)}
	if len(raw) == 0 || string(raw) == "null" {
		return a, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, argumentError("arguments must be an object")
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, argumentError("arguments is malformed")
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, argumentError("arguments is malformed")
		}
		if name, _ := key.(string); known(name) {
			a.members[name] = value
		}
	}
	return a, nil
}

func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = argumentError(fmt.Sprintf(format, args...))
	}
}

// get decodes an argument into v. It reports false when the argument is missing, null, or of another type, which is then
// an error.
func (a *arguments) get(name, want string, v any) bool {
	raw, ok := a.members[name]
	if !ok || string(raw) == "null" {
		return false
	}
	if json.Unmarshal(raw, v) != nil {
		a.fail("%s must be %s", name, want)
		return false
	}
	return true
}

// text returns a string argument and whether it was given.
func (a *arguments) text(name string) (value string, given bool) {
	given = a.get(name, "a string", &value)
	return value, given
}

// required returns a string argument that must be there and not be empty.
func (a *arguments) required(name string) string {
	value, _ := a.text(name)
	if value == "" {
		a.fail("%s is required", name)
	}
	return value
}

// sessionID returns contract 4's name of the session, which may go by contract 2's as well; "" when there is none.
func (a *arguments) sessionID() string { return a.either("session_id", "conversationId") }

// requiredSessionID is sessionID for a session that must be named.
func (a *arguments) requiredSessionID() string {
	id := a.sessionID()
	if id == "" {
		a.fail("session_id is required")
	}
	return id
}

// flag returns a boolean argument, false by default.
func (a *arguments) flag(name string) (value bool) {
	a.get(name, "a boolean", &value)
	return value
}

// stringMap returns an argument that is an object of strings.
func (a *arguments) stringMap(name string) map[string]string {
	if len(a.members[name]) > maxEnvironmentJSON {
		a.fail("%s is too large", name)
		return nil
	}
	// Null is a value that encoding/json would take for an empty string.
	var value map[string]*string
	a.get(name, "an object whose values are strings", &value)
	if value == nil {
		return nil
	}
	m := make(map[string]string, len(value))
	for k, v := range value {
		if v == nil {
			a.fail("%s must be an object whose values are strings", name)
			return nil
		}
		m[k] = *v
	}
	return m
}
