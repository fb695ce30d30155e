//go:build linux

package integration

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestEveryToolWithAClient calls each tool as an MCP client, over stdio and HTTP: text, images and
// links come as content.
func TestEveryToolWithAClient(t *testing.T) {
	for _, name := range []string{"stdio", "http"} {
		t.Run(name, func(t *testing.T) {
			var transport mcp.Transport
			if name == "stdio" {
				cmd := exec.Command(binary, "stdio")
				cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+newRoot(t), "SANDBOX_HTTP_PORT=0")
				transport = &mcp.CommandTransport{Command: cmd, TerminateDuration: 20 * time.Second}
			} else {
				s := serve(t)
				transport = &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Token)}}
			}
			client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, nil)
			session, err := client.Connect(t.Context(), transport, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			call := func(tool string, args map[string]any) (text string, images, links int) {
				t.Helper()
				res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
				if err != nil {
					t.Fatalf("%s: %v", tool, err)
				}
				var all []string
				for _, c := range res.Content {
					switch c := c.(type) {
					case *mcp.TextContent:
						all = append(all, c.Text)
					case *mcp.ImageContent:
						images++
					case *mcp.ResourceLink:
						links++
					}
				}
				if res.IsError {
					t.Fatalf("%s: %s", tool, all)
				}
				return strings.Join(all, "\n"), images, links
			}
			const plot = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\n"
			id := "tools"
			if text, _, _ := call("list_runners", nil); !strings.Contains(text, images.Replace("IMAGE:python")) {
				t.Errorf("list_runners: %s", text)
			}
			call("upload_file", map[string]any{"session_id": id, "filename": "a.csv", "content": "eCx5CjEsMgo="})
			if text, _, _ := call("run", map[string]any{"env": "python", "session": id, "code": "import pandas as pd\ndf = pd.read_csv('a.csv')\ndf"}); text != "   x  y\n0  1  2\n" {
				t.Errorf("run: %q", text)
			}
			if text, images, links := call("run", map[string]any{"env": "python", "session": id, "code": plot + "len(df)"}); text != "1\n" || images != 1 || links != 0 {
				t.Errorf("run with a plot: %q, %d images, %d links", text, images, links)
			}
			if text, images, links := call("run_python", map[string]any{"session_id": id, "code": plot}); !strings.Contains(text, `"exit_code": 0`) || images != 1 || links != 0 {
				t.Errorf("run_python: %s, %d images, %d links", text, images, links)
			}
			if _, images, _ := call("run_code", map[string]any{"conversationId": id, "language": "python", "code": plot + "plt.plot([1])\nplt.savefig('chart.png')"}); images != 2 { // one shown, one saved
				t.Errorf("run_code: %d images", images)
			}
			if text, images, _ := call("read_artifact", map[string]any{"session_id": id, "path": "/mnt/data/chart.png"}); images != 1 || strings.Contains(text, "content_base64") {
				t.Errorf("read_artifact: %s, %d images", text, images)
			}
			if text, _, _ := call("list_artifacts", map[string]any{"session_id": id}); !strings.Contains(text, "chart.png") || !strings.Contains(text, "a.csv") {
				t.Errorf("list_artifacts: %s", text)
			}
			if text, _, _ := call("delete_file", map[string]any{"session_id": id, "filename": "/mnt/data/a.csv"}); !strings.Contains(text, `"deleted": true`) {
				t.Errorf("delete_file: %s", text)
			}
			if text, _, _ := call("list_artifacts", map[string]any{"session_id": id}); strings.Contains(text, "a.csv") || !strings.Contains(text, "modified_at") {
				t.Errorf("list_artifacts after delete_file: %s", text)
			}
			if text, _, _ := call("list_sessions", nil); !strings.Contains(text, `"session_id": "tools"`) || !strings.Contains(text, `"live": true`) {
				t.Errorf("list_sessions: %s", text)
			}
			text, _, _ := call("run_code", map[string]any{"conversationId": id, "language": "shell", "code": "echo on; sleep 60", "background": true})
			_, after, _ := strings.Cut(text, `"run_id": "`)
			run, _, ok := strings.Cut(after, `"`)
			if !ok || !strings.Contains(text, `"running"`) {
				t.Fatalf("background: %s", text)
			}
			if text, _, _ := call("cancel_run", map[string]any{"run_id": run}); !strings.Contains(text, "cancelled") {
				t.Errorf("cancel_run: %s", text)
			}
			if text, _, _ := call("wait_run", map[string]any{"run_id": run}); !strings.Contains(text, "cancelled") {
				t.Errorf("wait_run: %s", text)
			}
			if text, _, _ := call("close_session", map[string]any{"session_id": id}); !strings.Contains(text, "closed") {
				t.Errorf("close_session: %s", text)
			}
		})
	}
}
