package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/serviceconfig"
	"mcp-code-sandbox/internal/tools"
	"mcp-code-sandbox/runners"
)

var update = flag.Bool("update", false, "write the generated pages of docs/ instead of comparing them")

// TestDocsGenerated: docs/settings.md and docs/tools.md match the code. make docs writes them.
func TestDocsGenerated(t *testing.T) {
	for page, want := range map[string]string{"settings.md": settingsPage(), "tools.md": toolsPage(t)} {
		name := filepath.Join("../../docs", page)
		if *update {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := readPage(t, page); string(got) != want {
			t.Errorf("docs/%s is stale; run make docs", page)
		}
	}
}

// settingsPage renders the settings as Markdown, a table for each group.
func settingsPage() string {
	var b strings.Builder
	b.WriteString(`# Settings

<!-- Generated from cmd/mcp-code-sandbox/settings.go by make docs. -->

Every setting is an environment variable and a flag. The flag has precedence, and an empty variable
counts as unset. Lists are separated by commas. ` + "`mcp-code-sandbox serve --help`" + ` prints this page.
`)
	for _, g := range settingGroups {
		fmt.Fprintf(&b, "\n## %s\n\n| variable | flag | default | meaning |\n|---|---|---|---|\n", strings.TrimSuffix(g.Title, ":"))
		for f := range reflect.TypeFor[settings]().Fields() {
			if f.Tag.Get("group") != g.Key {
				continue
			}
			value := f.Tag.Get("default")
			if value != "" {
				value = "`" + value + "`"
			}
			fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s |\n", f.Tag.Get("environ"), f.Tag.Get("name"), value,
				strings.NewReplacer("|", `\|`, "*", `\*`).Replace(f.Tag.Get("help")))
		}
	}
	return b.String()
}

// toolsPage renders the presets and the tools as Markdown, with the bundled runners.
func toolsPage(t *testing.T) string {
	t.Helper()
	var set runner.Set
	for _, name := range runners.Names() {
		b, err := runners.Files.ReadFile(name + "/runner.json")
		if err != nil {
			t.Fatal(err)
		}
		var r runner.Runner
		if err := json.Unmarshal(b, &r.Definition); err != nil {
			t.Fatal(err)
		}
		set = append(set, r)
	}
	var b strings.Builder
	b.WriteString(`# Tools

<!-- Generated from internal/tools by make docs. -->

The server offers every tool. ` + "`SANDBOX_TOOLS`" + ` narrows the list to tools and presets. The tool
` + "`list_services`" + ` and the argument ` + "`services`" + ` exist only with ` + "`SANDBOX_CONFIG`" + `; every preset
includes them.

MCP clients get the result of ` + "`run`" + ` as [text and images](sessions.md#what-a-model-reads); the
table below shows what plain callers (curl) get as JSON. While a run is in the background, results
have ` + "`status`" + `, ` + "`cursor`" + ` and, if it waits, ` + "`queued_behind`" + `. Any result may have
` + "`warnings`" + ` about ignored arguments.

| preset | tools |
|---|---|
`)
	for _, preset := range slices.Sorted(maps.Keys(toolPresets())) {
		b.WriteString(presetRow(preset) + "\n")
	}
	return b.String() + "\n" + tools.Markdown(set)
}

func presetRow(name string) string {
	if name == "all" {
		return "| `all` | every tool |"
	}
	list := slices.DeleteFunc(toolPresets()[name], func(tool string) bool { return tool == "list_services" })
	return "| `" + name + "` | `" + strings.Join(list, "`, `") + "` |"
}

// TestDocsListEverySetting: each setting is in a group of the page, with its default and its help.
func TestDocsListEverySetting(t *testing.T) {
	text := string(readPage(t, "settings.md"))
	for f := range reflect.TypeFor[settings]().Fields() {
		row := regexp.MustCompile("(?m)^\\| `" + f.Tag.Get("environ") + "` \\|.*$").FindString(text)
		if help, _, _ := strings.Cut(f.Tag.Get("help"), "*"); !strings.Contains(row, f.Tag.Get("default")) || !strings.Contains(row, help) {
			t.Errorf("docs/settings.md does not describe %s; is its group in settingGroups?", f.Tag.Get("environ"))
		}
	}
}

// TestDocsListEveryTool keeps the table of tools complete.
func TestDocsListEveryTool(t *testing.T) {
	text := string(readPage(t, "tools.md"))
	for _, name := range tools.Names() {
		if !strings.Contains(text, "\n| `"+name+"` | ") {
			t.Errorf("docs/tools.md has no row for the tool %s", name)
		}
	}
}

// TestDocsListPresets keeps the table of presets complete.
func TestDocsListPresets(t *testing.T) {
	text := string(readPage(t, "tools.md"))
	for name := range toolPresets() {
		if row := presetRow(name); !strings.Contains(text, row) {
			t.Errorf("docs/tools.md lacks this row of the presets:\n%s", row)
		}
	}
}

// TestDocsConfigurations: the server accepts the configurations that the pages show.
func TestDocsConfigurations(t *testing.T) {
	text := slices.Concat(readPage(t, "services.md"), readPage(t, "operations.md"))
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
		t.Errorf("%d configurations, want 3", found)
	}
}

// TestDocsLinks: every relative link leads to a file, and every anchor to a heading.
func TestDocsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^()\s]+)\)`)
	for _, page := range markdownPages(t) {
		for i, line := range proseLines(t, page) {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
					continue
				}
				file, anchor, _ := strings.Cut(m[1], "#")
				target := filepath.Join(filepath.Dir(page), file)
				if file == "" {
					target = page
				}
				if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
					t.Errorf("%s:%d: %s does not exist", page, i+1, m[1])
				} else if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
					t.Errorf("%s:%d: %s has no heading #%s", page, i+1, cmp.Or(file, page), anchor)
				}
			}
		}
	}
}

// TestDocsWidth: prose is wrapped at 100 columns. Tables, headings, links and code may be longer.
func TestDocsWidth(t *testing.T) {
	for _, page := range markdownPages(t) {
		for i, line := range proseLines(t, page) {
			if utf8.RuneCountInString(line) > 100 && line[0] != '|' && line[0] != '#' && !strings.Contains(line, "](") && !strings.Contains(line, "://") {
				t.Errorf("%s:%d: %d columns, want at most 100", page, i+1, utf8.RuneCountInString(line))
			}
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

// markdownPages returns the pages for people, relative to the repository.
func markdownPages(t *testing.T) []string {
	t.Helper()
	pages := []string{"README.md", "ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"}
	docs, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(docs) == 0 {
		t.Fatal("no pages in docs/", err)
	}
	for _, name := range docs {
		pages = append(pages, "docs/"+filepath.Base(name))
	}
	return pages
}

// proseLines returns the lines of a page. Those of code blocks are empty.
func proseLines(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	lines, code := strings.Split(string(text), "\n"), false
	for i, line := range lines {
		if fence := strings.HasPrefix(strings.TrimSpace(line), "```"); fence || code {
			code = code != fence
			lines[i] = ""
		}
	}
	return lines
}

// anchors returns the names that GitHub gives to the headings of a page.
func anchors(t *testing.T, page string) (names []string) {
	t.Helper()
	seen := map[string]int{}
	for _, line := range proseLines(t, page) {
		heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, heading)
		if n := seen[name]; n > 0 {
			names = append(names, fmt.Sprintf("%s-%d", name, n))
		} else {
			names = append(names, name)
		}
		seen[name]++
	}
	return names
}
