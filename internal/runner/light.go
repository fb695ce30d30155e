package runner

import (
	"regexp"
	"slices"
	"strings"
)

var (
	comments  = regexp.MustCompile(`(?m)^[ \t]*#.*$`)
	words     = []string{"import", "exec", "eval"}
	importers = regexp.MustCompile(`\b(?:import|__import__|exec|eval)\b`)
	// imports matches a statement on one line. Group 1 is the module of "from", group 2 the modules
	// of "import" with their names.
	imports = regexp.MustCompile(`(?m)(?:^|[;:])[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([^;#\r\n]+))`)
	module  = regexp.MustCompile(`^[ \t]*(\w+)(?:\.\w+)*(?:[ \t]+as[ \t]+\w+)?[ \t]*$`)
)

// maxLook is the longest code, in bytes, that importsOnly reads.
const maxLook = 32 << 10

// importsOnly reports whether a Python program seems to import these modules only. It does not
// parse the program. In doubt it returns false. If it wrongly returns true, the program imports the
// rest itself, which only takes time.
func importsOnly(code string, modules []string) bool {
	if len(code) > maxLook {
		return false
	}
	if !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(code, w) }) {
		return true
	}
	code = comments.ReplaceAllLiteralString(code, "")
	statements := imports.FindAllStringSubmatch(code, -1)
	if len(statements) != len(importers.FindAllStringIndex(code, -1)) {
		return false
	}
	for _, s := range statements {
		for name := range strings.SplitSeq(s[1]+s[2], ",") {
			m := module.FindStringSubmatch(name)
			if m == nil || !slices.ContainsFunc(modules, func(known string) bool { return known == m[1] || strings.HasPrefix(known, m[1]+".") }) {
				return false
			}
		}
	}
	return true
}
