package mcpserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// fakeFiles are the files of callers, newest first.
type fakeFiles struct {
	filesMu     sync.Mutex
	files       map[session.Caller][]executor.Artifact
	watchers    []func(session.Caller)
	runWatchers []func(session.Caller)
}

func (e *fakeFiles) RecentFiles(_ context.Context, caller session.Caller, after executor.Position, limit int) (
	files []executor.FileLink, more bool, err error,
) {
	e.filesMu.Lock()
	defer e.filesMu.Unlock()
	for _, f := range e.files[caller] {
		if after == (executor.Position{}) || f.ModTime.Before(after.ModTime) {
			files = append(files, f.FileLink)
		}
	}
	return files[:min(len(files), limit)], len(files) > limit, nil
}

func (e *fakeFiles) ReadFile(_ context.Context, caller session.Caller, id, path string) (executor.Artifact, error) {
	name, err := workspace.CleanName(path)
	if err != nil {
		return executor.Artifact{}, &executor.Error{Code: executor.CodeInvalidPath, Message: err.Error()}
	}
	e.filesMu.Lock()
	defer e.filesMu.Unlock()
	for _, f := range e.files[caller] {
		switch {
		case f.Session != id || f.Name != name:
		case f.Size > 1000:
			return executor.Artifact{}, &executor.Error{Code: executor.CodeArtifactTooLarge, Message: "too large", SizeBytes: f.Size, DownloadURL: "https://host/big"}
		default:
			return f, nil
		}
	}
	return executor.Artifact{}, &executor.Error{Code: executor.CodeNotFound, Message: "no such file"}
}

func (e *fakeFiles) Watch(changed func(session.Caller)) { e.watchers = append(e.watchers, changed) }

func (e *fakeFiles) WatchRuns(changed func(session.Caller)) {
	e.runWatchers = append(e.runWatchers, changed)
}

func (e *fakeFiles) change(caller string) {
	for _, changed := range e.watchers {
		changed(session.Caller{ID: caller})
	}
}

func (e *fakeFiles) add(caller, id, name string, content []byte) {
	e.filesMu.Lock()
	defer e.filesMu.Unlock()
	if e.files == nil {
		e.files = map[session.Caller][]executor.Artifact{}
	}
	c := session.Caller{ID: caller}
	at := time.Unix(1800000000, int64(-len(e.files[c]))) // a nanosecond apart
	e.files[c] = append(e.files[c], executor.Artifact{Content: content, FileLink: executor.FileLink{
		File: workspace.File{Name: name, Size: int64(len(content)), ModTime: at}, Session: id}})
}

func (p *product) recordNotified(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if method == "notifications/resources/list_changed" {
			p.notified <- req.GetSession().(*mcp.ServerSession).InitializeParams().ClientInfo.Name
		}
		return res, err
	}
}

func wantCode(t *testing.T, err error, code int64, what string) {
	t.Helper()
	var rpc *jsonrpc.Error
	if !errors.As(err, &rpc) || rpc.Code != code {
		t.Errorf("%s: %v, want code %d", what, err, code)
	}
}

// TestResources: a client can read every file that it lists, as text or as bytes. A missing file is
// an error of the client's protocol version.
func TestResources(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		id := "Ä:1?#%2f"
		contents := map[string][]byte{
			"a.csv": []byte("ä,b\n"), "dir/p#l o?t%.png": {0x89, 'P', 'N', 'G'}, "Makefile": []byte("all:"), "nul.txt": {'a', 0}, "empty": {},
		}
		types := map[string]string{
			"a.csv": "text/csv", "dir/p#l o?t%.png": "image/png", "Makefile": "text/plain", "nul.txt": "text/plain", "empty": "text/plain",
		}
		for name, content := range contents {
			p.executor.add("local", id, name, content)
		}
		for i := range 120 {
			p.executor.add("local", "many", fmt.Sprint(i), nil)
		}
		p.executor.add("local", "many", "big", make([]byte, 1001))
		p.executor.add("ann", id, "secret", []byte("ann's"))
		cs := p.connect(t, transport, version, nil)

		caps := cs.InitializeResult().Capabilities.Resources
		if declared := caps != nil && caps.ListChanged; declared != (version >= "2025-03-26") {
			t.Errorf("declared: %+v", caps)
		}
		listed, pages := map[string]*mcp.Resource{}, 0
		for params := new(mcp.ListResourcesParams); ; pages++ {
			list, err := cs.ListResources(t.Context(), params)
			if err != nil || len(list.Resources) > 100 {
				t.Fatalf("%d resources, %v", len(list.Resources), err)
			}
			if version == "2026-07-28" && list.CacheScope != "private" {
				t.Errorf("cache scope %q", list.CacheScope)
			}
			for _, r := range list.Resources {
				listed[r.Name] = r
			}
			if params.Cursor = list.NextCursor; params.Cursor == "" {
				break
			}
		}
		if len(listed) != 126 || pages != 1 || listed["secret"] != nil {
			t.Errorf("%d listed, on %d pages", len(listed), pages+1)
		}
		for name, content := range contents {
			r := listed[name]
			res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: r.URI})
			if err != nil || len(res.Contents) != 1 {
				t.Fatalf("%s: %+v, %v", r.URI, res, err)
			}
			c := res.Contents[0]
			binary := strings.HasPrefix(name, "dir/") || name == "nul.txt"
			if c.URI != r.URI || c.MIMEType != types[name] || r.Size != int64(len(content)) ||
				!bytes.Equal(append([]byte(c.Text), c.Blob...), content) || (len(c.Blob) > 0) != binary {
				t.Errorf("%s: %+v %+v", name, r, c)
			}
		}
		templates, err := cs.ListResourceTemplates(t.Context(), nil)
		if err != nil || len(templates.ResourceTemplates) != 2 || templates.ResourceTemplates[0].URITemplate != "sandbox://runs/{run_id}/output" ||
			templates.ResourceTemplates[1].URITemplate != "sandbox://sessions/{session}/{+path}" {
			t.Errorf("templates: %+v, %v", templates, err)
		}

		missing := int64(-32002)
		if version == "2026-07-28" {
			missing = -32602
		}
		prefix := "sandbox://sessions/" + "%C3%84%3A1%3F%23%252f" + "/"
		for _, uri := range []string{
			prefix + "none", prefix + "secret", prefix, prefix + "../meta.json", prefix + "%2e%2e/%2e%2e/etc/passwd", prefix + "a.csv%00", prefix + "%zz",
			"sandbox://sessions/", "sandbox://sessions/x", "sandbox://sessions//a.csv", "sandbox://sessions/../a.csv", "file:///etc/passwd", "x",
		} {
			_, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			wantCode(t, err, missing, uri)
		}
		for _, uri := range []string{"sandbox://sessions/Ä:1?%23%252f/a.csv", prefix + "/data/a.csv"} { // written by hand
			res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err != nil || res.Contents[0].URI != uri {
				t.Errorf("%s: %+v, %v", uri, res, err)
			}
		}
		_, err = cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://sessions/many/big"})
		wantCode(t, err, -32602, "too large")
		_, err = cs.ListResources(t.Context(), &mcp.ListResourcesParams{Cursor: "?"})
		wantCode(t, err, -32602, "a cursor of nobody's")
	})
}

