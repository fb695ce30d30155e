package mcpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server with tools that do what the tests need.
type fixture struct {
	*Server
	url     string
	started chan struct{} // "wait" or "work" has been called
	ended   chan error    // why "wait", or "work" before its release, returned
	release chan struct{} // lets "work" finish
}

// newFixture serves over real HTTP. The bearer token is the user's name.
func newFixture(t testing.TB, cfg Config) *fixture {
	t.Helper()
	f := newServer(t, cfg)
	ts := httptest.NewServer(authenticated(f.Handler()))
	f.url = ts.URL + "/mcp"
	t.Cleanup(func() {
		if err := f.Close(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("Close: %v", err)
		}
		ts.Close()
	})
	return f
}

// authenticated uses the bearer token as the user's name.
func authenticated(h http.Handler) http.Handler {
	verify := func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
		return &auth.TokenInfo{UserID: token}, nil
	}
	return auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h)
}

// newServer returns a server with its tools. The caller serves and closes it.
func newServer(t testing.TB, cfg Config) *fixture {
	t.Helper()
	f := &fixture{started: make(chan struct{}, 100), ended: make(chan error, 100), release: make(chan struct{})}
	cfg.Tools = func(s *mcp.Server) {
		object := json.RawMessage(`{"type":"object"}`)
		text := func(s string) *mcp.CallToolResult {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
		}
		s.AddTool(&mcp.Tool{Name: "echo", InputSchema: object}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return text(string(req.Params.Arguments)), nil
		})
		s.AddTool(&mcp.Tool{Name: "wait", InputSchema: object}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			f.started <- struct{}{}
			<-ctx.Done()
			f.ended <- context.Cause(ctx)
			return text("ended"), nil
		})
		s.AddTool(&mcp.Tool{Name: "work", InputSchema: object}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			f.started <- struct{}{}
			select {
			case <-f.release:
				return text("worked"), nil
			case <-ctx.Done():
				f.ended <- context.Cause(ctx)
				return text("ended"), nil
			}
		})
		s.AddTool(&mcp.Tool{Name: "panic", InputSchema: object}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			panic("secret detail")
		})
		s.AddTool(&mcp.Tool{Name: "fail", InputSchema: object}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, errors.New("secret detail")
		})
		s.AddTool(&mcp.Tool{Name: "progress", InputSchema: object}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			for i := range 3 {
				req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
					ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1), Message: "line\n\ndata: {}\n",
				})
			}
			return text("done"), nil
		})
	}
	var err error
	if f.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return f
}

// do sends a request as curl would. Headers are "Name: value"; an empty value removes the header.
func (f *fixture) do(t testing.TB, method, url, body string, headers ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer local")
	req.Header.Set("Accept", "*/*")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if value == "" {
			req.Header.Del(name)
			continue
		}
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (f *fixture) post(t testing.TB, body string, headers ...string) (status int, answer string) {
	t.Helper()
	resp := f.do(t, "POST", f.url, body, headers...)
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// initialize creates a session and returns its header.
func (f *fixture) initialize(t testing.TB, version string, headers ...string) string {
	t.Helper()
	resp := f.do(t, "POST", f.url, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, headers...)
	io.Copy(io.Discard, resp.Body)
	id := resp.Header.Get(sessionHeader)
	if resp.StatusCode != 200 || id == "" {
		t.Fatalf("initialize: status %d, session %q", resp.StatusCode, id)
	}
	return sessionHeader + ": " + id
}

// line returns the next line of a stream that satisfies the condition.
func line(t testing.TB, r *bufio.Reader, ok func(string) bool) string {
	t.Helper()
	for {
		s, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		if s = strings.TrimRight(s, "\n"); ok(s) {
			return s
		}
	}
}

// soon receives from a channel, and fails the test after a while.
func soon[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(5 * time.Second):
		t.Fatal("nothing happened for 5 s")
	}
	return v
}
