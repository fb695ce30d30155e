package mcpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"runtime"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/tools"
)

// dot is a whole image.
func dot(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewRGBA(image.Rect(0, 0, 2, 2))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var (
	out  = func(n int64) executor.Span { return executor.Span{Stream: executor.Stdout, N: n} }
	errs = func(n int64) executor.Span { return executor.Span{Stream: executor.Stderr, N: n} }
	show = executor.Span{Display: true}
)

// itemsOf calls run and returns its content: texts, and "#" for images.
func itemsOf(t *testing.T, cs *mcp.ClientSession) (items []string) {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"env": "python", "code": "1", "session": "s"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			if items = append(items, c.Text); c.Text == "" {
				t.Error("an empty text item, which some providers refuse")
			}
		case *mcp.ImageContent:
			items = append(items, "#")
		default:
			t.Errorf("item %T", c)
		}
	}
	return items
}

// TestOrder: text and images come in the order in which they were made. Text is one item as long as
// there is no image, the notice comes first and the facts come last.
func TestOrder(t *testing.T) {
	p := newProduct(t)
	cs := p.connect(t, "http", "2025-11-25", nil)
	plot := executor.Display{MIME: "image/png", Data: dot(t)}
	for _, tt := range []struct {
		name string
		res  executor.Result
		want string
	}{
		{"print, plot, print, plot", executor.Result{Stdout: []byte("a\nb\n"), Order: []executor.Span{out(2), show, out(2), show}, Displays: []executor.Display{plot, plot}},
			"a\n|#|b\n|#"},
		{"both streams", executor.Result{Stdout: []byte("a\nb\n"), Stderr: []byte("x\ny\n"), Order: []executor.Span{errs(2), out(2), errs(2), show, out(2)}, Displays: []executor.Display{plot}},
			"x\na\ny\n|#|b\n"},
		{"facts last", executor.Result{RunID: "run_1", ExitCode: 1, Stdout: []byte("a"), Order: []executor.Span{out(1), show}, Displays: []executor.Display{plot}},
			"a|#|[exit code 1; run_1]"},
		{"notice first", executor.Result{RunID: "run_1", Switched: true, Persistent: true, Stdout: []byte("a"), Order: []executor.Span{show, out(1)}, Displays: []executor.Display{plot}},
			"[This run used the session's other interpreter, the one without network: variables, functions and imports of runs with network are not defined in it. " +
				"To pass data, save it to a file in /data in one and read it in the other.]|#|a"},
		{"markdown between prints", executor.Result{Stdout: []byte("ab"), Order: []executor.Span{out(1), show, out(1)}, Displays: []executor.Display{{MIME: "text/markdown", Data: []byte("# t")}}},
			"a\n# t\nb"},
		{"a table that was also printed", executor.Result{Stdout: []byte("x 1\n"), Order: []executor.Span{out(4), show},
			Displays: []executor.Display{{MIME: "text/html", Data: []byte("<b>"), Plain: []byte("x 1\n")}}}, "x 1\n"},
		{"only a plot", executor.Result{Order: []executor.Span{show}, Displays: []executor.Display{plot}}, "#"},
		{"nothing", executor.Result{}, "(no output)"},
		{"stored before there was an order", executor.Result{Stdout: []byte("a"), Stderr: []byte("x"), Displays: []executor.Display{plot}}, "a\nx|#"},
		{"displays that were dropped", executor.Result{Stdout: []byte("ab"), Order: []executor.Span{out(1), show, out(1)}}, "a\nb"},
	} {
		p.executor.result = tt.res
		if got := strings.Join(itemsOf(t, cs), "|"); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestManyImages: at most ten are in the answer, and it names the others, with links.
func TestManyImages(t *testing.T) {
	p := newProduct(t)
	cs := p.connect(t, "http", "2025-11-25", nil)
	var res executor.Result
	for i := range 64 {
		res.Order = append(res.Order, out(2), show)
		res.Stdout = append(res.Stdout, "p\n"...)
		res.Displays = append(res.Displays, executor.Display{MIME: "image/png", Data: dot(t), File: fmt.Sprintf(".plots/%d.png", i), URL: fmt.Sprintf("http://host/%d", i)})
	}
	p.executor.result = res
	items := itemsOf(t, cs)
	last := items[len(items)-1]
	if n := strings.Count(strings.Join(items, ""), "#"); n != 10 || len(items) != 21 || strings.Count(last, "p\n") != 54 {
		t.Errorf("%d images in %d items, %q", n, len(items), last)
	}
	if !strings.Contains(last, "[54 more images are not shown here: .plots/10.png <http://host/10>, ") ||
		strings.Count(last, ".png") != 54 || strings.Count(last, "<http") != 20 {
		t.Errorf("named: %s", last)
	}
	// A plain caller gets links instead of images.
	plain, _ := compact(t, p.call(t, "run_python", `{"code":"1"}`))
	if !strings.Contains(plain, `"artifacts":[],"images":[{"name":".plots/0.png","url":"http://host/0"},`) {
		t.Errorf("a plain caller: %.300s", plain)
	}
}

// TestModelsText: models read what a terminal would show, with the frames of libraries folded.
// Plain callers and details get every byte.
func TestModelsText(t *testing.T) {
	p := newProduct(t)
	const bar = "\r  0%|          |\r100%|##########| \x1b[32mdone\x1b[0m\n"
	const trace = "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\n    f()\n" +
		"  File \"/usr/lib/python3.11/json/decoder.py\", line 3, in f\n    g()\nValueError: x\n"
	p.executor.result = executor.Result{RunID: "run_1", Session: "s", Persistent: true, ExitCode: 1, Stdout: []byte("\x1b[1mA\x1b[0m\n"), Stderr: []byte(bar + trace)}
	cs := p.connect(t, "http", "2025-11-25", nil)
	want := "A\n100%|##########| done\nTraceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\n    f()\n" +
		"  [1 frame in the standard library]\nValueError: x\n[exit code 1; run_1]"
	if got := strings.Join(itemsOf(t, cs), "|"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, tool := range []string{"run", "run_python"} {
		var plain struct{ Stdout, Stderr string }
		text, _ := compact(t, p.call(t, tool, `{"env":"python","code":"1"}`))
		if err := json.Unmarshal([]byte(text), &plain); err != nil || plain.Stdout != "\x1b[1mA\x1b[0m\n" || plain.Stderr != bar+trace {
			t.Errorf("%s: %q, %v", tool, plain, err)
		}
	}
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"env": "python", "code": "1"}, Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
	if err != nil {
		t.Fatal(err)
	}
	details, err := json.Marshal(res.Meta["mcp-code-sandbox/run"])
	if err != nil || !bytes.Contains(details, []byte(`{"text":"\u001b[1mA\u001b[0m\n","type":"stdout"}`)) {
		t.Errorf("the page: %s, %v", details, err)
	}
}

// TestHostileDisplay: a display may be many times as long as an answer, and has a line for each of
// its bytes.
func TestHostileDisplay(t *testing.T) {
	p := newProductWith(t, tools.Options{ResultBytes: 1 << 10})
	cs := p.connect(t, "http", "2025-11-25", nil)
	data := []byte("\x1b[mfirst" + strings.Repeat("\n", 1<<20) + "last")
	p.executor.result = executor.Result{RunID: "run_1", Session: "s", Displays: []executor.Display{{MIME: "text/plain", Data: data}}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	items := itemsOf(t, cs)
	runtime.ReadMemStats(&after)
	if len(items) != 1 || len(items[0]) > 2<<10 || !strings.HasPrefix(items[0], "first\n") || !strings.Contains(items[0], "\nlast") {
		t.Errorf("%d items: %.100q", len(items), items[0])
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("%d bytes were allocated for an answer", grown)
	}
}

// TestLongAnswers: run gives the beginning and the end of long output, and says where all of it is.
// Contract fields are not shortened.
func TestLongAnswers(t *testing.T) {
	p := newProductWith(t, tools.Options{ResultBytes: 1 << 10})
	cs := p.connect(t, "http", "2025-11-25", nil)
	long := "first line\n" + strings.Repeat("x", 10_000) + "\nlast line\n"
	text := func(res executor.Result) string {
		t.Helper()
		p.executor.result = res
		items := itemsOf(t, cs)
		if len(items) != 1 || len(items[0]) > 2<<10 || !strings.HasPrefix(items[0], "first line\n") || !strings.Contains(items[0], "last line\n") {
			t.Errorf("%d items, %d bytes: %.100s", len(items), len(items[0]), items[0])
		}
		return items[0]
	}
	stored := executor.Result{RunID: "run_1", Stdout: []byte(long), Spooled: true}
	if got := text(stored); !strings.Contains(got, "\n… [8998 bytes omitted: the resource sandbox://runs/run_1/output and, for code, the file /data/.outputs/run_1.txt have all output] …\n") {
		t.Error(got)
	}
	once := stored
	once.Once = true // nothing can run in its session
	p.executor.run = func(context.Context, executor.Request) (executor.Result, error) { return once, nil }
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"env": "python", "code": "1"}})
	if err != nil || strings.Contains(res.Content[0].(*mcp.TextContent).Text, "for code") {
		t.Errorf("a single run: %+v, %v", res, err)
	}
	p.executor.run = nil
	if got := text(executor.Result{RunID: "run_1", Stdout: []byte(long)}); strings.Contains(got, "sandbox://") {
		t.Errorf("it names a resource that does not exist: %s", got)
	}
	// The server itself may have kept less than was printed. The number is that of all of it.
	cut := stored
	cut.StdoutCut = &executor.Cut{Head: 5000, Tail: len(long) - 5000, Omitted: 1_000_000}
	if got := text(cut); !strings.Contains(got, "[1008998 bytes omitted: ") || strings.Count(got, "omitted") != 1 {
		t.Error(got)
	}
	plain, _ := compact(t, p.call(t, "run_python", `{"code":"1"}`))
	if !strings.Contains(plain, mustJSON(long)) {
		t.Errorf("a plain caller: %d bytes", len(plain))
	}
}

