package internal_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readsEnvironment lists the product files that may read the process's environment, and why.
var readsEnvironment = map[string]string{
	"cmd/mcp-code-sandbox/main.go":            "passes it to the settings",
	"internal/agent/prestart/zygote_linux.go": "passes it on to the program that replaces the agent",
	"internal/agent/nested_linux.go":          "passes it on to the agent that it starts",
}

// TestOnlySettingsReadTheEnvironment: a setting that code reads behind the back of the settings is
// neither documented nor validated. Pass it in.
func TestOnlySettingsReadTheEnvironment(t *testing.T) {
	readers := []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "UserHomeDir", "UserConfigDir", "UserCacheDir"}
	used := map[string]bool{}
	for _, top := range []string{"cmd", "internal", "runners", "web"} {
		for _, path := range goPaths(t, top) {
			if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(filepath.Dir(path), "test") {
				continue // tests, and packages for tests
			}
			file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", path), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if pkg, ok := sel.X.(*ast.Ident); ok && (pkg.Name == "os" || pkg.Name == "syscall") && slices.Contains(readers, sel.Sel.Name) {
					if used[path] = true; readsEnvironment[path] == "" {
						t.Errorf("%s calls %s.%s: only the settings may read the environment", path, pkg.Name, sel.Sel.Name)
					}
				}
				return true
			})
		}
	}
	for path := range readsEnvironment {
		if !used[path] {
			t.Errorf("%s no longer reads the environment: remove it from readsEnvironment", path)
		}
	}
}

// goPaths returns every Go file under a directory of the repository, sorted, as its path in there.
func goPaths(t *testing.T, top string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", top), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".cache") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			paths = append(paths, strings.TrimPrefix(filepath.ToSlash(path), "../"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
