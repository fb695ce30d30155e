package version

import (
	"os"
	"regexp"
	"testing"
)

func TestChangelogHasVersion(t *testing.T) {
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	newest := regexp.MustCompile(`(?m)^## v?(\d\S*)`).FindSubmatch(text)
	if newest == nil || string(newest[1]) != Release() {
		t.Errorf("CHANGELOG.md's newest version is %q, the file VERSION has %s", newest, Release())
	}
}

func TestString(t *testing.T) {
	defer func(b string) { build = b }(build)
	for b, want := range map[string]string{"": Release(), "9ef52a8-dirty": Release() + "+9ef52a8-dirty"} {
		if build = b; String() != want {
			t.Errorf("build %q: %s, want %s", b, String(), want)
		}
	}
}
