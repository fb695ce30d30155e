package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// unclean are the starts of paths that do not keep the rules yet. The list must only get shorter.
var unclean = []string{}

// privateWords are words that a reader from outside this project would not know in this sense.
var privateWords = regexp.MustCompile(`(?i)\b(furnish|howToGoOn|letGo|littleToFree|waitToBeTold|soonEnough|takeTime|standsOn|anew|whoever)\b`)

const (
	maxComment = 3   // lines
	maxPackage = 12  // lines of a package comment
	maxWidth   = 100 // columns of a comment, with tabs of 4
	maxRepeat  = 8   // equal lines in two places
)

// TestComments: a comment has at most three lines of 100 columns. A longer explanation belongs into
// docs/, and the comment links to it.
func TestComments(t *testing.T) {
	eachSource(t, func(path string, lines []string, file *ast.File, at func(token.Pos) int) {
		for _, group := range file.Comments {
			first, last := at(group.Pos()), at(group.End())
			limit := maxComment
			if group == file.Doc {
				limit = maxPackage
			}
			own := true // not at the end of a line of code
			for n := first; n <= last; n++ {
				own = own && strings.HasPrefix(strings.TrimSpace(lines[n-1]), "//")
			}
			if size := last - first + 1; own && size > limit && !strings.Contains(lines[first-1], "//go:") {
				t.Errorf("%s:%d: a comment of %d lines, want at most %d", path, first, size, limit)
			}
			if word := privateWords.FindString(group.Text()); word != "" {
				t.Errorf("%s:%d: %q is a private word; use one that everybody knows", path, first, word)
			}
		}
		for i, line := range lines {
			text := strings.TrimSpace(line)
			width := utf8.RuneCountInString(strings.ReplaceAll(line, "\t", "    "))
			if strings.HasPrefix(text, "//") && !strings.HasPrefix(text, "//go:") && width > maxWidth {
				t.Errorf("%s:%d: a comment of %d columns, want at most %d", path, i+1, width, maxWidth)
			}
		}
	})
}

// TestNoRepeatedLines: no two places share eight lines of code. Move them into a function.
func TestNoRepeatedLines(t *testing.T) {
	type place struct {
		path string
		line int
	}
	seen := map[string]place{}
	eachSource(t, func(path string, lines []string, file *ast.File, at func(token.Pos) int) {
		skip := map[int]bool{}
		skipNode := func(n ast.Node) {
			for l := at(n.Pos()); l <= at(n.End()); l++ {
				skip[l] = true
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GenDecl:
				if n.Tok == token.IMPORT {
					skipNode(n)
				}
			case *ast.CompositeLit: // a table
				if strings.HasSuffix(path, "_test.go") {
					skipNode(n)
				}
			}
			return true
		})
		var code []string
		var numbers []int
		for i, line := range lines {
			switch text := strings.TrimSpace(line); {
			case skip[i+1] || strings.HasPrefix(text, "//") || strings.Trim(text, "{}(),") == "":
			default:
				code, numbers = append(code, text), append(numbers, i+1)
			}
		}
		reported := 0
		for i := 0; i+maxRepeat <= len(code); i++ {
			run := strings.Join(code[i:i+maxRepeat], "\n")
			first, repeated := seen[run]
			switch {
			case !repeated:
				seen[run] = place{path, numbers[i]}
			case numbers[i] > reported+maxRepeat:
				t.Errorf("%s:%d: the same %d lines are at %s:%d", path, numbers[i], maxRepeat, first.path, first.line)
				fallthrough
			default:
				reported = numbers[i]
			}
		}
	})
}

// eachSource calls check with every Go file that people write.
func eachSource(t *testing.T, check func(path string, lines []string, file *ast.File, at func(token.Pos) int)) {
	t.Helper()
	fset := token.NewFileSet()
	for _, top := range []string{"bench", "cmd", "images", "integration", "internal", "runners", "web"} {
		for _, path := range goPaths(t, top) {
			if slices.ContainsFunc(unclean, func(start string) bool { return strings.HasPrefix(path, start) }) {
				continue
			}
			source, err := os.ReadFile(filepath.Join("..", path))
			if err != nil {
				t.Fatal(err)
			}
			file, err := parser.ParseFile(fset, path, source, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if !ast.IsGenerated(file) {
				check(path, strings.Split(string(source), "\n"), file, func(p token.Pos) int { return fset.Position(p).Line })
			}
		}
	}
}
