package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// maxEnvironmentJSON bounds the argument environment before it is decoded. The executor checks its
// contents.
const maxEnvironmentJSON = 1 << 20

// aliases are groups of names for the same argument. A tool that has one of them also accepts the
// others, which its schema does not mention: models often use the name that another tool has.
var aliases = [][]string{
	{"session", "session_id", "conversationId"},
	{"env", "language"},
	{"content", "content_base64"},
}

// argumentError says what is wrong with the arguments of a call, in contract 2's words. It never
// quotes a value.
type argumentError string

func (e argumentError) Error() string { return string(e) }

// parameters maps every argument name that a tool accepts to the name in its schema.
type parameters map[string]string

// parametersOf returns the properties of a tool's schema and their aliases.
func parametersOf(schema *jsonschema.Schema) parameters {
	p := parameters{}
	for name := range schema.Properties {
		p[name] = name
	}
	for _, group := range aliases {
		i := slices.IndexFunc(schema.PropertyOrder, func(name string) bool { return slices.Contains(group, name) })
		if i < 0 {
			continue
		}
		for _, name := range group {
			p[name] = schema.PropertyOrder[i]
		}
	}
	return p
}

// argument is one argument of a call.
type argument struct {
	name string // as the client wrote it
	raw  json.RawMessage
}

// isEmpty reports whether the argument is equivalent to a missing one.
func (a argument) isEmpty() bool {
	switch string(bytes.Join(bytes.Fields(a.raw[:min(len(a.raw), 16)]), nil)) {
	case "", "null", "false", `""`, "[]", "{}":
		return true
	}
	return false
}

// equal reports whether two arguments have the same value. It compares strings by value and other
// types by their JSON text.
func (a argument) equal(b argument) bool {
	if bytes.Equal(a.raw, b.raw) {
		return true
	}
	var first, second *string
	return json.Unmarshal(a.raw, &first) == nil && json.Unmarshal(b.raw, &second) == nil &&
		first != nil && second != nil && *first == *second
}

// arguments are the arguments of a call, with the first error found in them.
type arguments struct {
	members  map[string]argument // by their names in the tool's schema
	misses   map[string]string   // misspelt names, by the names that were probably meant
	warnings []string            // about ignored arguments that were probably misspelt
	err      error
}

// parseArguments accepts an object or nothing. It ignores unknown arguments, since clients add
// their own, but warns about or refuses names that look like a misspelling of one of the tool's.
func parseArguments(raw json.RawMessage, accepted parameters) (*arguments, error) {
	a := &arguments{members: map[string]argument{}, misses: map[string]string{}}
	if len(raw) == 0 || string(raw) == "null" {
		return a, nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, argumentError("arguments must be an object")
	}
	var others []argument
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, argumentError("arguments must be valid JSON")
		}
		var arg argument
		if err := dec.Decode(&arg.raw); err != nil {
			return nil, argumentError("arguments must be valid JSON")
		}
		arg.name, _ = key.(string)
		if name, ok := accepted[arg.name]; ok {
			a.set(name, arg)
		} else if len(others) < maxUnknown && len(arg.name) <= maxUnknownName {
			others = append(others, arg)
		}
	}
	a.checkUnknown(others, accepted)
	return a, a.err
}

// set stores an argument. The same argument may occur twice, even under an alias, if the values are
// equal.
func (a *arguments) set(name string, arg argument) {
	before, ok := a.members[name]
	switch {
	case !ok || before.isEmpty() && string(arg.raw) != "null":
		a.members[name] = arg
	case arg.isEmpty() || arg.equal(before):
	case arg.name == before.name:
		a.fail("%s is given twice, with different values", arg.name)
	default:
		a.fail("%s and %s are the same argument; give one of them", before.name, arg.name)
	}
}

// fail keeps the first error.
func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = argumentError(fmt.Sprintf(format, args...))
	}
}

// decode stores the arguments in the fields of in, a pointer to a struct with the given schema. It
// checks types, limits and required arguments; null is the same as a missing argument.
func (a *arguments) decode(schema *jsonschema.Schema, in any) error {
	value := reflect.ValueOf(in).Elem()
	for _, field := range reflect.VisibleFields(value.Type()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		property := schema.Properties[name]
		if field.Anonymous || property == nil {
			continue
		}
		target := value.FieldByIndex(field.Index)
		if arg, ok := a.members[name]; ok && string(arg.raw) != "null" {
			if err := json.Unmarshal(arg.raw, target.Addr().Interface()); err != nil {
				a.failType(arg.name, property, err)
			} else {
				a.checkLimits(name, property, target)
			}
		}
		if slices.Contains(schema.Required, name) && target.IsZero() {
			if other := a.misses[name]; other != "" {
				a.fail("%s is required; argument %q is not known, did you mean %s?", name, other, name)
			}
			a.fail("%s is required", name)
		}
	}
	return a.err
}

// failType reports an argument of the wrong type. An argument that decodes itself may say more.
func (a *arguments) failType(name string, property *jsonschema.Schema, err error) {
	if detail, ok := errors.AsType[argumentError](err); ok {
		a.fail("%s", detail)
		return
	}
	article := "a"
	if strings.ContainsAny(property.Type[:1], "aio") {
		article = "an"
	}
	a.fail("%s must be %s %s", name, article, property.Type)
}

func (a *arguments) checkLimits(name string, property *jsonschema.Schema, value reflect.Value) {
	if property.Minimum == nil {
		return
	}
	if value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	number := value.Convert(reflect.TypeFor[float64]()).Float()
	switch low, high := *property.Minimum, property.Maximum; {
	case high != nil && (number < low || number > *high):
		a.fail("%s must be between %s and %s", name, decimal(low), decimal(*high))
	case number < low:
		a.fail("%s must be at least %s", name, decimal(low))
	}
}

// decimal writes a number without an exponent.
func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// environment is an argument that is an object of strings.
type environment map[string]string

// UnmarshalJSON refuses null as a value, which encoding/json takes for an empty string.
func (e *environment) UnmarshalJSON(data []byte) error {
	if len(data) > maxEnvironmentJSON {
		return argumentError("environment is too large")
	}
	invalid := argumentError("environment must be an object whose values are strings")
	var values map[string]*string
	if json.Unmarshal(data, &values) != nil {
		return invalid
	}
	*e = make(environment, len(values))
	for name, value := range values {
		if value == nil {
			return invalid
		}
		(*e)[name] = *value
	}
	return nil
}
