package proxy

import (
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pathCases lists paths as a client sends them, and what the service gets.
var pathCases = []struct {
	pattern      string
	encodedSlash bool
	wire         string
	status       int    // 200, 400 or 403
	forwarded    string // with 200
}{
	{"/api/v1/**", false, "/api/v1", 200, "/api/v1"},
	{"/api/v1/**", false, "/api/v1/", 200, "/api/v1/"},
	{"/api/v1/**", false, "/api/v1/a%20b", 200, "/api/v1/a%20b"},
	{"/api/v1/**", false, "/api/v1/...", 200, "/api/v1/..."},
	{"/api/v1/**", false, "/api/v1/%7Euser", 200, "/api/v1/~user"},
	{"/api/v1/**", false, "/api/v1/x%3Fy=1", 200, "/api/v1/x%3Fy=1"},
	{"/api/v1/**", false, "/api/v1/x%23y", 200, "/api/v1/x%23y"},
	{"/api/v1/**", false, "/api/v1/%e2%82%ac", 200, "/api/v1/%E2%82%AC"},
	{"/api/v1/**", false, "/api/v1/a+b%2Bc", 200, "/api/v1/a%2Bb%2Bc"},
	{"/api/v1/**", false, "/api/v1/p:search@x,(1)", 200, "/api/v1/p:search@x,(1)"},
	{"/api/v1/**", false, "/%61pi/v1/x", 200, "/api/v1/x"},
	{"/api/v1/**", false, "/api/v10/x", 403, ""},
	{"/api/v1/**", false, "/API/v1/x", 403, ""},
	{"/api/v1/**", false, "/api", 403, ""},
	{"/api/v1/**", false, "/", 403, ""},
	{"/api/v1/**", false, "", 403, ""},
	{"/api/v1/**", false, "/api/v1/../admin", 400, ""},
	{"/api/v1/**", false, "/api/v1/..", 400, ""},
	{"/api/v1/**", false, "/api/v1/%2e%2e/admin", 400, ""},
	{"/api/v1/**", false, "/api/v1/.%2E/admin", 400, ""},
	{"/api/v1/**", false, "/api/v1/./x", 400, ""},
	{"/api/v1/**", false, "/api/v1/..%20/x", 400, ""},
	{"/api/v1/**", false, "/api/v1/a%25b", 400, ""},
	{"/api/v1/**", false, "/api/v1/%252e%252e/admin", 400, ""},
	{"/api/v1/**", false, "/api/v1/..%2fadmin", 400, ""},
	{"/api/v1/**", false, "/api/v1/a%2Fb", 400, ""},
	{"/api/v1/**", false, "/api/v1/..%5cadmin", 400, ""},
	{"/api/v1/**", false, "/api/v1/..\\admin", 400, ""},
	{"/api/v1/**", false, "/api/v1/..;/admin", 400, ""},
	{"/api/v1/**", false, "/api/v1/x;v=1", 400, ""},
	{"/api/v1/**", false, "/api/v1/x%3Bv=1", 400, ""},
	{"/api/v1/**", false, "/api/v1//x", 400, ""},
	{"/api/v1/**", false, "//api/v1/x", 400, ""},
	{"/api/v1/**", false, "/api/v1/x//", 400, ""},
	{"/api/v1/**", false, "/api/v1/%00", 400, ""},
	{"/api/v1/**", false, "/api/v1/x%0d%0aX-Evil:%201", 400, ""},
	{"/api/v1/**", false, "/api/v1/%c0%ae%c0%ae/admin", 400, ""},
	{"/api/v1/**", false, "/api/v1/%c2%85", 400, ""},
	{"/api/v1/**", false, "/api/v1/%EF%BC%8E%EF%BC%8E/admin", 400, ""},   // fullwidth dots
	{"/api/v1/**", false, "/api/v1/%E2%80%A5/admin", 400, ""},            // a two dot leader
	{"/api/v1/**", false, "/api/v1/..%EF%BC%8Fadmin", 400, ""},           // a fullwidth slash
	{"/api/v1/**", false, "/api/v1/x%E2%88%95..%EF%BC%BCadmin", 400, ""}, // a division slash, a fullwidth backslash
	{"/api/v1/**", false, "/api/v1/a%EF%BC%8Fb%E2%80%A5", 200, "/api/v1/a%EF%BC%8Fb%E2%80%A5"},
	{"/api/v1/**", false, "/api/v1/%", 400, ""},
	{"/api/v1/**", false, "/api/v1/%2", 400, ""},
	{"/api/v1/**", false, "/api/v1/%zz", 400, ""},
	{"/projects/*/issues", true, "/projects/grp%2Fname/issues", 200, "/projects/grp%2Fname/issues"},
	{"/projects/*/issues", true, "/projects/grp%2fname/issues", 200, "/projects/grp%2Fname/issues"},
	{"/projects/*/issues", true, "/projects/grp/name/issues", 403, ""},
	{"/projects/*/issues", true, "/projects/grp%2F..%2Fx/issues", 400, ""},
	{"/projects/*/issues", true, "/projects/grp%2F%2e%2e/issues", 400, ""},
	{"/projects/*/issues", true, "/projects/%2Fgrp/issues", 400, ""},
	{"/projects/*/issues", true, "/projects/grp%2F/issues", 400, ""},
	{"/projects/*/issues", true, "/projects/grp%5Cname/issues", 400, ""},
	{"/projects/*/issues", false, "/projects/grp%2Fname/issues", 400, ""},
	{"/api/v1/*", false, "/api/v1/a", 200, "/api/v1/a"},
	{"/api/v1/*", false, "/api/v1/a/b", 403, ""},
	{"/api/v1/*", false, "/api/v1/", 403, ""},
	{"/api/v1/*", false, "/api/v1", 403, ""},
	{"/api/v1/m", false, "/api/v1/m", 200, "/api/v1/m"},
	{"/api/v1/m", false, "/api/v1/m/", 403, ""},
	{"/api/*/metrics", false, "/api/v2/metrics", 200, "/api/v2/metrics"},
	{"/api/*/metrics", false, "/api/v2/x/metrics", 403, ""},
	{"/api/*/metrics", false, "/api//metrics", 400, ""},
	{"/%2A", false, "/%2a", 200, "/*"},
	{"/%2A", false, "/x", 403, ""},
	{"/**", false, "", 200, "/"},
	{"/", false, "/", 200, "/"},
	{"/", false, "/x", 403, ""},
}

func TestPathMatcher(t *testing.T) {
	for _, tc := range pathCases {
		p, err := parsePattern(tc.pattern)
		if err != nil {
			t.Fatal(err)
		}
		status := 200
		got, err := parsePath(tc.wire, tc.encodedSlash)
		switch {
		case err != nil:
			status = 400
			if !errors.Is(err, errPath) {
				t.Errorf("%q: %v", tc.wire, err)
			}
		case !p.match(got.segments):
			status = 403
		case got.escaped != tc.forwarded:
			t.Errorf("%q is forwarded as %q, want %q", tc.wire, got.escaped, tc.forwarded)
		}
		if status != tc.status {
			t.Errorf("%s, %q: %d, want %d", tc.pattern, tc.wire, status, tc.status)
		}
	}
}

func TestPathMatcherRefusesPatterns(t *testing.T) {
	for _, text := range []string{
		"", "api", "/a/**/b", "/**/", "/a*", "/a/v*/b", "/***", "//", "/a//b", "/../a", "/a/%2e%2e", "/a;b", "/%25", "/a?b", "/a#b", "/%", "/\x00",
		"/" + strings.Repeat("a", maxPatternLength),
	} {
		if _, err := parsePattern(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	if _, err := parsePatterns(slices.Repeat([]string{"/a"}, maxPatterns+1)); err == nil {
		t.Error("any number of patterns was taken")
	}
}

// covers agrees with its definition on every path and pattern of a small set.
func TestPathMatcherCovers(t *testing.T) {
	var patterns []pattern
	var paths [][]string
	var grow func(text string, segments []string)
	grow = func(text string, segments []string) {
		for _, last := range []string{"", "a", "b", "*", "**"} {
			if p, err := parsePattern(text + "/" + last); err == nil {
				patterns = append(patterns, p)
			}
		}
		for _, last := range []string{"", "a", "b", "c"} { // c is in no pattern
			paths = append(paths, append(slices.Clone(segments), last))
		}
		if len(segments) == 3 {
			return
		}
		for _, s := range []string{"a", "b", "c"} {
			name := s
			if s == "c" {
				name = "*"
			}
			grow(text+"/"+name, append(slices.Clone(segments), s))
		}
	}
	grow("", nil)
	for _, p := range patterns {
		for _, q := range patterns {
			want := !slices.ContainsFunc(paths, func(path []string) bool { return q.match(path) && !p.match(path) })
			if got := p.covers(q); got != want {
				t.Fatalf("%s covers %s: %t, want %t", p.text, q.text, got, want)
			}
		}
	}
}

// reference is a second matcher: net/url decodes, and a regular expression matches.
func reference(patternText, wire string, encodedSlash bool) (status int, plain string) {
	forbidden, dots := regexp.MustCompile(`[%;\\\x{FFFD}\p{Cc}]`), regexp.MustCompile(`(^|[/\x{FF0F}\x{2215}\x{2044}\x{FF3C}]) *([.\x{FF0E}\x{2024}]{1,2}|\x{2025}) *($|[/\x{FF0F}\x{2215}\x{2044}\x{FF3C}])`)
	if wire == "" {
		wire = "/"
	}
	if !strings.HasPrefix(wire, "/") || strings.Contains(wire, "//") {
		return 400, ""
	}
	var decoded []string
	for _, raw := range strings.Split(wire[1:], "/") {
		s, err := url.PathUnescape(raw)
		if err != nil || strings.ToValidUTF8(s, "\x00") != s || forbidden.MatchString(s) || strings.Contains(s, "/") && !encodedSlash {
			return 400, ""
		}
		if dots.MatchString(s) || strings.Contains("/"+s+"/", "//") && s != "" {
			return 400, ""
		}
		decoded = append(decoded, s)
	}
	var expr strings.Builder
	expr.WriteString(`(?s)^`)
	for _, raw := range strings.Split(patternText[1:], "/") {
		switch raw {
		case "**":
			expr.WriteString("(\x01.*)?")
		case "*":
			expr.WriteString("\x01[^\x01]+")
		default:
			s, _ := url.PathUnescape(raw)
			expr.WriteString("\x01" + regexp.QuoteMeta(s))
		}
	}
	expr.WriteString(`$`)
	if !regexp.MustCompile(expr.String()).MatchString("\x01" + strings.Join(decoded, "\x01")) {
		return 403, ""
	}
	return 200, "/" + strings.Join(decoded, "/")
}

func FuzzPathMatcher(f *testing.F) {
	for _, tc := range pathCases {
		f.Add(tc.pattern, tc.wire, tc.encodedSlash)
	}
	f.Fuzz(func(t *testing.T, patternText, wire string, encodedSlash bool) {
		p, err := parsePattern(patternText)
		if err != nil {
			return
		}
		status, plain := 200, ""
		got, err := parsePath(wire, encodedSlash)
		switch {
		case err != nil:
			status = 400
		case !p.match(got.segments):
			status = 403
		default:
			plain = got.plain
		}
		if wantStatus, wantPlain := reference(patternText, wire, encodedSlash); status != wantStatus || plain != wantPlain {
			t.Fatalf("%q, %q, %t: %d %q, the reference says %d %q", patternText, wire, encodedSlash, status, plain, wantStatus, wantPlain)
		}
		if status == 400 {
			return
		}
		// The forwarded path means the same to other programs, and is canonical.
		again, err := parsePath(got.escaped, encodedSlash)
		if err != nil || again.escaped != got.escaped || !slices.Equal(again.segments, got.segments) {
			t.Fatalf("%q is encoded %q, and that %q (%v)", wire, got.escaped, again.escaped, err)
		}
		u, err := url.ParseRequestURI("http://h" + got.escaped)
		if err != nil || u.Path != got.plain || u.RawQuery != "" || strings.ContainsFunc(got.escaped, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
			t.Fatalf("%q: net/url reads %q as %+v, %v", wire, got.escaped, u, err)
		}
		out := url.URL{Scheme: "http", Host: "h", Path: got.plain, RawPath: got.escaped}
		if out.RequestURI() != got.escaped {
			t.Fatalf("%q would be sent as %q", got.escaped, out.RequestURI())
		}
	})
}
