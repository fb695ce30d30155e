package proxy

import (
	"fmt"
	"slices"
	"strings"
)

// pattern is a compiled path pattern: literal segments, "*" for one segment that is not empty, and "**" at the end for any number of
// segments, none included.
type pattern struct {
	text     string
	segments []patternSegment
	deep     bool
}

type patternSegment struct {
	literal string
	any     bool
}

// Bounds of what a request for a token may carry.
const (
	maxPatterns      = 64
	maxPatternLength = 512
)

// parsePattern compiles a pattern. Its literals are escaped as in a URL ("%2A" is a star); what a path must not contain, a pattern
// must not either.
func parsePattern(text string) (pattern, error) {
	if len(text) > maxPatternLength {
		return pattern{}, fmt.Errorf("the pattern is longer than %d bytes", maxPatternLength)
	}
	rest, ok := strings.CutPrefix(text, "/")
	if !ok {
		return pattern{}, fmt.Errorf("the pattern %q does not start with a slash", text)
	}
	if strings.ContainsAny(rest, "?#") {
		return pattern{}, fmt.Errorf("the pattern %q has a query or fragment: patterns are for paths alone", text)
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
			return pattern{}, fmt.Errorf("the pattern %q has a star beside other characters: a star stands for a whole segment (%%2A is a literal one)", text)
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

// coveredBy reports whether one of ps covers q. That a pattern lies within several only together is not looked for.
func coveredBy(ps []pattern, q pattern) bool {
	return slices.ContainsFunc(ps, func(p pattern) bool { return p.covers(q) })
}
