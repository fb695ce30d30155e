package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// catalog is an executor with two runners.
type catalog struct{ runs }

func (catalog) Runners() runner.Set {
	return runner.Set{
		{Definition: runner.Definition{Name: "python", Libraries: []string{"numpy", "pandas"}, Persistent: []string{"x"}}},
		{Definition: runner.Definition{Name: "typescript", Libraries: []string{"pg"}}},
	}
}

// TestToolList compares tools/list with testdata, byte for byte: models and clients depend on every
// word of it.
func TestToolList(t *testing.T) {
	for name, opt := range map[string]Options{
		"all.json": {MaxTimeout: 5 * time.Minute, Services: &Services{
			Names: []string{"datadog", "github"}, List: func(context.Context, session.Caller) []executor.ServiceState { return nil },
		}},
		"runs-only.json": {Tools: []string{"run", "run_code", "run_python", "list_runners"}},
	} {
		srv := mcp.NewServer(&mcp.Implementation{Name: "s"}, nil)
		Register(srv, catalog{}, opt)
		var got bytes.Buffer
		srv.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
			return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
				res, err := next(ctx, method, req)
				if list, ok := res.(*mcp.ListToolsResult); ok {
					enc := json.NewEncoder(&got)
					enc.SetEscapeHTML(false)
					enc.SetIndent("", "  ")
					if err := enc.Encode(list.Tools); err != nil {
						t.Error(err)
					}
				}
				return res, err
			}
		})
		cs := connect(t, srv)
		if _, err := cs.ListTools(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("tools/list differs from %s; if that is intended, run go test -update and read the diff", path)
		}
	}
}

// connect returns a client of the server, both in memory.
func connect(t *testing.T, srv *mcp.Server) *mcp.ClientSession {
	t.Helper()
	near, far := mcp.NewInMemoryTransports()
	ss, err := srv.Connect(t.Context(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ss.Close() })
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "c"}, nil).Connect(t.Context(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}
