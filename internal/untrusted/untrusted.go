// Package untrusted prepares text from clients for messages and log lines.
package untrusted

import "strings"

// Clip returns s if it has at most n bytes. Otherwise it returns about the first n bytes, whole
// characters only, and an ellipsis.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
