package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/tools"
)

// toolPresets are the names that SANDBOX_TOOLS accepts in addition to tools.
func toolPresets() map[string][]string {
	return map[string][]string{
		"all":          tools.Names(),
		"conversation": {"run_code", "upload_file", "list_runners", "list_services"},
		"session":      {"upload_file", "run_python", "read_artifact", "list_artifacts", "close_session", "list_services"},
		"run": {
			"run", "wait_run", "cancel_run", "upload_file", "list_artifacts", "read_artifact", "close_session", "list_sessions",
			"delete_file", "list_services",
		},
	}
}

// wantedTools expands the presets of a list. An empty list means all tools and returns nil.
func wantedTools(list []string) (wanted []string, err error) {
	presets := toolPresets()
	all := presets["all"]
	for _, item := range list {
		item = strings.TrimSpace(item)
		switch preset, ok := presets[item]; {
		case ok:
			wanted = append(wanted, preset...)
		case slices.Contains(all, item):
			wanted = append(wanted, item)
		default:
			return nil, fmt.Errorf("unknown tool or preset %q; the tools are %s, the presets %s", item, strings.Join(all, ", "),
				strings.Join(slices.Sorted(maps.Keys(presets)), ", "))
		}
	}
	return wanted, nil
}
