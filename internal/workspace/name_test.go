package workspace

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

func TestCleanName(t *testing.T) {
	long := strings.Repeat("a", 255)
	for _, tt := range []struct{ name, want string }{ // want "" means refused
		{"data.csv", "data.csv"},
		{"plots/a.png", "plots/a.png"},
		{"/data/a", "a"},
		{"/mnt/data/plots/a.png", "plots/a.png"},
		{"/workspace/a", "a"},
		{"data/a", "data/a"},
		{"-rf", "-rf"},
		{".hidden", ".hidden"},
		{"...", "..."},
		{"a..b", "a..b"},
		{"naïve 图表 📈.png", "naïve 图表 📈.png"},
		{"%2e%2e", "%2e%2e"}, // nothing is decoded
		{"%2e%2e%2fetc", "%2e%2e%2fetc"},
		{"a b", "a b"},
		{long, long},

		{"", ""},
		{".", ""},
		{"..", ""},
		{"../x", ""},
		{"a/../../x", ""},
		{"a/..", ""},
		{"./a", ""},
		{"a//b", ""},
		{"a/", ""},
		{"/", ""},
		{"/data", ""},
		{"/data/", ""},
		{"/data//etc/passwd", ""},
		{"/data/../etc/passwd", ""},
		{"/database/x", ""},
		{"/etc/passwd", ""},
		{"//data/x", ""},
		{"a\x00b", ""},
		{"a\nb", ""},
		{"a\rb", ""},
		{"a\x1b[2J", ""},
		{"a\u0085b", ""},
		{"a\u2028b", ""},
		{"a\x7f", ""},
		{"a\xff", ""},
		{`..\x`, ""},
		{`C:\x`, ""},
		{long + "a", ""},
		{strings.Repeat("a", 4096), ""},
		{strings.Repeat("a/", 512) + "a", ""},
		{tempName(), ""},
	} {
		got, err := CleanName(tt.name)
		if tt.want == "" {
			var ne *NameError
			if !errors.As(err, &ne) || ne.Name != tt.name || got != "" {
				t.Errorf("CleanName(%.40q) = %q, %v; want a NameError", tt.name, got, err)
			} else if len(err.Error()) > 500 || strings.ContainsAny(err.Error(), "\n\x00\x1b") {
				t.Errorf("CleanName(%.40q): message is not fit to be shown: %q", tt.name, err)
			}
		} else if got != tt.want || err != nil {
			t.Errorf("CleanName(%.40q) = %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

func FuzzCleanName(f *testing.F) {
	for _, s := range []string{"a", "/data/a", "../a", "a/./b", "a\x00", "/mnt/data//a", "-", "a\\b", strings.Repeat("x", 300), "é/图"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := CleanName(name)
		if err != nil {
			if got != "" || len(err.Error()) > 1000 {
				t.Fatalf("refused, but returned %q and %q", got, err)
			}
			return
		}
		if !strings.HasSuffix(name, got) {
			t.Fatalf("%q is not the end of %q", got, name)
		}
		if !fs.ValidPath(got) || got == "." || !filepath.IsLocal(got) || len(got) > maxName || strings.ContainsFunc(got, unicode.IsControl) {
			t.Fatalf("%q was accepted as %q", name, got)
		}
		if again, err := CleanName(got); again != got || err != nil {
			t.Fatalf("not idempotent: %q, then %q, %v", got, again, err)
		}
	})
}
