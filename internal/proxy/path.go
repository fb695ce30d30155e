package proxy

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// errPath is wrapped by every error of parsePath and parseSegment.
var errPath = errors.New("path refused")

// path is a request's path below /proxy/{service}. It is matched and forwarded in this one form.
type path struct {
	segments []string // decoded; the last one is empty after a trailing slash
	escaped  string   // "/a%20b/c", canonical
	plain    string   // "/a b/c"
}

// parsePath decodes each segment of an escaped path once and encodes it canonically. It refuses
// what two programs may read differently, such as dot segments and encoded percent signs; see
// parseSegment. With encodedSlash, a segment may contain %2F.
func parsePath(escaped string, encodedSlash bool) (path, error) {
	if escaped == "" {
		escaped = "/"
	}
	rest, ok := strings.CutPrefix(escaped, "/")
	if !ok {
		return path{}, fmt.Errorf("%w: it does not start with a slash", errPath)
	}
	var p path
	var canonical strings.Builder
	for raw := range strings.SplitSeq(rest, "/") {
		segment, err := parseSegment(raw, encodedSlash)
		if err != nil {
			return path{}, err
		}
		p.segments = append(p.segments, segment)
		canonical.WriteByte('/')
		escapeSegment(&canonical, segment)
	}
	for _, s := range p.segments[:len(p.segments)-1] {
		if s == "" {
			return path{}, fmt.Errorf("%w: it has an empty segment", errPath)
		}
	}
	p.escaped, p.plain = canonical.String(), "/"+strings.Join(p.segments, "/")
	return p, nil
}

// parseSegment decodes a segment. It refuses text that is not UTF-8, dot segments, and any % \ ; or
// control character.
func parseSegment(raw string, encodedSlash bool) (string, error) {
	s, err := url.PathUnescape(raw)
	if err != nil {
		return "", fmt.Errorf("%w: it has an incomplete escape", errPath)
	}
	if !utf8.ValidString(s) {
		return "", fmt.Errorf("%w: it is not UTF-8", errPath)
	}
	for _, r := range s {
		switch {
		case r == '%' || r == '\\' || r == ';' || unicode.IsControl(r) || r == utf8.RuneError:
			return "", fmt.Errorf("%w: it contains %q, escaped or not", errPath, r)
		case r == '/' && !encodedSlash:
			return "", fmt.Errorf("%w: this service does not allow an encoded slash", errPath)
		}
	}
	if s == "" {
		return s, nil
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" {
			return "", fmt.Errorf("%w: it has an empty segment", errPath)
		}
	}
	for part := range strings.SplitSeq(lookAlikes.Replace(s), "/") {
		// Some servers trim spaces before they resolve dot segments.
		if t := strings.Trim(part, " "); t == "." || t == ".." {
			return "", fmt.Errorf("%w: it has a dot segment", errPath)
		}
	}
	return s, nil
}

// lookAlikes become dots and slashes on servers that normalize text (NFKC) or convert it to a small
// character set. They are allowed where that gives no dot segment.
var lookAlikes = strings.NewReplacer("\uff0e", ".", "\u2024", ".", "\u2025", "..",
	"\uff0f", "/", "\u2215", "/", "\u2044", "/", "\uff3c", "/")

// escapeSegment encodes a segment. It also encodes the plus sign, which some servers take for a
// space.
func escapeSegment(b *strings.Builder, s string) {
	for _, c := range []byte(s) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~!$&'()*,=:@", c) >= 0 {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(b, "%%%02X", c)
	}
}

// pattern is a compiled path pattern. It consists of literal segments, "*" for one nonempty
// segment, and "**" at the end for zero or more segments.
type pattern struct {
	text     string
	segments []patternSegment
	deep     bool
}

type patternSegment struct {
	literal string
	any     bool
}

// Bounds of the patterns in one token request.
const (
	maxPatterns      = 64
	maxPatternLength = 512
)

// parsePattern compiles a pattern. Its literals are percent-encoded ("%2A" is a star) and must be
// valid segments of a path.
func parsePattern(text string) (pattern, error) {
	if len(text) > maxPatternLength {
		return pattern{}, fmt.Errorf("the pattern is longer than %d bytes", maxPatternLength)
	}
	rest, ok := strings.CutPrefix(text, "/")
	if !ok {
		return pattern{}, fmt.Errorf("the pattern %q does not start with a slash", text)
	}
	if strings.ContainsAny(rest, "?#") {
		return pattern{}, fmt.Errorf("the pattern %q has a query or fragment: patterns match paths only", text)
	}
	p := pattern{text: text}
	raws := strings.Split(rest, "/")
	for i, raw := range raws {
		last := i == len(raws)-1
		switch {
		case raw == "**" && last:
			p.deep = true
			continue
		case raw == "**":
			return pattern{}, fmt.Errorf("the pattern %q has ** before its end: it may only be the last segment", text)
		case raw == "*":
			p.segments = append(p.segments, patternSegment{any: true})
			continue
		case strings.Contains(raw, "*"):
			return pattern{}, fmt.Errorf("the pattern %q has a star next to other characters: "+
				"a star stands for a whole segment (%%2A is a literal one)", text)
		case raw == "" && !last:
			return pattern{}, fmt.Errorf("the pattern %q has an empty segment", text)
		}
		literal, err := parseSegment(raw, true)
		if err != nil {
			return pattern{}, fmt.Errorf("the pattern %q: %w", text, err)
		}
		p.segments = append(p.segments, patternSegment{literal: literal})
	}
	return p, nil
}

func parsePatterns(texts []string) ([]pattern, error) {
	if len(texts) > maxPatterns {
		return nil, fmt.Errorf("more than %d patterns", maxPatterns)
	}
	ps := make([]pattern, len(texts))
	for i, text := range texts {
		var err error
		if ps[i], err = parsePattern(text); err != nil {
			return nil, err
		}
	}
	return ps, nil
}

// match reports whether the pattern allows a path.
func (p pattern) match(segments []string) bool {
	if len(segments) < len(p.segments) || len(segments) > len(p.segments) && !p.deep {
		return false
	}
	for i, s := range p.segments {
		if s.any && segments[i] == "" || !s.any && segments[i] != s.literal {
			return false
		}
	}
	return true
}

// covers reports whether p allows every path that q allows.
func (p pattern) covers(q pattern) bool {
	if len(q.segments) < len(p.segments) || !p.deep && (q.deep || len(q.segments) > len(p.segments)) {
		return false
	}
	for i, s := range p.segments {
		switch r := q.segments[i]; {
		case s.any && !r.any && r.literal == "", !s.any && (r.any || r.literal != s.literal):
			return false
		}
	}
	return true
}

func matchAny(ps []pattern, segments []string) bool {
	return slices.ContainsFunc(ps, func(p pattern) bool { return p.match(segments) })
}

// coveredBy reports whether one of ps covers q. It does not combine several.
func coveredBy(ps []pattern, q pattern) bool {
	return slices.ContainsFunc(ps, func(p pattern) bool { return p.covers(q) })
}
