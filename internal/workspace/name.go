package workspace

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"mcp-code-sandbox/internal/untrusted"
)

const (
	maxSegment = 255  // bytes; what file systems allow
	maxName    = 1024 // bytes
	maxQuoted  = 100  // bytes of a name in a message
)

// NameError says why a file name that a client chose is refused, and what to do instead.
type NameError struct {
	Name    string // as the client sent it
	Problem string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("invalid file name %q: %s", untrusted.Clip(e.Name, maxQuoted), e.Problem)
}

// CleanName checks a file name that a client chose and returns it relative to the workspace. It
// accepts the paths of the workspace inside a sandbox (/data, /mnt/data, /workspace) and decodes
// nothing. Its result can be shown and logged; its error is a [*NameError].
func CleanName(name string) (string, error) {
	refuse := func(format string, args ...any) (string, error) {
		return "", &NameError{Name: name, Problem: fmt.Sprintf(format, args...)}
	}
	clean := name
	if strings.HasPrefix(name, "/") {
		var inside bool
		for _, mount := range []string{"/data/", "/mnt/data/", "/workspace/"} {
			if clean, inside = strings.CutPrefix(name, mount); inside {
				break
			}
		}
		if !inside {
			return refuse("give a path relative to the workspace, such as data.csv, or one under /data/")
		}
	}
	switch {
	case clean == "":
		return refuse("give the name of a file, such as data.csv")
	case len(clean) > maxName:
		return refuse("it has %d bytes; use at most %d", len(clean), maxName)
	case !utf8.ValidString(clean):
		return refuse("it is not valid UTF-8")
	case strings.HasSuffix(clean, "/"):
		return refuse("it names a directory; leave out the slash at the end, or add a file name")
	case strings.ContainsFunc(clean, unprintable):
		return refuse("leave out control characters and line breaks")
	case strings.Contains(clean, `\`):
		return refuse(`use "/" between directories, not "\"`)
	case isTemp(clean):
		return refuse("names like this are used for uploads in progress; choose another one")
	}
	for segment := range strings.SplitSeq(clean, "/") {
		switch {
		case segment == "":
			return refuse(`leave out the empty part between two slashes`)
		case segment == "." || segment == "..":
			return refuse(`leave out the parts "." and ".."; the file must lie inside the workspace`)
		case len(segment) > maxSegment:
			return refuse("a part of it has %d bytes; use at most %d", len(segment), maxSegment)
		}
	}
	return clean, nil
}

func unprintable(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp)
}
