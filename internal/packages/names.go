package packages

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/untrusted"
	"mcp-code-sandbox/internal/versionrange"
)

// Names are checked before anything is asked of an index, so none can leave its place in a path.
var (
	pypiName = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?$`) // normalised
	npmName  = regexp.MustCompile(`^(?:@[a-z0-9~_-][a-z0-9._~-]*/)?[A-Za-z0-9~_][A-Za-z0-9._~-]*$`)
	fileName = regexp.MustCompile(`^[A-Za-z0-9@_][A-Za-z0-9._+!~@-]{0,254}$`)
	hexHash  = regexp.MustCompile(`^(?:[0-9a-f]{64}|[0-9a-f]{128})$`)
)

const maxNPMName = 214

// What messages repeat of an index's text is checked by these, so that it holds no sentence.
var (
	plainVersion     = regexp.MustCompile(`^v?[0-9][0-9A-Za-z.!+_-]{0,47}$`)
	plainRequirement = regexp.MustCompile(`^[@\w./~-]{1,214}(?:\[[\w.,-]{1,64}\])?(?:@[A-Za-z][\w.-]{0,31}|[ ,()|<>=!~^*@-]|v?[0-9][0-9A-Za-z.*+!_-]{0,47})*$`)
	plainPythons     = regexp.MustCompile(`^(?:[ ,]*(?:[<>=!~]=?=? *)?[0-9][0-9A-Za-z.*+!_-]{0,47}){0,16}[ ,]*$`)
	plainScheme      = regexp.MustCompile(`^(?:[a-z]{2,3}\+)?[a-z]{3,5}$`)
	plainHost        = regexp.MustCompile(`^[0-9A-Za-z-]{1,63}(?:\.[0-9A-Za-z-]{1,63}){0,8}(?::[0-9]{1,5})?$`)
)

// showVersion returns a version for messages.
func showVersion(version string) string {
	if plainVersion.MatchString(version) {
		return version
	}
	return "(odd version)"
}

// showRequirement returns a requirement for messages, without its marker.
func showRequirement(text string) string {
	text, _, _ = strings.Cut(text, ";")
	if text = strings.TrimSpace(text); len(text) <= 300 && plainRequirement.MatchString(text) {
		return text
	}
	return "what was asked for"
}

// showDependency returns a dependency by its address for messages: its name if it is a valid one,
// and the scheme and host of the address.
func showDependency(kind, name, address string) string {
	shown := "an address"
	if u, err := url.Parse(untrusted.Clip(strings.TrimSpace(address), maxAddress)); err == nil && plainScheme.MatchString(u.Scheme) && plainHost.MatchString(u.Host) {
		shown = u.Scheme + "://" + u.Host
	}
	name, _, _ = strings.Cut(name, "[") // extras
	if name, ok := parseName(kind, strings.TrimSpace(name)); ok {
		return name + " @ " + shown
	}
	return shown
}

// parseName returns the name in its normal form, or false if no package can have it.
func parseName(kind, name string) (string, bool) {
	if len(name) > maxNPMName {
		return "", false
	}
	if kind == PyPI {
		name = versionrange.NormalizeName(name)
		return name, pypiName.MatchString(name)
	}
	return name, npmName.MatchString(name) && !strings.Contains(name, "..")
}

// patterns checks name patterns and brings them into the form of names.
func patterns(kind string, list []string) (out []string, err error) {
	if list != nil {
		out = []string{}
	}
	example := map[string]string{PyPI: "acme-*", NPM: "acme-* or @acme/*"}[kind]
	for _, text := range list {
		p := text
		if kind == PyPI {
			p = versionrange.NormalizeName(p)
		} else {
			p = strings.ToLower(p)
		}
		if _, ok := parseName(kind, strings.ReplaceAll(p, "*", "x")); !ok && p != "@*/*" {
			return nil, fmt.Errorf("%q is not a pattern of names, such as %s", text, example)
		}
		out = append(out, p)
	}
	return out, nil
}

// matches reports whether a pattern matches name, in whatever case: some npm packages and indexes
// tell them apart. A star does not match a slash, except alone.
func matches(list []string, name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(list, func(p string) bool {
		ok, err := path.Match(p, name)
		return p == "*" || ok && err == nil
	})
}

// intersect reports whether a name can match both patterns.
func intersect(a, b string) bool {
	seen := map[[2]int]bool{}
	var from func(i, j int) bool
	from = func(i, j int) bool {
		if i == len(a) && j == len(b) {
			return true
		}
		if seen[[2]int{i, j}] {
			return false
		}
		seen[[2]int{i, j}] = true
		if i < len(a) && a[i] == '*' && (from(i+1, j) || j < len(b) && from(i, j+1)) {
			return true
		}
		if j < len(b) && b[j] == '*' && (from(i, j+1) || i < len(a) && from(i+1, j)) {
			return true
		}
		return i < len(a) && j < len(b) && a[i] == b[j] && from(i+1, j+1)
	}
	return from(0, 0)
}

// indexOf returns the one index to which a name belongs, or a refusal.
func (k *kind) indexOf(name string) (*index, *refusal) {
	if matches(k.deny, name) || k.allow != nil && !matches(k.allow, name) {
		return nil, refuse(CodeNotAllowed, "The operator does not allow the package %s. "+
			"Use another one; the operator can change packages.%s.allow and deny in SANDBOX_CONFIG.", name, k.name)
	}
	var found *index
	for _, x := range k.indexes {
		switch own := matches(x.names, name); {
		case own && found != nil && len(found.names) > 0: // New refuses such patterns
			return nil, refuse(CodeNotAllowed, "The package %s belongs to two indexes. The operator must correct the names in SANDBOX_CONFIG.", name)
		case own, len(x.names) == 0 && found == nil:
			found = x
		}
	}
	if found == nil {
		return nil, refuse(CodeNotAllowed, "No index has the package %s. The operator can add packages.%s.index to SANDBOX_CONFIG.", name, k.name)
	}
	return found, nil
}

// splitRequirement returns the name, in its normal form, and the versions of a requirement as pip
// and npm print it.
func splitRequirement(kind, text string) (name, versions string) {
	end := strings.LastIndexByte(text, '@')
	if kind == PyPI {
		end = strings.IndexAny(text, " [(=~!<>;")
	}
	if end > 0 {
		text, versions = text[:end], text[end:]
	}
	name, _ = parseName(kind, text)
	if _, rest, hasExtras := strings.Cut(versions, "]"); hasExtras {
		versions = rest
	}
	return name, strings.TrimPrefix(versions, "@")
}

// mayMean reports whether a requirement can mean a version. npm has its own rules for ranges with
// incomplete versions, such as <=1.
func mayMean(kind, wanted, version string) bool {
	return kind == NPM && strings.ContainsAny(wanted, "<>") || versionrange.Allows(wanted, version)
}

// newer reports whether version a is newer than b. It compares numbers, and takes a version with
// letters (a pre-release) for older than one without.
func newer(a, b string) bool {
	a, b = strings.TrimPrefix(a, "v"), strings.TrimPrefix(b, "v")
	if pa, pb := isPrerelease(a), isPrerelease(b); pa != pb {
		return pb
	}
	for a != "" || b != "" {
		var x, y string
		x, a = nextPart(a)
		y, b = nextPart(b)
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if len(x) != len(y) {
			return len(x) > len(y)
		}
		if x != y {
			return x > y
		}
	}
	return false
}

// nextPart returns the first digits or the first other text of a version, and the rest.
func nextPart(v string) (part, rest string) {
	v = strings.TrimLeft(v, ".-+_")
	isDigit := func(c byte) bool { return '0' <= c && c <= '9' }
	i := 0
	for i < len(v) && isDigit(v[i]) == isDigit(v[0]) && !strings.ContainsRune(".-+_", rune(v[i])) {
		i++
	}
	return v[:i], v[i:]
}

func isPrerelease(v string) bool {
	v, _, _ = strings.Cut(v, "+")
	v = strings.ReplaceAll(v, "post", "")
	return strings.ContainsFunc(v, func(c rune) bool { return c == '-' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' })
}
