package packages

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"unicode"
)

// Limits of what a page may have.
const (
	maxFiles   = 100_000 // of a project; also members of any object
	maxAddress = 8 << 10
	maxDropped = 1000 // versions that the cache remembers
)

// errTooLarge says that a page or the metadata of a file is larger than the mirror reads.
var errTooLarge = errors.New("the index's answer is too large")

var errRepeated = errors.New("an object has the same member twice")

var errTooMany = fmt.Errorf("%w: more than %d entries", errTooLarge, maxFiles)

// eachMember reads a JSON object and calls f with each key; f decodes the value. It counts before
// it builds anything, because a page can have millions of tiny members. null has none. A repeated
// member is an error: it would evade the count, and clients read such objects in different ways.
func eachMember(d *json.Decoder, f func(key string) error) error {
	seen := map[string]bool{}
	return each(d, '{', func() error {
		key, err := d.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string) // the decoder allows nothing else
		if seen[name] {
			return errRepeated
		}
		seen[name] = true
		return f(name)
	})
}

// each reads a JSON array or object, by its first character, and calls f for each entry.
func each(d *json.Decoder, open json.Delim, f func() error) error {
	t, err := d.Token()
	if err != nil || t == nil {
		return err
	}
	if t != open {
		return errors.New("an entry has the wrong type")
	}
	for n := 0; d.More(); n++ {
		if n >= maxFiles {
			return errTooMany
		}
		if err := f(); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// members returns those members of a JSON object whose names pass keep; nil: all.
func members(d *json.Decoder, keep func(string) bool) (map[string]json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	err := eachMember(d, func(key string) error {
		if keep != nil && !keep(key) {
			return skip(d)
		}
		var value json.RawMessage
		err := d.Decode(&value)
		all[key] = value
		return err
	})
	return all, err
}

// skip reads a value that nobody wants.
func skip(d *json.Decoder) error {
	var none struct{}
	err := d.Decode(&none)
	if _, other := errors.AsType[*json.UnmarshalTypeError](err); other {
		return nil // not an object
	}
	return err
}

// ended returns an error if anything follows the value.
func ended(d *json.Decoder) error {
	if _, err := d.Token(); err != io.EOF {
		return errors.New("something follows the page")
	}
	return nil
}

// resolve returns an address of a page, which must not be long: a page can repeat its base often.
func resolve(base *url.URL, address string) (*url.URL, error) {
	if len(base.Path)+len(base.RawPath)+len(base.RawQuery)+len(address) > maxAddress {
		return nil, errAddress
	}
	return base.Parse(address)
}

// add notes a file under its keys, and returns an error if the page has become too large.
func (p *project) add(f *file, keys ...string) error {
	u := f.url
	p.kept += int64(512 + len(f.name) + len(f.version) + len(f.hash) + len(f.metadata) + len(u.Host) + len(u.Path) + len(u.RawPath) + len(u.RawQuery))
	p.versions[f.version] = true
	for _, key := range keys {
		p.files[key] = f
		p.kept += int64(64 + len(key))
	}
	if p.kept > maxPage {
		return errTooMany
	}
	return nil
}

// drop notes why a file of a version is not allowed. The first reason counts, but for the age,
// which passes.
func (p *project) drop(version string, why *refusal) {
	if old := p.dropped[version]; old == nil || old.code != CodeTooNew && why.code == CodeTooNew {
		p.dropped[version] = why
	}
}

// finish forgets the dropped files of allowed versions, and names the newest version in the others.
// It remembers the newest of these, and so many more.
func (p *project) finish(allowed func(version string) bool) {
	all, newest := p.dropped, ""
	p.dropped = map[string]*refusal{}
	for v := range all {
		if !allowed(v) && (newest == "" || newer(v, newest) || v > newest && !newer(newest, v)) {
			newest = v
		}
	}
	remember := func(v string) {
		why := p.withNewest(all[v])
		p.dropped[v] = why
		p.kept += int64(256 + len(v) + len(why.message))
	}
	if newest == "" {
		return
	}
	remember(newest)
	note := *p.dropped[newest]
	note.offer = p.offer
	p.note = &note
	for v := range all {
		if len(p.dropped) >= maxDropped {
			return
		}
		if v != newest && !allowed(v) {
			remember(v)
		}
	}
}

// withNewest adds the newest allowed version to a refusal.
func (o *offer) withNewest(why *refusal) *refusal {
	if o.newest == "" {
		return why
	}
	return &refusal{code: why.code, message: why.message + " The newest allowed version is " + showVersion(o.newest) + "."}
}

// oddBreak reports whether a line of metadata has a character at which a client might break it.
func oddBreak(line string) bool {
	for i, c := range line {
		if c < ' ' && c != '\t' || 0x7f <= c && c < 0xa0 || c == '\u2028' || c == '\u2029' || c == unicode.ReplacementChar && line[i] == 0x85 {
			return true
		}
	}
	return false
}

// foreignRequirement returns a requirement of a wheel's metadata that is an address, as messages
// show it, or "". ok is false if clients could read the headers in different ways. It copies no
// metadata.
func foreignRequirement(metadata string) (requirement string, ok bool) {
	end := "\n"
	if i := strings.IndexByte(metadata, '\n'); i > 0 && metadata[i-1] == '\r' {
		end = "\r\n"
	}
	headers, _, _ := strings.Cut(metadata, end+end) // the description follows an empty line
	for line := range strings.SplitSeq(headers, end) {
		if oddBreak(line) {
			return "", false
		}
	}
	for rest := headers; rest != ""; {
		var header string
		header, rest = cutHeader(rest, end)
		field, value, _ := strings.Cut(header, ":")
		if strings.Contains(value, "=?") && strings.EqualFold(strings.TrimSpace(field), "Requires-Dist") {
			return "", false // an encoded word (RFC 2047), which some clients decode
		}
		requirement, _, _ := strings.Cut(value, ";")
		if name, address, found := strings.Cut(requirement, "@"); found && strings.EqualFold(strings.TrimSpace(field), "Requires-Dist") {
			return showDependency(PyPI, name, address), true
		}
	}
	return "", true
}

// cutHeader returns the first header with the lines that continue it, and the rest.
func cutHeader(headers, end string) (header, rest string) {
	for i := 0; ; {
		n := strings.Index(headers[i:], end)
		if n < 0 {
			return headers, ""
		}
		if i += n + len(end); i == len(headers) || headers[i] != ' ' && headers[i] != '\t' {
			return headers[:i], headers[i:]
		}
	}
}
