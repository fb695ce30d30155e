package main

import (
	"fmt"
	"slices"
	"strings"
)

// toolPresets are what SANDBOX_TOOLS may say besides names: the tools of one contract, or all. Its keys and values name
// every tool there is.
var toolPresets = map[string][]string{
	"conversation": {"run_code", "upload_file", "list_runners"},
	"all":          {"run_code", "upload_file", "list_runners"},
}

// unwantedTools returns the tools that the operator's list leaves out. An empty list leaves out none.
func unwantedTools(list []string) ([]string, error) {
	all := toolPresets["all"]
	if len(list) == 0 {
		return nil, nil
	}
	var wanted []string
	for _, item := range list {
		item = strings.TrimSpace(item)
		switch preset, ok := toolPresets[item]; {
		case ok:
			wanted = append(wanted, preset...)
		case slices.Contains(all, item):
			wanted = append(wanted, item)
		default:
			return nil, fmt.Errorf("there is no tool or preset %q; there are %s, and the presets all and conversation", item, strings.Join(all, ", "))
		}
	}
	var unwanted []string
	for _, name := range all {
		if !slices.Contains(wanted, name) {
			unwanted = append(unwanted, name)
		}
	}
	return unwanted, nil
}
