package digest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	pythonFrame = regexp.MustCompile(`^  File "([^"]+)", line \d+`)
	nodeFrame   = regexp.MustCompile(`^\s+at .*?\(?((?:node:|file://|/)[^()]*?):\d+(?::\d+)?\)?$`)

	packages = regexp.MustCompile(`/(?:site|dist)-packages/([^/.]+)|/node_modules/((?:@[^/]+/)?[^/]+)`)
	compiled = regexp.MustCompile(`^(pandas|numpy|scipy|sklearn|statsmodels|pyarrow|lxml)/.*\.(?:pyx|pxi)$`) // their sources are not installed
	standard = regexp.MustCompile(`^<frozen |/lib/python3\.\d+/|^node:`)
	users    = regexp.MustCompile(`^(?:file://)?/(?:data|mnt/data|workspace|tmp)/`)
	sessions = regexp.MustCompile(`^(?:file://)?/(?:data|mnt/data|workspace)/\.packages/`) // packages that code has installed
)

// traceback begins a traceback of Python.
const traceback = "Traceback (most recent call last)"

// own begins the names of the modules that we add to Python.
const own = "sandbox_"

// maxNamed bounds the libraries that the line for folded frames names.
const maxNamed = 3

// Fold replaces the frames of libraries in tracebacks by one line for those that follow each other.
// It leaves the user's frames alone, and frames of Python outside a traceback.
func Fold(text string) string {
	if !strings.Contains(text, traceback) && !strings.Contains(text, "    at ") {
		return text
	}
	var out strings.Builder
	out.Grow(len(text))
	var folded fold
	inTraceback, inFrame, isLibrary := false, false, false
	for line := range strings.Lines(text) {
		body := strings.TrimRight(line, "\n")
		inTraceback = strings.HasPrefix(body, traceback) || inTraceback && strings.HasPrefix(body, "  ")
		switch path, isPython := frameOf(body); {
		case path != "" && (inTraceback || !isPython):
			library := libraryOf(path)
			inFrame, isLibrary = isPython, library != ""
			if isLibrary {
				folded.add(library)
				continue
			}
		case inFrame && strings.HasPrefix(body, "    "): // the frame's code
			if isLibrary {
				continue
			}
		default:
			inFrame = false
		}
		folded.writeTo(&out)
		out.WriteString(line)
	}
	folded.writeTo(&out)
	return out.String()
}

// frameOf returns the path of the frame that a line begins.
func frameOf(line string) (path string, isPython bool) {
	if m := pythonFrame.FindStringSubmatch(line); m != nil {
		return m[1], true
	}
	if m := nodeFrame.FindStringSubmatch(line); m != nil {
		return m[1], false
	}
	return "", false
}

// libraryOf returns the library that a file belongs to, or "" if it is the user's.
func libraryOf(path string) string {
	if m := packages.FindStringSubmatch(path); m != nil && (!users.MatchString(path) || sessions.MatchString(path)) {
		return m[1] + m[2]
	}
	if m := compiled.FindStringSubmatch(path); m != nil {
		return m[1]
	}
	switch {
	case users.MatchString(path) || !standard.MatchString(path):
		return ""
	case strings.HasPrefix(path, "node:"):
		return "node"
	}
	return "the standard library"
}

// fold is a series of frames of libraries.
type fold struct {
	frames    int
	libraries []string
}

func (f *fold) add(library string) {
	f.frames++
	if !slices.Contains(f.libraries, library) && !strings.HasPrefix(library, own) {
		f.libraries = append(f.libraries, library)
	}
}

func (f *fold) writeTo(out *strings.Builder) {
	if f.frames == 0 {
		return
	}
	frames := "1 frame"
	if f.frames > 1 {
		frames = fmt.Sprintf("%d frames", f.frames)
	}
	named := f.libraries[:min(len(f.libraries), maxNamed)]
	more := ""
	if len(named) < len(f.libraries) {
		more = ", …"
	}
	fmt.Fprintf(out, "  [%s in %s%s]\n", frames, strings.Join(named, ", "), more)
	*f = fold{}
}