// TestOutputResource: a client reads the whole output of a run in pieces, each with the URI of the
// next.
func TestOutputResource(t *testing.T) {
	forClients(t, func(t *testing.T, transport, version string) {
		p := newProduct(t)
		cs := p.connect(t, transport, version, nil)
		whole := strings.Repeat("0123456789", 60_000)
		p.executor.result = executor.Result{Stdout: []byte(whole)}
		var got strings.Builder
		pieces := 0
		for uri := "sandbox://runs/run_1/output"; uri != ""; pieces++ {
			res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			if err != nil || len(res.Contents) != 1 || res.Contents[0].URI != uri || res.Contents[0].MIMEType != "text/plain" {
				t.Fatalf("%s: %+v, %v", uri, res, err)
			}
			text, note, _ := strings.Cut(res.Contents[0].Text, "\n[")
			got.WriteString(text)
			if _, uri, _ = strings.Cut(strings.TrimSuffix(note, "]"), "the next piece is "); len(text) > 256<<10 {
				t.Errorf("a piece of %d bytes", len(text))
			}
		}
		if got.String() != whole || pieces != 3 {
			t.Errorf("%d of %d bytes in %d pieces", got.Len(), len(whole), pieces)
		}
		if res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://runs/run_1/output?offset=600000"}); err != nil || res.Contents[0].Text != "[the output has 600000 bytes]" {
			t.Errorf("beyond the end: %+v, %v", res, err)
		}
		missing := int64(-32002)
		if version == "2026-07-28" {
			missing = -32602
		}
		for _, uri := range []string{
			"sandbox://runs/run_1/output?offset=-1", "sandbox://runs/run_1/output?offset=x", "sandbox://runs/run_1/output?offset=9223372036854775808",
			"sandbox://runs/a/b/output", "sandbox://runs/run_1", "sandbox://runs/run_1/output/x", "sandbox://runs/%zz/output",
		} {
			_, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
			wantCode(t, err, missing, uri)
		}
		p.executor.err = &executor.Error{Code: executor.CodeRunNotFound, Message: "There is none."}
		_, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://runs/run_2/output"})
		wantCode(t, err, missing, "another caller's run")
		p.executor.err = &executor.Error{Code: executor.CodeRunActive, Message: "The run has not ended."}
		_, err = cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "sandbox://runs/run_1/output"})
		if wantCode(t, err, -32602, "an active run"); !strings.Contains(err.Error(), "has not ended") {
			t.Errorf("an active run: %v", err)
		}
		if p.executor.caller != session.Local {
			t.Errorf("asked for %v", p.executor.caller)
		}
	})
}

