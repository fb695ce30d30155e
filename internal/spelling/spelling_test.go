package spelling_test

import (
	"testing"

	"mcp-code-sandbox/internal/spelling"
)

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"", "ab", 2}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "axc", 1}, {"abc", "abcd", 1}, {"sesion", "session", 1}, {"ca", "abc", 3}, {"kitten", "sitting", 3}} {
		if got := spelling.Distance(tt.a, tt.b); got != tt.want || spelling.Distance(tt.b, tt.a) != got {
			t.Errorf("%q, %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
