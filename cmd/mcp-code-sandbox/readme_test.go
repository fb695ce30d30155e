package main

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

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
