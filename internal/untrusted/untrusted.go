// Package untrusted prepares text from clients for messages and log lines.
package untrusted

import (
	"strings"
	"unicode"
)

// Clip returns s if it has at most n bytes. Otherwise it returns about the first n bytes, whole
// characters only, and an ellipsis.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// Printable replaces what must not reach a terminal or a message: control characters, and those
// that change the direction of text.
func Printable(s string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return unicode.ReplacementChar
		}
		return c
	}, s)
}
