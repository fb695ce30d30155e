//go:build linux

package integration

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const filesCode = `
import os
os.makedirs("/data/out", exist_ok=True)
open("/data/out/täble 1.csv", "w").write("a,b\n1,ü\n")
open("/data/raw.bin", "wb").write(bytes(range(256)))
os.symlink("/etc/passwd", "/data/passwd")
os.symlink("raw.bin", "/data/alias.bin")
`

// TestResources checks that a client is notified of a run's files, finds them, and reads them by
// list, link and template.
func TestResources(t *testing.T) {
	for _, tt := range []struct {
		name, version string
		stdio         bool
		missing       int64
	}{
		{"HTTP", "2025-11-25", false, -32002},
		{"HTTP, newest protocol", "2026-07-28", false, -32602},
		{"stdio", "2025-06-18", true, -32002},
		{"stdio, newest protocol", "2026-07-28", true, -32602},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var transport mcp.Transport
			if tt.stdio {
				cmd := exec.Command(binary, "stdio")
				cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+newRoot(t), "SANDBOX_HTTP_PORT=0")
				transport = &mcp.CommandTransport{Command: cmd, TerminateDuration: 20 * time.Second}
			} else {
				s := serve(t)
				transport = &mcp.StreamableClientTransport{Endpoint: s.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer(s.Token)}}
			}
			changed := make(chan struct{}, 100)
			client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, &mcp.ClientOptions{
				ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { changed <- struct{}{} },
			})
			cs, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: tt.version})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cs.Close() })
			call := func(tool string, args map[string]any) *mcp.CallToolResult {
				t.Helper()
				res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args, Meta: mcp.Meta{"mcp-code-sandbox/resource_links": true}})
				if err != nil || res.IsError {
					t.Fatalf("%s: %+v, %v", tool, res, err)
				}
				return res
			}
			// A client has no stream of its own before its first notification.
			eventually(t, 20*time.Second, "the client to hear of uploads", func() bool {
				call("upload_file", map[string]any{"session_id": "Other", "filename": "up.txt", "content": base64.StdEncoding.EncodeToString([]byte("up")), "overwrite": true})
				select {
				case <-changed:
					return true
				case <-time.After(200 * time.Millisecond):
					return false
				}
			})
			for len(changed) > 0 {
				<-changed
			}
			res := call("run_python", map[string]any{"session_id": "Files", "code": filesCode})
			select {
			case <-changed:
			case <-time.After(10 * time.Second):
				t.Error("the client does not hear of the run's files")
			}

			want := map[string]struct{ uri, text string }{
				"out/täble 1.csv": {"sandbox://sessions/Files/out/t%C3%A4ble%201.csv", "a,b\n1,ü\n"},
				"raw.bin":         {"sandbox://sessions/Files/raw.bin", ""},
				"up.txt":          {"sandbox://sessions/Other/up.txt", "up"},
			}
			list, err := cs.ListResources(t.Context(), nil)
			if err != nil || len(list.Resources) != len(want) || list.Resources[2].Name != "up.txt" {
				t.Fatalf("%d resources, %v", len(list.Resources), err)
			}
			for _, r := range list.Resources {
				if r.URI != want[r.Name].uri {
					t.Errorf("resource %+v", r)
				}
			}
			links := 0
			for _, c := range res.Content {
				link, ok := c.(*mcp.ResourceLink)
				if ok {
					links++
				}
				if ok && (link.URI != want[link.Name].uri || !strings.Contains(link.Description, "/files/Files/")) {
					t.Errorf("link %+v", link)
				}
			}
			if links != 2 {
				t.Errorf("%d links, want 2", links)
			}
			for _, f := range want {
				read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: f.uri})
				if err != nil || len(read.Contents) != 1 {
					t.Fatalf("%s: %+v, %v", f.uri, read, err)
				}
				if c := read.Contents[0]; c.Text != f.text || f.text == "" && (len(c.Blob) != 256 || c.Blob[255] != 255) {
					t.Errorf("%s: %+v", f.uri, c)
				}
			}
			templates, err := cs.ListResourceTemplates(t.Context(), nil)
			if err != nil || len(templates.ResourceTemplates) != 2 {
				t.Errorf("templates: %+v, %v", templates, err)
			}
			for _, uri := range []string{
				"sandbox://sessions/Files/passwd", "sandbox://sessions/Files/alias.bin", "sandbox://sessions/files/raw.bin", "sandbox://sessions/Files/out",
				"sandbox://sessions/Files/%2e%2e/meta.json", "sandbox://sessions/Files/../../keys/token", "sandbox://sessions/../raw.bin",
			} {
				read, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
				var rpc *jsonrpc.Error
				if !errors.As(err, &rpc) || rpc.Code != tt.missing {
					t.Errorf("%s: %+v, %v; want code %d", uri, read, err, tt.missing)
				}
			}

			// A link outlives its session for a while; the list does not.
			call("close_session", map[string]any{"session_id": "Files"})
			if _, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: want["raw.bin"].uri}); err != nil {
				t.Errorf("after the session's end: %v", err)
			}
			if list, err := cs.ListResources(t.Context(), nil); err != nil || len(list.Resources) != 1 {
				t.Errorf("after the session's end: %+v, %v", list, err)
			}
		})
	}
}
