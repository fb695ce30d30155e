package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/tools"
)

// bearer is a client's token.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// connect returns a session of the SDK's client.
func (p *product) connect(t *testing.T, transport, version string, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	var ct mcp.Transport = &mcp.StreamableClientTransport{Endpoint: p.url, HTTPClient: &http.Client{Transport: bearer("t0ps3cret")}}
	if transport == "stdio" {
		inR, inW := io.Pipe()
		outR, outW := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- p.server.ServeStdio(context.Background(), inR, outW) }()
		t.Cleanup(func() {
			inW.Close()
			if err := <-ended; err != nil {
				t.Errorf("ServeStdio: %v", err)
			}
		})
		ct = &mcp.IOTransport{Reader: outR, Writer: inW}
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, opts).Connect(t.Context(), ct, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

// forClients runs a test for every transport and protocol version.
func forClients(t *testing.T, test func(t *testing.T, transport, version string)) {
	for _, transport := range []string{"http", "stdio"} {
		for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"} {
			t.Run(transport+" "+version, func(t *testing.T) { test(t, transport, version) })
		}
	}
}

var runArgs = map[string]any{"conversationId": "a", "language": "python", "code": "1"}

// unstructured are the tools whose results may have images, which clients drop from structured
// results.
var unstructured = []string{"run", "run_code", "run_python", "read_artifact", "wait_run", "cancel_run"}

// TestClients: each protocol version gets the features that it has, and nothing newer.
func TestClients(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		res := exampleResult()
		for range 30 {
			res.Files = append(res.Files, res.Files[0])
		}
		p.executor.result = res
		cs := p.connect(t, transport, version, nil)
		list, err := cs.ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != len(tools.Names())-1 /* list_services: there are none */ {
			t.Fatalf("ListTools: %v, %v", list, err)
		}
		structured := version >= "2025-06-18"
		for _, tool := range list.Tools {
			if want := structured && !slices.Contains(unstructured, tool.Name); (tool.OutputSchema != nil) != want {
				t.Errorf("%s: output schema %v", tool.Name, tool.OutputSchema)
			}
		}
		for name, args := range map[string]map[string]any{
			"run_code": runArgs, "sandbox.list_runners": nil, "upload_file": {"filename": "a", "content": "eA=="},
			"run_python": {"code": "1"}, "read_artifact": {"session_id": "a", "path": "a"},
			"list_artifacts": {"session_id": "a"}, "sandbox.close_session": {"session_id": "a"},
			"list_sessions": nil, "delete_file": {"session_id": "a", "filename": "a"},
		} {
			// Links are optional.
			if got, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args}); err != nil || len(got.Content) != 1 {
				t.Errorf("%s, links not asked for: %+v, %v", name, got, err)
			}
			got, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args, Meta: mcp.Meta{"mcp-code-sandbox/resource_links": true}})
			if err != nil || got.IsError {
				t.Fatalf("%s: %+v, %v", name, got, err)
			}
			text, ok := got.Content[0].(*mcp.TextContent)
			if !ok || !json.Valid([]byte(text.Text)) {
				t.Errorf("%s: first item %+v", name, got.Content[0])
			}
			links := 0
			for _, c := range got.Content[1:] {
				link, ok := c.(*mcp.ResourceLink)
				if ok && link.URI == "sandbox://sessions/abc123/plot.png" && link.Description == "Download: "+res.Files[0].URL && link.Name == "plot.png" && link.MIMEType == "image/png" && *link.Size == 9 {
					links++
				}
			}
			want := 0
			if structured && strings.HasPrefix(name, "run_") {
				want = 20
			}
			if links != want || len(got.Content) != want+1 {
				t.Errorf("%s: %d items, %d links, want %d", name, len(got.Content), links, want)
			}
			if want := structured && !slices.Contains(unstructured, name); (got.StructuredContent != nil) != want {
				t.Errorf("%s: structured content %v", name, got.StructuredContent)
			}
		}

		// Bad arguments.
		got, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_code"})
		var rpc *jsonrpc.Error
		if version >= "2025-11-25" {
			if err != nil || !got.IsError || got.Content[0].(*mcp.TextContent).Text != "conversationId is required" {
				t.Errorf("bad arguments: %+v, %v", got, err)
			}
		} else if !errors.As(err, &rpc) || rpc.Code != -32602 || rpc.Message != "conversationId is required" {
			t.Errorf("bad arguments: %+v, %v", got, err)
		}
	})
}

