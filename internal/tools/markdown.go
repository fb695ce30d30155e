package tools

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"mcp-code-sandbox/internal/runner"
)

const markdownWidth = 100

// Markdown returns the reference of all tools: a table of contents, then a section for each tool
// with its arguments and its result. Descriptions name the given runners.
func Markdown(runners runner.Set) string {
	t := newToolset(nil, Options{Services: &Services{}, Hosts: true, Packages: true})
	var b strings.Builder
	b.WriteString("| tool | title | kind |\n|---|---|---|\n")
	for _, name := range Names() {
		definition := t.tools[name].definition
		fmt.Fprintf(&b, "| `%s` | [%s](#%s) | %s |\n", name, definition.Title, name, t.tools[name].kind())
	}
	for _, name := range Names() {
		definition := t.tools[name].define(runners)
		fmt.Fprintf(&b, "\n## %s\n\n%s", name, wrapMarkdown(definition.Description))
		if input := definition.InputSchema.(*jsonschema.Schema); len(input.Properties) == 0 {
			b.WriteString("\nIt has no arguments.\n")
		} else {
			b.WriteString("\n| argument | type | description |\n|---|---|---|\n")
			writeProperties(&b, "", input, ", required", "")
		}
		b.WriteString("\n| result | type | description |\n|---|---|---|\n")
		writeProperties(&b, "", t.tools[name].result, "", ", optional")
	}
	return b.String()
}

// kind describes the tool's annotations.
func (t *tool) kind() string {
	switch a := t.definition.Annotations; {
	case a.ReadOnlyHint:
		return "reads"
	case *a.OpenWorldHint:
		return "runs code"
	}
	return "changes"
}

// writeProperties writes a table row for each property of a schema and, below it, for the
// properties of its items.
func writeProperties(b *strings.Builder, prefix string, schema *jsonschema.Schema, required, optional string) {
	for _, name := range schema.PropertyOrder {
		property, mark := schema.Properties[name], optional
		if slices.Contains(schema.Required, name) {
			mark = required
		}
		fmt.Fprintf(b, "| `%s%s` | %s%s | %s |\n", prefix, name, typeName(property), mark, escapeMarkdown(property.Description))
		if property.Items != nil {
			writeProperties(b, prefix+name+"[].", property.Items, required, optional)
		}
		writeProperties(b, prefix+name+".", property, required, optional)
	}
}

func typeName(s *jsonschema.Schema) string {
	switch {
	case s.Type == "":
		return "any"
	case len(s.Enum) > 0:
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprintf("`%v`", v))
		}
		return strings.Join(values, ", ")
	case s.Items != nil:
		return "array of " + typeName(s.Items) + "s"
	case s.AdditionalProperties != nil:
		return "object of " + typeName(s.AdditionalProperties) + "s"
	case s.Maximum != nil:
		return fmt.Sprintf("%s, %s to %s", s.Type, decimal(*s.Minimum), decimal(*s.Maximum))
	case s.Minimum != nil:
		return fmt.Sprintf("%s, at least %s", s.Type, decimal(*s.Minimum))
	}
	return s.Type
}

func escapeMarkdown(text string) string {
	text = strings.TrimSuffix(text, " Available: ")
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`).Replace(text)
}

// wrapMarkdown breaks paragraphs and list items into lines.
func wrapMarkdown(text string) string {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(escapeMarkdown(text), "\n") {
		width := 0
		for word := range strings.FieldsSeq(paragraph) {
			n := utf8.RuneCountInString(word)
			switch {
			case width == 0:
			case width+1+n > markdownWidth:
				b.WriteByte('\n')
				if width = 0; strings.HasPrefix(paragraph, "- ") {
					b.WriteString("  ")
					width = 2
				}
			default:
				b.WriteByte(' ')
				width++
			}
			b.WriteString(word)
			width += n
		}
		b.WriteByte('\n')
	}
	return b.String()
}
