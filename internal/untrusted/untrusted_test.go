package untrusted_test

import (
	"testing"

	"mcp-code-sandbox/internal/untrusted"
)

func TestClip(t *testing.T) {
	for _, tt := range []struct {
		s    string
		n    int
		want string
	}{
		{"", 3, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc…"},
		{"aé", 2, "a…"}, // é has two bytes
		{"\xff\xff", 1, "…"},
		{"\xff", 1, "\xff"}, // short enough
	} {
		if got := untrusted.Clip(tt.s, tt.n); got != tt.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", tt.s, tt.n, got, tt.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	for s, want := range map[string]string{"": "", "é 日本": "é 日本", "a\x1b[2Jb\r\n\tc": "a�[2Jb���c", "x\u202ey": "x�y", "\xff": "�"} {
		if got := untrusted.Printable(s); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}
