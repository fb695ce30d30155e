package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/serviceconfig"
	"mcp-code-sandbox/internal/tools"
)

// TestReadmeConfigurations: what the documentation shows can be used as it is.
func TestReadmeConfigurations(t *testing.T) {
	var text []byte
	for _, page := range []string{"services.md", "operations.md"} {
		text = append(text, readPage(t, page)...)
	}
	found := 0
	for _, block := range regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(block[1], `"proxy"`) && !strings.Contains(block[1], `"auth"`) {
			continue // a client's
		}
		found++
		name := filepath.Join(t.TempDir(), "services.json")
		if err := os.WriteFile(name, []byte(block[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := serviceconfig.Load(name, func(string) (string, bool) { return "a-secret", true }); err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
	}
	if found != 3 {
		t.Errorf("%d configurations", found)
	}
}

// TestReadmeListsEveryTool keeps the table of tools complete.
func TestReadmeListsEveryTool(t *testing.T) {
	text := readPage(t, "tools.md")
	for _, name := range tools.Names() {
		if !strings.Contains(string(text), "\n| `"+name+"` | ") {
			t.Errorf("docs/tools.md has no row for the tool %s", name)
		}
	}
}

// TestReadmeListsEverySetting keeps the table true: each setting with its default and its help.
func TestReadmeListsEverySetting(t *testing.T) {
	text := readPage(t, "settings.md")
	readme := string(text)
	for f := range reflect.TypeFor[settings]().Fields() {
		def := ""
		if d := f.Tag.Get("default"); d != "" {
			def = "`" + d + "`"
		}
		row := "| `" + f.Tag.Get("environ") + "` | " + def + " | " + f.Tag.Get("help") + " |"
		if !strings.Contains(readme, row) {
			t.Errorf("docs/settings.md lacks this row of the settings table:\n%s", row)
		}
	}
}

// TestReadmeListsPresets keeps the table of presets true.
func TestReadmeListsPresets(t *testing.T) {
	text := readPage(t, "tools.md")
	for name, tools := range toolPresets() {
		row := "| `" + name + "` | every tool |"
		if name != "all" {
			tools = slices.DeleteFunc(tools, func(tool string) bool { return tool == "list_services" })
			row = "| `" + name + "` | `" + strings.Join(tools, "`, `") + "` |"
		}
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/tools.md lacks this row of the presets:\n%s", row)
		}
	}
}

func readPage(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