// TestManyFiles: models read at most 20 names and how many more there are. Plain callers get the
// contracts' lists.
func TestManyFiles(t *testing.T) {
	p := newProduct(t)
	res := executor.Result{RunID: "run_1", Session: "s", FilesTotal: 996, FilesTruncated: true}
	for i := range 200 {
		res.Files = append(res.Files, link(fmt.Sprintf("%d.csv", i), 1))
	}
	p.executor.result = res
	cs := p.connect(t, "http", "2025-11-25", nil)
	text := strings.Join(itemsOf(t, cs), "|")
	if strings.Count(text, ".csv <") != 20 || !strings.Contains(text, " and 976 more; run_1]") {
		t.Error(text)
	}
	var files struct {
		Files     []any
		Truncated bool `json:"files_truncated"`
		Total     int  `json:"files_total"`
	}
	got, _ := textOf(t, cs, "run_code", runArgs)
	if err := json.Unmarshal([]byte(got), &files); err != nil || len(files.Files) != 20 || !files.Truncated || files.Total != 996 {
		t.Errorf("a client's run_code: %d files, %t, %d", len(files.Files), files.Truncated, files.Total)
	}
	files.Total = 0
	plain, _ := compact(t, p.call(t, "run_code", mustJSON(runArgs)))
	if err := json.Unmarshal([]byte(plain), &files); err != nil || len(files.Files) != 200 || !files.Truncated || files.Total != 0 {
		t.Errorf("a plain caller's run_code: %d files, %t, %d", len(files.Files), files.Truncated, files.Total)
	}
	p.executor.result.Files, p.executor.result.FilesTotal, p.executor.result.FilesTruncated = res.Files[:20], 20, false
	if got, _ := textOf(t, cs, "run_code", runArgs); strings.Contains(got, "files_t") {
		t.Errorf("all files are listed: %s", got)
	}
}