// TestStreamedOutput: output reaches the client while the code runs.
func TestStreamedOutput(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		progress := make(chan *mcp.ProgressNotificationParams, 100)
		p.executor.run = func(ctx context.Context, req executor.Request) (executor.Result, error) {
			var last float64
			for _, part := range []string{"one\n", "zwölf\n", "три"} {
				// The parts end in the middle of characters.
				for i := range len(part) {
					req.Output(executor.Stdout, []byte(part[i:i+1]))
				}
				for got := ""; got != part; {
					select {
					case n := <-progress:
						got += n.Message
						if n.Progress <= last || n.ProgressToken != "tok" || !strings.HasPrefix(part, got) {
							t.Errorf("after progress %v: %+v; have %q of %q", last, n, got, part)
							return executor.Result{}, nil
						}
						last = n.Progress
					case <-time.After(5 * time.Second):
						t.Errorf("no progress; have %q of %q", got, part)
						return executor.Result{}, nil
					}
				}
			}
			return executor.Result{}, nil
		}
		cs := p.connect(t, transport, version, &mcp.ClientOptions{
			ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params },
		})
		params := &mcp.CallToolParams{Name: "run_code", Arguments: runArgs}
		params.SetProgressToken("tok")
		if _, err := cs.CallTool(t.Context(), params); err != nil {
			t.Error(err)
		}
	})
}

// TestCancelledRun: when the client cancels a call, the executor's context ends.
func TestCancelledRun(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		started, ended := make(chan struct{}), make(chan struct{})
		p.executor.run = func(ctx context.Context, req executor.Request) (executor.Result, error) {
			close(started)
			<-ctx.Done()
			close(ended)
			return executor.Result{Cause: sandbox.CauseCancelled}, nil
		}
		cs := p.connect(t, transport, version, nil)
		ctx, giveUp := context.WithCancel(t.Context())
		go func() {
			<-started
			giveUp()
		}()
		if _, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "run_code", Arguments: runArgs}); !errors.Is(err, context.Canceled) {
			t.Errorf("CallTool: %v", err)
		}
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			t.Error("the run goes on")
		}
	})
}

// TestLargeUpload sends more than the SDK accepts by default. The limit leaves room for contract
// 4's 50 MB in base64; a larger body is refused before it is read.
func TestLargeUpload(t *testing.T) {
	p := newProduct(t)
	const size = 3600 << 10 // 4.9 MB in base64
	got := p.call(t, "upload_file", `{"conversationId":"a","filename":"big","content":"`+strings.Repeat("AAAA", size/3)+`"}`)
	if !strings.Contains(got, "uploaded successfully") || len(p.executor.uploaded) != size {
		t.Errorf("%d bytes: %.300s", len(p.executor.uploaded), got)
	}
	for _, tt := range []struct {
		length int64
		status int
	}{{50<<20/3*4 + 4096, http.StatusBadRequest}, {80 << 20, http.StatusRequestEntityTooLarge}} {
		r := httptest.NewRequest("POST", "/mcp", iotest.ErrReader(errors.New("not to be read")))
		r.ContentLength = tt.length
		w := httptest.NewRecorder()
		p.server.Handler().ServeHTTP(w, r)
		if w.Code != tt.status || !strings.HasPrefix(w.Body.String(), `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,`) {
			t.Errorf("length %d: status %d, %s; want %d", tt.length, w.Code, w.Body, tt.status)
		}
	}
}
