package serviceconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/proxy"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/spelling"
)

const (
	maxFile   = 1 << 20
	maxSecret = 64 << 10
	maxDepth  = 32
)

// reader reads the parsed file and collects everything that is wrong with it.
type reader struct {
	dir    string // of the file
	lookup func(string) (string, bool)
	errs   []error
}

func (r *reader) fail(path, format string, args ...any) {
	r.errs = append(r.errs, &proxy.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
}

// parse decodes JSON into maps, slices and json.Numbers. Unlike encoding/json it refuses duplicate
// fields, which people and programs read differently.
func parse(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := parseValue(dec, "", 0)
	if err == nil {
		if _, end := dec.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("the object is followed by more text")
		}
	}
	if err != nil {
		offset := min(dec.InputOffset(), int64(len(data)))
		before, rest := bytes.TrimSpace(data[:offset]), bytes.TrimSpace(data[offset:])
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			err = errors.New("the file ends too early: a closing brace, bracket or quote is missing")
		case bytes.HasSuffix(before, []byte(",")) && len(rest) > 0 && (rest[0] == '}' || rest[0] == ']'):
			err = fmt.Errorf("remove the comma before %c", rest[0])
		case bytes.HasPrefix(rest, []byte("/")) || bytes.HasPrefix(rest, []byte("#")):
			err = errors.New("JSON has no comments: remove it")
		}
		return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(data[:offset], []byte("\n")), err)
	}
	return v, nil
}

func parseValue(dec *json.Decoder, path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("the value is nested too deeply")
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		object := map[string]any{}
		for dec.More() {
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			name := key.(string) // the decoder guarantees it
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("duplicate field %s", join(path, name))
			}
			if object[name], err = parseValue(dec, join(path, name), depth+1); err != nil {
				return nil, err
			}
		}
		_, err = dec.Token()
		return object, err
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			v, err := parseValue(dec, path, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = dec.Token()
		return list, err
	}
	return tok, nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// object is an object of the file.
type object struct {
	r       *reader
	path    string
	members map[string]any
}

// object returns v as an object. Unknown fields are errors.
func (r *reader) object(path string, v any, known ...string) (object, bool) {
	m, ok := v.(map[string]any)
	if !ok {
		r.fail(path, "must be an object")
		return object{}, false
	}
	for name := range m {
		if slices.Contains(known, name) {
			continue
		}
		i := slices.IndexFunc(known, func(k string) bool {
			return strings.EqualFold(strings.ReplaceAll(k, "_", ""), strings.ReplaceAll(name, "_", "")) || spelling.Distance(k, name) <= len(k)/5
		})
		if i >= 0 {
			r.fail(join(path, name), "is unknown; did you mean %s?", known[i])
		} else {
			r.fail(join(path, name), "is unknown; known fields: %s", strings.Join(known, ", "))
		}
	}
	return object{r, path, m}, true
}

// refuseNulls reports and removes fields of v that are null. They look like nothing, and a missing
// list may allow everything. Readers refuse a null in a list.
func (r *reader) refuseNulls(path string, v any) {
	switch v := v.(type) {
	case nil:
		r.fail(path, "must not be null: remove it")
	case map[string]any:
		for name, member := range v {
			if r.refuseNulls(join(path, name), member); member == nil {
				delete(v, name)
			}
		}
	case []any:
		for i, item := range v {
			if item != nil {
				r.refuseNulls(fmt.Sprintf("%s[%d]", path, i), item)
			}
		}
	}
}

func (o object) has(name string) bool { return o.members[name] != nil }

func (o object) at(name string) string { return join(o.path, name) }

func (o object) fail(name, format string, args ...any) { o.r.fail(o.at(name), format, args...) }

// text reads a string or a reference to one. A required one must not be empty.
func (o object) text(name string, required bool) string {
	if !o.has(name) {
		if required {
			o.fail(name, "is missing")
		}
		return ""
	}
	text, ok := o.r.resolve(o.at(name), o.members[name])
	if ok && text == "" && required {
		o.fail(name, "must not be empty")
	}
	return text
}

// secret reads a text that must never be shown.
func (o object) secret(name string, required bool) secret.Value {
	text := o.text(name, required)
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		o.fail(name, "contains a line break or another control character, which no header can carry")
	}
	return secret.New(text)
}

// texts reads a list of strings, or returns nil if the field is missing. Null is an error: it looks
// like nothing, and a missing list may allow everything.
func (o object) texts(name string) []string {
	v, given := o.members[name]
	if !given {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		o.fail(name, "must be a list of strings (leave the field out for the default)")
		return nil
	}
	texts := make([]string, 0, len(list))
	for i, item := range list {
		if text, ok := o.r.resolve(fmt.Sprintf("%s[%d]", o.at(name), i), item); ok {
			texts = append(texts, text)
		}
	}
	return texts
}

func (o object) flag(name string) bool {
	b, ok := o.members[name].(bool)
	if !ok && o.has(name) {
		o.fail(name, "must be true or false")
	}
	return b
}

// number returns a number within bounds, or fallback if the field is missing.
func (o object) number(name string, low, high, fallback float64) float64 {
	if !o.has(name) {
		return fallback
	}
	n, ok := o.members[name].(json.Number)
	f, err := strconv.ParseFloat(n.String(), 64)
	if !ok || err != nil || f < low || f > high {
		o.fail(name, "must be a number from %s to %s", decimal(low), decimal(high))
		return fallback
	}
	return f
}

// bytes returns a number of bytes, at least low, or fallback if the field is missing.
func (o object) bytes(name string, low, fallback int64) int64 {
	if !o.has(name) {
		return fallback
	}
	n, _ := o.members[name].(json.Number)
	bytes, err := n.Float64()
	if err != nil || bytes < float64(low) || bytes > 1<<50 {
		o.fail(name, "must be a number of bytes, %d or more, without a unit", low)
		return fallback
	}
	return int64(bytes)
}

// decimal writes a number without an exponent.
func decimal(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }

// resolve returns a string of the file, or the text to which {"$env": "NAME"} or {"$file": "path"}
// refers.
func (r *reader) resolve(path string, v any) (string, bool) {
	if text, ok := v.(string); ok {
		return text, true
	}
	if m, _ := v.(map[string]any); len(m) == 1 {
		if name, _ := m["$env"].(string); name != "" {
			return r.env(path, name)
		}
		if name, _ := m["$file"].(string); name != "" {
			return r.file(path, name)
		}
	}
	r.fail(path, `must be a string, {"$env": "NAME"} or {"$file": "path"}`)
	return "", false
}

func (r *reader) env(path, name string) (string, bool) {
	text, _ := r.lookup(name)
	if text == "" {
		r.fail(path, "the environment variable %s is not set", name)
	}
	return text, text != ""
}

func (r *reader) file(path, name string) (string, bool) {
	if !filepath.IsAbs(name) {
		name = filepath.Join(r.dir, name)
	}
	data, err := readFile(name, maxSecret)
	if err != nil {
		r.fail(path, "%v", err)
		return "", false
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		r.fail(path, "the file %s is empty", name)
	}
	return text, text != ""
}

func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", name, limit)
	}
	return data, err
}
