package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/tools"
)

// toolPresets are what SANDBOX_TOOLS may say besides names: the tools of one contract, or all.
func toolPresets() map[string][]string {
	return map[string][]string{
		"all":          tools.Names(),
		"conversation": {"run_code", "upload_file", "list_runners", "list_services"},
		"session":      {"upload_file", "run_python", "read_artifact", "list_artifacts", "close_session", "list_services"},
		"run":          {"run", "wait_run", "cancel_run", "upload_file", "list_artifacts", "read_artifact", "close_session", "list_sessions", "delete_file", "list_services"},
	}
}

// wantedTools returns the tools of the operator's list, nil for an empty list: all.
func wantedTools(list []string) ([]string, error) {
	presets := toolPresets()
	all := presets["all"]
	var wanted []string
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
