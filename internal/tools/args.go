package tools

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxEnvironmentJSON bounds the JSON of an object of strings before it is decoded; what may be in it is for the executor
// to say.
const maxEnvironmentJSON = 1 << 20

// aliases are names of the same argument. A tool that has one of them also accepts the others, which its schema does not
// mention: models that know another tool's name for it get what they mean.
var aliases = [][]string{
	{"session", "session_id", "conversationId"},
	{"env", "language"},
	{"content", "content_base64"},
}

// argumentError is what is wrong with the arguments of a call, in contract 2's words. It never quotes a value.
type argumentError string

func (e argumentError) Error() string { return string(e) }

// parameters maps every argument name that a tool accepts to the name that its schema has for it.
type parameters map[string]string

// parametersOf returns those of the tool's schema, their aliases, and the tool's unlisted ones.
func parametersOf(tool *mcp.Tool, unlisted ...string) parameters {
	schema := tool.InputSchema.(*jsonschema.Schema)
	p := parameters{}
	for name := range schema.Properties {
		p[name] = name
	}
	for _, name := range unlisted {
		p[name] = name
	}
	for _, group := range aliases {
		own := ""
		for _, name := range append(slices.Clone(schema.PropertyOrder), group...) {
			if slices.Contains(group, name) && p[name] != "" {
				own = name
				break
			}
		}
		if own != "" {
			for _, name := range group {
				p[name] = own
			}
		}
	}
	return p
}

// argument is one argument of a call.
type argument struct {
	name string // as the client wrote it
	raw  json.RawMessage
}

// empty reports whether the argument says no more than its absence would.
func (a argument) empty() bool {
	switch string(bytes.Join(bytes.Fields(a.raw[:min(len(a.raw), 16)]), nil)) {
	case "", "null", "false", `""`, "[]", "{}":
		return true
	}
	return false
}

// equal reports whether two arguments have the same value. Only strings may be written in different ways.
func (a argument) equal(b argument) bool {
	if bytes.Equal(a.raw, b.raw) {
		return true
	}
	var first, second *string
	return json.Unmarshal(a.raw, &first) == nil && json.Unmarshal(b.raw, &second) == nil && first != nil && second != nil && *first == *second
}

// arguments reads a call's arguments one by one and remembers the first thing that is wrong.
type arguments struct {
	members map[string]argument // by the names of the tool's schema
	misses  map[string]string   // names that the tool does not have, by those that they probably stand for
	// warnings say which arguments were ignored that probably were to have an effect.
	warnings []string
	err      error
}

// parseArguments accepts an object, or nothing at all. It ignores arguments that the tool does not have, since clients add
// their own, but not without a word where the name is nearly one of the tool's.
func parseArguments(raw json.RawMessage, accepted parameters) (*arguments, error) {
	a := &arguments{members: map[string]argument{}, misses: map[string]string{}}
	if len(raw) == 0 || string(raw) == "null" {
		return a, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, argumentError("arguments must be an object")
	}
	var others unknowns
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, argumentError("arguments is malformed")
		}
		var given argument
		if err := dec.Decode(&given.raw); err != nil {
			return nil, argumentError("arguments is malformed")
		}
		given.name, _ = key.(string)
		if own, ok := accepted[given.name]; ok {
			a.set(own, given)
		} else {
			others.add(given)
		}
	}
	a.judge(others, accepted)
	return a, a.err
}

// set stores an argument. What is given twice, also by an alias, must not disagree.
func (a *arguments) set(own string, given argument) {
	before, ok := a.members[own]
	switch {
	case !ok || before.empty() && string(given.raw) != "null":
		a.members[own] = given
	case given.empty() || given.equal(before):
	case given.name == before.name:
		a.fail("%s is given twice, with different values", given.name)
	default:
		a.fail("%s and %s are the same argument; give one of them", before.name, given.name)
	}
}

func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = argumentError(fmt.Sprintf(format, args...))
	}
}

// get decodes an argument into v. It reports false when the argument is missing, null, or of another type, which is then
// an error.
func (a *arguments) get(name, want string, v any) bool {
	given, ok := a.members[name]
	if !ok || string(given.raw) == "null" {
		return false
	}
	if json.Unmarshal(given.raw, v) != nil {
		a.fail("%s must be %s", given.name, want)
		return false
	}
	return true
}

// text returns a string argument and whether it was given.
func (a *arguments) text(name string) (value string, given bool) {
	given = a.get(name, "a string", &value)
	return value, given
}

// optional returns a string argument, "" when it is missing.
func (a *arguments) optional(name string) string {
	value, _ := a.text(name)
	return value
}

// required returns a string argument that must be there and not be empty.
func (a *arguments) required(name string) string {
	value, _ := a.text(name)
	if value != "" {
		return value
	}
	if other := a.misses[name]; other != "" {
		a.fail("%s is required; argument %q is not known, did you mean %s?", name, other, name)
	} else {
		a.fail("%s is required", name)
	}
	return ""
}

// flag returns a boolean argument, false by default.
func (a *arguments) flag(name string) (value bool) {
	a.get(name, "a boolean", &value)
	return value
}

// stringMap returns an argument that is an object of strings.
func (a *arguments) stringMap(name string) map[string]string {
	if len(a.members[name].raw) > maxEnvironmentJSON {
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
