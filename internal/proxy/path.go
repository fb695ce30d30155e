package proxy

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// errPath is wrapped by every error of parsePath and parsePattern.
var errPath = errors.New("path refused")

// path is a request's path below /proxy/{service}, in the one form in which it is both matched and forwarded.
type path struct {
	segments []string // decoded; the last one is empty after a trailing slash
	escaped  string   // "/a%20b/c": the canonical spelling
	plain    string   // "/a b/c"
}

// parsePath decodes each segment of an escaped path exactly once and spells it anew. It refuses whatever two programs might read
// in two ways: dot segments, empty ones, what decodes to a percent sign, slash, backslash, semicolon or control character, and text that
// is not UTF-8. With encodedSlash, %2F is allowed inside a segment, if the parts around it are ordinary.
func parsePath(escaped string, encodedSlash bool) (path, error) {
	if escaped == "" {
		escaped = "/"
	}
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok {
		return path{}, fmt.Errorf("%w: it does not start with a slash", errPath)
	}
	var p path
	var spelt, plain strings.Builder
	for raw := range strings.SplitSeq(rest, "/") {
		segment, err := parseSegment(raw, encodedSlash)
		if err != nil {
			return path{}, err
		}
		p.segments = append(p.segments, segment)
		spelt.WriteByte('/')
		escapeSegment(&spelt, segment)
		plain.WriteByte('/')
		plain.WriteString(segment)
	}
	for _, s := range p.segments[:len(p.segments)-1] {
		if s == "" {
			return path{}, fmt.Errorf("%w: it has an empty segment", errPath)
		}
	}
	p.escaped, p.plain = spelt.String(), plain.String()
	return p, nil
}

func parseSegment(raw string, encodedSlash bool) (string, error) {
	s, ok := unescape(raw)
	if !ok {
		return "", fmt.Errorf("%w: it has an incomplete escape", errPath)
	}
	if !utf8.ValidString(s) {
		return "", fmt.Errorf("%w: it is not UTF-8", errPath)
	}
	for _, r := range s {
		switch {
		case r == '%' || r == '\\' || r == ';' || unicode.IsControl(r) || r == utf8.RuneError:
			return "", fmt.Errorf("%w: %q is not allowed in it, in any spelling", errPath, r)
		case r == '/' && !encodedSlash:
			return "", fmt.Errorf("%w: an encoded slash is not allowed for this service", errPath)
		}
	}
	if s == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(s, "/") {
		// Some servers drop spaces at the end of a name before they look at it.
		if t := strings.Trim(part, " "); t == "." || t == ".." || part == "" {
			return "", fmt.Errorf("%w: it has a dot segment or an empty one", errPath)
		}
	}
	return s, nil
}

// unescape decodes every %XX once.
func unescape(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		hi, lo := unhex(s[i+1]), unhex(s[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), true
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// escapeSegment writes what a path may contain as it is, and the rest in capital hexadecimal digits. A plus sign is escaped: there
// are servers that take a bare one for a space.
func escapeSegment(b *strings.Builder, s string) {
	const digits = "0123456789ABCDEF"
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~!$&'()*,=:@", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(digits[c>>4])
		b.WriteByte(digits[c&15])
	}
}
