package internal_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNamedTestsExist finds documentation that names a test which was renamed or removed.
func TestNamedTestsExist(t *testing.T) {
	defined := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "node_modules" || path != ".." && strings.HasPrefix(entry.Name(), ".")) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		for _, match := range function.FindAllStringSubmatch(string(source), -1) {
			defined[match[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)")
	for page, text := range pages(t) {
		for _, match := range named.FindAllStringSubmatch(text, -1) {
			if !defined[match[1]] {
				t.Errorf("%s names %s, which does not exist", page, match[1])
			}
		}
	}
}

// TestNamedFilesExist finds documentation that names a source file which was moved or removed.
func TestNamedFilesExist(t *testing.T) {
	roots := []string{"..", ".", "agent", "../cmd/mcp-code-sandbox"}
	named := regexp.MustCompile("`([\\w-]+(?:/[\\w.-]+)+\\.(?:go|py|cjs|sh|ts|mjs))`")
	for page, text := range pages(t) {
		for _, match := range named.FindAllStringSubmatch(text, -1) {
			exists := slices.ContainsFunc(roots, func(root string) bool {
				_, err := os.Stat(filepath.Join(root, match[1]))
				return err == nil
			})
			if !exists {
				t.Errorf("%s names %s, which does not exist", page, match[1])
			}
		}
	}
}

// pages returns the text of each documentation page.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"../*.md", "../docs/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			all[strings.TrimPrefix(name, "../")] = string(text)
		}
	}
	return all
}
