package agent_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestKnowsNoLanguage: the agent and the jail treat every runner alike. What is special about a
// language is data in its runner.json.
func TestKnowsNoLanguage(t *testing.T) {
	language := regexp.MustCompile(`(?i)python|numpy|pandas|matplotlib|openblas|\bMPL|nodejs|node\.js|\bNODE_|typescript|\.(py|cjs|js)\b`)
	for _, dir := range []string{".", "../backend/jail"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for n, line := range strings.Split(string(text), "\n") {
				if found := language.FindString(line); found != "" {
					t.Errorf("%s:%d names %q: make it data in runner.json", path, n+1, found)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
