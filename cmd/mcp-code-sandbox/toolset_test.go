package main

import (
	"encoding/json"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/tools"
)

// languages is an executor that only lists runners.
type languages struct {
	tools.Executor
}

func (languages) Runners() (all runner.Set) {
	for _, name := range []string{"python", "typescript", "javascript", "shell"} {
		all = append(all, runner.Runner{Definition: runner.Definition{Name: name, Persistent: []string{"x"}}})
	}
	return all
}

func (languages) Watch(func(session.Caller))     {}
func (languages) WatchRuns(func(session.Caller)) {}

// TestToolListSize: the list of tools that every model reads stays small. Sizes are characters / 4,
// about tokens, without the names of libraries. They may grow by 10%.
func TestToolListSize(t *testing.T) {
	for preset, size := range map[string]int{"all": 2214, "conversation": 646, "session": 926, "run": 1392} {
		wanted, err := wantedTools([]string{preset})
		if err != nil {
			t.Fatal(err)
		}
		srv := mcp.NewServer(&mcp.Implementation{Name: "t"}, nil)
		tools.Register(srv, languages{}, tools.Options{Tools: wanted})
		ours, theirs := mcp.NewInMemoryTransports()
		ss, err := srv.Connect(t.Context(), ours, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ss.Close()
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "t"}, nil).Connect(t.Context(), theirs, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer cs.Close()
		list, err := cs.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, tool := range list.Tools {
			visible, err := json.Marshal(map[string]any{"name": tool.Name, "description": tool.Description, "input_schema": tool.InputSchema})
			if err != nil {
				t.Fatal(err)
			}
			n += len(visible)
		}
		t.Logf("%s: %d tools, %d", preset, len(list.Tools), n/4)
		if n/4 > size*110/100 {
			t.Errorf("%s: %d, want at most 10%% more than %d", preset, n/4, size)
		}
	}
}
