package runners_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/runners"
)

// TestREADME checks that the README names every library of the runners.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range runners.Names() {
		b, err := runners.Files.ReadFile(name + "/runner.json")
		if err != nil {
			t.Fatal(err)
		}
		var definition struct{ Libraries []string }
		if err := json.Unmarshal(b, &definition); err != nil {
			t.Fatal(err)
		}
		row := ""
		for line := range strings.Lines(string(readme)) {
			if cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |"); strings.HasPrefix(line, "| ") && strings.Contains(cell, "`"+name+"`") {
				row = line
			}
		}
		words := strings.FieldsFunc(row, func(r rune) bool { return strings.ContainsRune(" ,;|\n'", r) })
		for _, library := range definition.Libraries {
			if !slices.Contains(words, library) {
				t.Errorf("the README's row of %s does not name %s: %q", name, library, row)
			}
		}
	}
}
