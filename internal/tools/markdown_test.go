package tools

import (
	"strings"
	"testing"
)

func TestMarkdown(t *testing.T) {
	page := Markdown(catalog{}.Runners())
	for _, want := range []string{
		"| `run_python` | [Run Python](#run_python) | runs code |\n",
		"\n## cancel_run\n\nStop a run in the background",
		"\n| `language` | `python`, `typescript`, required | Programming language to execute. Available: [python, typescript] |\n",
		"\n| `timeout_seconds` | number, 1 to 600 | ", "\n| `cursor` | integer, at least 0 | ",
		"\n| `environment` | object of strings | ", "\n| `services[].name` | string, required | ",
		"\n| `artifacts[].download_url` | string, optional |",
		"\nIt has no arguments.\n", "\n- python: [numpy, pandas]\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for line := range strings.SplitSeq(page, "\n") {
		if !strings.HasPrefix(line, "|") && len(line) > markdownWidth {
			t.Errorf("too wide: %s", line)
		}
	}
	if page != Markdown(catalog{}.Runners()) {
		t.Error("the page is not stable")
	}
}