// TestListPages: list_artifacts pages through files that match. Without options, it is contract
// 4's.
func TestListPages(t *testing.T) {
	p := newProduct(t)
	p.executor.result.Files = []executor.FileLink{link("b\xff", 1), link("a", 1)}
	for i := range p.executor.result.Files {
		p.executor.result.Files[i].Session = "s"
	}
	list := func(args string) (out struct {
		Artifacts  []any
		Truncated  bool
		Total      *int
		NextCursor string `json:"next_cursor"`
	}) {
		t.Helper()
		text, isError := compact(t, p.call(t, "list_artifacts", args))
		if err := json.Unmarshal([]byte(text), &out); err != nil || isError {
			t.Fatalf("%s: %s", args, text)
		}
		return out
	}
	if got := list(`{"session_id":"s"}`); got.Total != nil || got.NextCursor != "" || len(got.Artifacts) != 2 || p.executor.listed != (executor.ListOptions{}) {
		t.Errorf("without options: %+v, asked for %+v", got, p.executor.listed)
	}
	first := list(`{"session_id":"s","limit":1}`)
	if first.Total == nil || *first.Total != 2 || !first.Truncated || first.NextCursor == "" || p.executor.listed.Limit != 1 {
		t.Errorf("the first page: %+v", first)
	}
	second := list(`{"session_id":"s","limit":1,"cursor":"` + first.NextCursor + `"}`)
	if after := p.executor.listed.After; after.Name != "b\xff" || after.Session != "s" || second.Total == nil {
		t.Errorf("the second page: %+v, after %+v", second, after)
	}
	for prefix, want := range map[string]string{
		"plots/": "plots/", "/mnt/data/plots": "plots", "/data/": "", "/workspace/a/b": "a/b", "/data": "", "./x": "x", "/database": "/database", "../x": "../x",
	} {
		if list(`{"session_id":"s","prefix":"` + prefix + `"}`); p.executor.listed.Prefix != want {
			t.Errorf("the prefix %s became %q, want %q", prefix, p.executor.listed.Prefix, want)
		}
	}
	for args, want := range map[string]string{
		`{"session_id":"s","limit":0}`:                           "limit must be between 1 and 1000",
		`{"session_id":"s","limit":1001}`:                        "limit must be between 1 and 1000",
		`{"session_id":"s","cursor":"?"}`:                        "cursor must be the next_cursor of an earlier call for this session",
		`{"session_id":"s","cursor":"e30"}`:                      "cursor must be the next_cursor of an earlier call for this session",
		`{"session_id":"t","cursor":"` + first.NextCursor + `"}`: "cursor must be the next_cursor of an earlier call for this session",
		`{"session_id":"s","cursor":7}`:                          "cursor must be a string",
		`{"session_id":"s","prefix":["a"]}`:                      "prefix must be a string",
	} {
		if got := p.call(t, "list_artifacts", args); !strings.Contains(got, `{"code":-32602,"message":"`+want+`"`) {
			t.Errorf("%s: %s", args, got)
		}
	}
}