// TestResourcesPlain: a plain caller gets no fields of the newest protocol version.
func TestResourcesPlain(t *testing.T) {
	p := newProduct(t)
	p.executor.add("local", "s", "a.txt", []byte("<hi>"))
	for body, want := range map[string]string{
		`"resources/list"`: `{"jsonrpc":"2.0","id":1,"result":{"resources":[{"description":"In session s","mimeType":"text/plain","name":"a.txt","size":4,"uri":"sandbox://sessions/s/a.txt"}]}}`,
		`"resources/read","params":{"uri":"sandbox://sessions/s/a.txt"}`: `{"jsonrpc":"2.0","id":1,"result":{"contents":[{"uri":"sandbox://sessions/s/a.txt","mimeType":"text/plain","text":"\u003chi\u003e"}]}}`,
		`"resources/read","params":{"uri":"sandbox://sessions/s/b"}`:     `{"jsonrpc":"2.0","id":1,"error":{"code":-32002,"message":"Resource not found","data":{"uri":"sandbox://sessions/s/b"}}}`,
	} {
		if got := p.post(t, `{"jsonrpc":"2.0","id":1,"method":`+body+`}`); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
}

// user connects a user over HTTP.
func (p *product) user(t *testing.T, name, version string) *mcp.ClientSession {
	t.Helper()
	transport := &mcp.StreamableClientTransport{Endpoint: p.url, HTTPClient: &http.Client{Transport: bearer(name)}}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: name, Version: "1"}, nil).Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	if _, err := cs.ListTools(t.Context(), nil); err != nil { // after that, the server knows that the client is initialized
		t.Fatal(err)
	}
	return cs
}

// TestCallersApart: users do not see, read or receive notifications about each other's files.
func TestCallersApart(t *testing.T) {
	for _, version := range []string{"2025-03-26", "2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			p := newProduct(t)
			names := []string{"ann", "bob"}
			clients := map[string]*mcp.ClientSession{}
			for _, name := range names {
				p.executor.add(name, "x", name, []byte(name))
				clients[name] = p.user(t, name, version)
			}
			for i, name := range names {
				list, err := clients[name].ListResources(t.Context(), nil)
				if err != nil || len(list.Resources) != 1 || list.Resources[0].Name != name {
					t.Errorf("%s sees %+v, %v", name, list, err)
				}
				other := names[1-i]
				res, err := clients[name].ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://sessions/x/" + other})
				if err == nil {
					t.Errorf("%s reads %+v", name, res)
				}
			}
			if version == "2026-07-28" {
				return // clients of this version do not listen
			}
			var heard []string
			for _, name := range []string{"ann", "bob", "nobody", "bob", "ann"} {
				if p.executor.change(name); name == "nobody" {
					continue
				}
				select {
				case who := <-p.notified:
					heard = append(heard, who)
				case <-time.After(5 * time.Second):
					t.Fatalf("nobody heard of %s's files", name)
				}
			}
			if !slices.Equal(heard, []string{"ann", "bob", "bob", "ann"}) || len(p.notified) > 0 {
				t.Errorf("heard: %q, and %d more", heard, len(p.notified))
			}
		})
	}
}

// TestListChanged: the notification reaches clients of every protocol version that has it.
func TestListChanged(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		if version < "2025-03-26" {
			return // contract 2 declares no resources
		}
		p := newProduct(t)
		heard := make(chan struct{}, 100)
		p.connect(t, transport, version, &mcp.ClientOptions{
			ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { heard <- struct{}{} },
		})
		// The client may not have opened its stream yet.
		deadline, tick := time.After(5*time.Second), time.NewTicker(20*time.Millisecond)
		defer tick.Stop()
		for {
			p.executor.change("local")
			select {
			case <-heard:
				return
			case <-tick.C:
			case <-deadline:
				t.Fatal("no notification")
			}
		}
	})
}
