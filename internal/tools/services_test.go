package tools

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

func TestServicesArgument(t *testing.T) {
	for in, want := range map[string][]executor.ServiceRequest{
		`null`:                nil,
		`[]`:                  nil,
		`["a"]`:               {{Name: "a"}},
		`[{"name":"a"}, "b"]`: {{Name: "a"}, {Name: "b"}},
		`[{"name":"a","paths":["/x"],"methods":["GET"],"max_requests":3}]`: {{Name: "a", Paths: []string{"/x"}, Methods: []string{"GET"}, MaxRequests: 3}},
		// An invalid restriction is refused.
		`"a"`: {}, `{"name":"a"}`: {}, `[{"name":""}]`: {}, `[{"paths":["/x"]}]`: {}, `[1]`: {}, `[null]`: {},
		`[{"name":"a","path":["/x"]}]`: {}, `[{"name":"a","paths":"/x"}]`: {}, `[{"name":"a","paths":[]}]`: {}, `[{"name":"a","methods":[]}]`: {},
		`[{"name":"a","max_requests":0}]`: {}, `[{"name":"a","max_requests":-1}]`: {}, `[{"name":"a","max_requests":1.5}]`: {},
	} {
		args, err := parseArguments(json.RawMessage(`{"services":`+in+`}`), parameters{"services": "services"})
		if err != nil {
			t.Fatal(err)
		}
		var options runOptions
		var got executor.Request
		if err = args.decode(schemaFor[runOptions](), &options); err == nil {
			err = (&toolset{}).applyOptions(options, &got)
		}
		if refused := want != nil && len(want) == 0; refused != (err != nil) || !refused && !reflect.DeepEqual(got.Services, want) {
			t.Errorf("%s: %+v, %v", in, got.Services, err)
		}
	}
}

// runs is an executor that implements only Run.
type runs struct {
	Executor
	err error
}

func (r runs) Runners() runner.Set {
	return runner.Set{{Definition: runner.Definition{Name: "python"}}}
}

func (r runs) Run(context.Context, session.Caller, executor.Request) (executor.Result, error) {
	return executor.Result{}, r.err
}

func (runs) Watch(func(session.Caller)) {}

func (runs) WatchRuns(func(session.Caller)) {}

// TestServiceTools: what a model learns about services, and about one that is not connected.
func TestServiceTools(t *testing.T) {
	states := []executor.ServiceState{{Name: "datadog", DisplayName: "Datadog", ConnectURL: "https://here/connections"}, {Name: "static", Connected: true}}
	srv := mcp.NewServer(&mcp.Implementation{Name: "s"}, nil)
	Register(srv, runs{err: errors.Join(errors.New("grant"), executor.NotConnected(states[0]))}, Options{Services: &Services{
		Names: []string{"datadog", "static"}, List: func(context.Context, session.Caller) []executor.ServiceState { return states },
	}})
	cs := connect(t, srv)
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != len(Names()) {
		t.Fatalf("%d tools, %v", len(list.Tools), err)
	}
	for _, tool := range list.Tools {
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		runs := tool.Name == "run_code" || tool.Name == "run_python" || tool.Name == "run"
		if has := strings.Contains(string(schema), `"services"`); has != runs {
			t.Errorf("%s has services: %t", tool.Name, has)
		}
	}
	const want = `{"services":[{"name":"datadog","display_name":"Datadog","connected":false,"connect_url":"https://here/connections"},{"name":"static","display_name":"static","connected":true}]}`
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_services"})
	if err != nil {
		t.Fatal(err)
	}
	var got, wanted any
	_ = json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &got)
	_ = json.Unmarshal([]byte(want), &wanted)
	if !reflect.DeepEqual(got, wanted) || !reflect.DeepEqual(res.StructuredContent, wanted) {
		t.Errorf("list_services: %+v", got)
	}
	for _, tool := range []string{"run_code", "run_python", "run"} {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: map[string]any{
			"conversationId": "a", "language": "python", "env": "python", "code": "1", "services": []any{"datadog"},
		}})
		if err != nil || !res.IsError {
			t.Fatalf("%s: %+v, %v", tool, res, err)
		}
		var answer errorJSON
		if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &answer); err != nil || answer.Error != "service_not_connected" ||
			answer.ConnectURL != "https://here/connections" || !strings.Contains(answer.Message, answer.ConnectURL) {
			t.Errorf("%s: %+v, %v", tool, answer, err)
		}
	}
}