// TestReadPDF: the text of a PDF comes from a run in the session's sandbox, which nobody lists and
// which has neither network nor services.
func TestReadPDF(t *testing.T) {
	p := newProduct(t)
	pdf := "%PDF-1.7\n\xff\x00"
	p.executor.artifact = executor.Artifact{FileLink: link("in/a b.pdf", int64(len(pdf))), Content: []byte(pdf)}
	cs := p.connect(t, "http", "2025-11-25", nil)
	read := func(args map[string]any) (items []string, hasBytes bool) {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_artifact", Arguments: args})
		if err != nil || res.IsError {
			t.Fatalf("%+v, %v", res, err)
		}
		for _, c := range res.Content {
			switch c := c.(type) {
			case *mcp.TextContent:
				items = append(items, c.Text)
			case *mcp.EmbeddedResource:
				items = append(items, c.Resource.MIMEType+" "+string(c.Resource.Blob))
			}
		}
		return items, strings.Contains(items[0], "content_base64")
	}
	args := map[string]any{"session_id": "s", "path": "in/a b.pdf"}
	ran := 0
	p.executor.run = func(_ context.Context, req executor.Request) (executor.Result, error) {
		ran++
		if !req.Internal || req.Network || req.Services != nil || req.Persistent || req.Background || req.Session != "s" || req.Runner != "python" ||
			req.Timeout <= 0 || req.Timeout.Seconds() > 30 || len(req.Env) != 1 || req.Env["PDF"] != "/data/in/a b.pdf" {
			t.Errorf("asked for %+v", req)
		}
		return executor.Result{Stdout: []byte("[page 1]\nHello\n"), ExitCode: 1}, nil // it may end early
	}
	if items, hasBytes := read(args); len(items) != 3 || items[1] != "[page 1]\nHello" || items[2] != "application/pdf "+pdf || hasBytes || ran != 1 {
		t.Errorf("%q", items)
	}
	if items, hasBytes := read(with(args, "encoding", "base64")); len(items) != 1 || !hasBytes || ran != 1 {
		t.Errorf("base64: %q, %d runs", items, ran)
	}
	if plain, _ := compact(t, p.call(t, "read_artifact", mustJSON(args))); !strings.Contains(plain, "content_base64") || strings.Contains(plain, "Hello") || ran != 1 {
		t.Errorf("a plain caller: %s, %d runs", plain, ran)
	}
	for what, run := range map[string]func(context.Context, executor.Request) (executor.Result, error){
		"no text": func(context.Context, executor.Request) (executor.Result, error) {
			return executor.Result{ExitCode: 1}, nil
		},
		"busy": func(context.Context, executor.Request) (executor.Result, error) {
			return executor.Result{}, &executor.Error{Code: executor.CodeSessionBusy, Message: "Wait."}
		},
		"a failure": func(context.Context, executor.Request) (executor.Result, error) {
			return executor.Result{}, errors.New("x")
		},
	} {
		p.executor.run = run
		if items, hasBytes := read(args); len(items) != 1 || !hasBytes {
			t.Errorf("%s: %q", what, items)
		}
	}
	// A file that is only called so is text, and no code runs.
	p.executor.artifact.Content, ran = []byte("text"), 0
	if items, _ := read(args); len(items) != 2 || items[1] != "text" || ran != 0 {
		t.Errorf("not a PDF: %q", items)
	}
}

// TestLinksEnd: the instructions of a server that ends with its client say that its links do, too.
func TestLinksEnd(t *testing.T) {
	const said = "Download links work only while this server runs."
	if got := tools.Instructions(tools.Options{LinksEnd: true}); !strings.HasSuffix(got, said) || len(strings.Fields(got)) >= 120 {
		t.Errorf("%d words: %s", len(strings.Fields(got)), got)
	}
	if got := tools.Instructions(tools.Options{}); strings.Contains(got, said) {
		t.Error(got)
	}
}

// TestRestart: restart reaches the executor, for a session only.
func TestRestart(t *testing.T) {
	p := newProduct(t)
	for args, want := range map[string]bool{
		`{"env":"python","code":"1","session":"s","restart":true}`: true, `{"env":"python","code":"1","session":"s"}`: false,
		`{"env":"python","code":"1","restart":true}`: false,
	} {
		if p.call(t, "run", args); p.executor.request.Restart != want {
			t.Errorf("%s: %+v", args, p.executor.request)
		}
	}
	if got := p.call(t, "run", `{"env":"python","code":"1","session":"s","restart":"yes"}`); !strings.Contains(got, "restart must be a boolean") {
		t.Error(got)
	}
}
