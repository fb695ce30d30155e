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

	"mcp-code-sandbox/internal/secret"
)

const (
	maxFile   = 1 << 20
	maxSecret = 64 << 10
	maxDepth  = 32
)

// reader takes the file apart, and remembers everything that is wrong with it.
type reader struct {
	dir    string // of the file
	lookup func(string) (string, bool)
	errs   []error
}

func (r *reader) fail(path, format string, args ...any) {
	r.errs = append(r.errs, &FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
}

// parse decodes JSON into maps, slices and json.Numbers. Unlike encoding/json it refuses what is there twice: of two fields of one name,
// people and programs would read different ones.
func parse(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	v, err := parseValue(dec, "", 0)
	if err == nil {
		if _, end := dec.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("there is more after the end of the object")
		}
	}
	if err != nil {
		before := data[:min(dec.InputOffset(), int64(len(data)))]
		return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(before, []byte("\n")), err)
	}
	return v, nil
}

func parseValue(dec *json.Decoder, path string, depth int) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("it is nested too deeply")
	}
	tok, err := dec.Token()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file ends too early")
	}
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
			name := key.(string) // the decoder sees to that
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("%s is there twice", join(path, name))
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

// object is an object of the file, of which fields are taken.
type object struct {
	r       *reader
	path    string
	members map[string]any
}

// object checks that v is one, with known fields only.
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
			return strings.EqualFold(strings.ReplaceAll(k, "_", ""), strings.ReplaceAll(name, "_", ""))
		})
		if i >= 0 {
			r.fail(join(path, name), "is not known; did you mean %s?", known[i])
		} else {
			r.fail(join(path, name), "is not known; known are %s", strings.Join(known, ", "))
		}
	}
	return object{r, path, m}, true
}

func (o object) has(name string) bool { return o.members[name] != nil }

func (o object) at(name string) string { return join(o.path, name) }

func (o object) fail(name, format string, args ...any) { o.r.fail(o.at(name), format, args...) }

// text is a string, or a reference to one. A required one must not be empty.
func (o object) text(name string, required bool) string {
	v, ok := o.members[name]
	if !ok || v == nil {
		if required {
			o.fail(name, "is missing")
		}
		return ""
	}
	text, ok := o.r.resolve(o.at(name), v)
	if ok && text == "" && required {
		o.fail(name, "must not be empty")
	}
	return text
}

// secret is text that is never shown.
func (o object) secret(name string, required bool) secret.Value {
	text := o.text(name, required)
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		o.fail(name, "has a line break or another control character in it: no header can carry that")
	}
	return secret.New(text)
}

func (o object) texts(name string) []string {
	v, ok := o.members[name]
	if !ok || v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		o.fail(name, "must be a list of strings")
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
	v, ok := o.members[name]
	if !ok || v == nil {
		return false
	}
	b, ok := v.(bool)
	if !ok {
		o.fail(name, "must be true or false")
	}
	return b
}

// number returns a number within bounds, and fallback where there is none.
func (o object) number(name string, low, high, fallback float64) float64 {
	v, ok := o.members[name]
	if !ok || v == nil {
		return fallback
	}
	n, ok := v.(json.Number)
	f, err := strconv.ParseFloat(n.String(), 64)
	if !ok || err != nil || f < low || f > high {
		o.fail(name, "must be a number from %g to %g", low, high)
		return fallback
	}
	return f
}

// resolve is a string of the file's, or what {"$env": "NAME"} or {"$file": "path"} refers to.
func (r *reader) resolve(path string, v any) (string, bool) {
	if text, ok := v.(string); ok {
		return text, true
	}
	m, ok := v.(map[string]any)
	if !ok || len(m) != 1 {
		r.fail(path, `must be a string, {"$env": "NAME"} or {"$file": "path"}`)
		return "", false
	}
	for kind, what := range m {
		name, ok := what.(string)
		switch {
		case kind == "$env" && ok && name != "":
			text, set := r.lookup(name)
			if !set || text == "" {
				r.fail(path, "the environment variable %s is not set", name)
				return "", false
			}
			return text, true
		case kind == "$file" && ok && name != "":
			return r.file(path, name)
		}
	}
	r.fail(path, `must be a string, {"$env": "NAME"} or {"$file": "path"}`)
	return "", false
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
		return "", false
	}
	return text, true
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
