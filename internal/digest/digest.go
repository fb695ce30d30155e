// Package digest makes the output of programs short for models: without terminal codes, without the
// frames of progress bars, with the frames of libraries folded in tracebacks, and without the
// middle of long output.
//
// Output is hostile. Every function takes time in proportion to its length.
package digest

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// codes are the control sequences of terminals: CSI, OSC, other strings, character sets, the rest.
// A string that has no end is one line: it must not hide what follows.
var codes = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[PX^_][^\x1b\n]*(?:\x1b\\)?|[ -/]+[0-~]|[0-~])`)

// Stand for codes that move and erase.
const (
	erase = '\x1b' // the rest of the line
	up    = '\x0b' // to the line before
)

// cursorUp is what programs write that draw several lines again.
var cursorUp = regexp.MustCompile(`^\x1b\[([0-9]{0,2})A$`)

// Clean returns what a terminal would show of a text, without colours and styles.
func Clean(text string) string {
	if !strings.ContainsAny(text, "\x1b\r\b") {
		return text
	}
	text = strings.ReplaceAll(text, string(up), "")
	if strings.ContainsRune(text, erase) {
		text = codes.ReplaceAllStringFunc(text, func(code string) string {
			switch code {
			case "\x1b[K", "\x1b[0K":
				return string(erase)
			case "\x1b[2K": // the whole line
				return "\r" + string(erase)
			}
			if move := cursorUp.FindStringSubmatch(code); move != nil {
				lines, _ := strconv.Atoi(move[1])
				return strings.Repeat(string(up), max(lines, 1))
			}
			return ""
		})
	}
	var shown screen
	for _, r := range text {
		shown.write(r)
	}
	return shown.text()
}

// screen is a terminal without a last column and a last line.
type screen struct {
	lines []line
	at    int // in lines
}

type line struct {
	text    []rune
	at      int
	changed bool // a part of it was written again
}

func (s *screen) write(r rune) {
	for len(s.lines) <= s.at {
		s.lines = append(s.lines, line{})
	}
	l := &s.lines[s.at]
	switch {
	case r == '\n':
		s.at++
	case r == up:
		s.at = max(s.at-1, 0)
		s.lines[s.at].at = min(l.at, len(s.lines[s.at].text))
	case r == '\r':
		l.at, l.changed = 0, true
	case r == '\b':
		l.at, l.changed = max(l.at-1, 0), true
	case r == erase:
		l.text, l.changed = l.text[:min(l.at, len(l.text))], true
	case l.at < len(l.text):
		l.text[l.at] = r
		l.at++
	default:
		l.text = append(l.text, r)
		l.at++
	}
	if r == '\n' && s.at < len(s.lines) { // down, into a line that was written before
		s.lines[s.at].at = 0
	}
}

// text returns the lines. What programs write to blank out a line's end is not part of it.
func (s *screen) text() string {
	var out strings.Builder
	for i, l := range s.lines {
		if i > 0 {
			out.WriteByte('\n')
		}
		text := string(l.text)
		if l.changed {
			text = strings.TrimRight(text, " ")
		}
		out.WriteString(text)
	}
	if s.at == len(s.lines) && s.at > 0 {
		out.WriteByte('\n')
	}
	return out.String()
}

// Text is text, or stands for Omitted bytes of it.
type Text struct {
	Text    string
	Omitted int64
}

// Limit leaves out the middle of texts that have more than limit bytes together, and returns the
// text of each. It splits no character, and writes notice for omitted bytes, once for those in the
// middle.
func Limit(texts []Text, limit int, notice func(omitted int64) string) []string {
	total := 0
	for _, t := range texts {
		total += len(t.Text)
	}
	head, tail := limit/2, total-limit/2 // positions between which is left out
	out := make([]string, len(texts))
	at, omitted := 0, int64(0)
	place, before := -1, 0 // where the notice about the middle goes: a text, and a position in it
	for i, t := range texts {
		out[i] = t.Text
		from, to := max(head-at, 0), min(tail-at, len(t.Text))
		isMiddle := total > limit && from <= to && (from < to || t.Omitted > 0)
		at += len(t.Text)
		switch {
		case isMiddle && t.Omitted == 0:
			for from > 0 && !utf8.RuneStart(t.Text[from]) {
				from--
			}
			for to < len(t.Text) && !utf8.RuneStart(t.Text[to]) {
				to++
			}
			out[i] = t.Text[:from] + t.Text[to:]
		case !isMiddle && t.Omitted > 0:
			out[i] = notice(t.Omitted)
		}
		if isMiddle {
			if omitted += t.Omitted + int64(max(0, to-from)); place < 0 {
				place, before = i, from
			}
		}
	}
	if place >= 0 {
		out[place] = out[place][:before] + notice(omitted) + out[place][before:]
	}
	return out
}
