// Package versionrange compares versions with the ranges that pip and npm write, such as ">=2,<3",
// and names of Python packages. It knows release numbers only, and nothing of indexes.
package versionrange

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"
)

var (
	comparison = regexp.MustCompile(`(===|==|~=|!=|<=|>=|<|>|=|\^|~|\b) *v?(\d+(?:\.\d+)*)([^\s,|)]*)`)
	numbers    = regexp.MustCompile(`^v?(\d+(?:\.\d+)*)(.*)$`)
	undecided  = regexp.MustCompile(`\d!|\|\||\d - `) // epochs, alternatives, npm's ranges with a hyphen
	separators = regexp.MustCompile(`[-_.]+`)
)

// NormalizeName returns a Python package's name as indexes compare it (PEP 503).
func NormalizeName(name string) string {
	return strings.ToLower(separators.ReplaceAllString(name, "-"))
}

// Allows reports whether a version is in a range: one of PEP 440, or a version of npm with ^, ~ or
// nothing before it. What it cannot decide, such as between pre-releases, is allowed.
func Allows(wanted, version string) bool {
	wanted, _, _ = strings.Cut(wanted, ";") // markers
	m := numbers.FindStringSubmatch(version)
	if m == nil || undecided.MatchString(wanted+version) {
		return true
	}
	for _, c := range comparison.FindAllStringSubmatch(wanted, -1) {
		if !allows(c[1], release(c[2]), c[3], release(m[1]), m[2]) {
			return false
		}
	}
	return true
}

func allows(operator string, want []int, wantMore string, have []int, haveMore string) bool {
	order := compare(have, want)
	isEqual, isOpen := order == 0, order == 0 && wantMore+haveMore != ""
	if strings.HasPrefix(wantMore, ".*") || strings.HasPrefix(wantMore, ".x") {
		isEqual, isOpen = within(have, want), false
	}
	switch operator {
	case "==", "===":
		return isEqual
	case "!=":
		return !isEqual || isOpen
	case "<":
		return order < 0 || isOpen
	case "<=":
		return order <= 0
	case ">":
		return order > 0 || isOpen
	case ">=":
		return order >= 0
	case "~=":
		return order >= 0 && within(have, want[:len(want)-1])
	case "^": // the parts up to the first that is not 0 are fixed
		n := 1
		for n < len(want) && want[n-1] == 0 {
			n++
		}
		return order >= 0 && within(have, want[:n])
	case "~":
		return order >= 0 && within(have, want[:min(2, len(want))])
	}
	return within(have, want)
}

func release(text string) (parts []int) {
	for part := range strings.SplitSeq(text, ".") {
		n, _ := strconv.Atoi(part) // digits: if there are too many, the largest
		parts = append(parts, n)
	}
	return parts
}

// at returns a part of a release; those that are not written are 0.
func at(parts []int, i int) int {
	if i < len(parts) {
		return parts[i]
	}
	return 0
}

func compare(a, b []int) int {
	for i := range max(len(a), len(b)) {
		if order := cmp.Compare(at(a, i), at(b, i)); order != 0 {
			return order
		}
	}
	return 0
}

// within reports whether a release begins with the parts of another.
func within(have, prefix []int) bool {
	return compare(have[:min(len(have), len(prefix))], prefix) == 0
}
