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

// TestReadmeConfigurations: what the README shows can be used as it is.
func TestReadmeConfigurations(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
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
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range tools.Names() {
		if !strings.Contains(string(text), "\n| `"+name+"` | ") {
			t.Errorf("README.md has no row for the tool %s", name)
		}
	}
}

// TestReadmeListsEverySetting keeps the README's table true: each setting with its default and its help.
func TestReadmeListsEverySetting(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(text)
	for f := range reflect.TypeFor[settings]().Fields() {
		def := ""
		if d := f.Tag.Get("default"); d != "" {
			def = "`" + d + "`"
		}
		row := "| `" + f.Tag.Get("environ") + "` | " + def + " | " + f.Tag.Get("help") + " |"
		if !strings.Contains(readme, row) {
			t.Errorf("README.md lacks this row of the settings table:\n%s", row)
		}
	}
}

// TestReadmeListsPresets keeps the README's table of presets true.
func TestReadmeListsPresets(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, tools := range toolPresets() {
		row := "| `" + name + "` | every tool |"
		if name != "all" {
			tools = slices.DeleteFunc(tools, func(tool string) bool { return tool == "list_services" })
			row = "| `" + name + "` | `" + strings.Join(tools, "`, `") + "` |"
		}
		if !strings.Contains(string(text), row) {
			t.Errorf("README.md lacks this row of the presets:\n%s", row)
		}
	}
}
