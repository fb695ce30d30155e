package mcpserver

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

const call = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"a":1}}}`

// TestMalformed sends invalid requests. Every answer is a JSON-RPC error, with the request's id if
// it has one.
func TestMalformed(t *testing.T) {
	f := newFixture(t, Config{MaxBodyBytes: 1 << 20})
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct {
		name, body string
		status     int
		code       int
		id         string
		message    string // part of the message
	}{
		{"empty body", ``, 400, -32600, "null", "empty"},
		{"blank body", " \n", 400, -32600, "null", "empty"},
		{"not JSON", `hello`, 400, -32700, "null", "parse error"},
		{"truncated", `{"jsonrpc":"2.0","id":1,"method":"tools/li`, 400, -32700, "null", "unexpected end"},
		{"truncated after a value", `{"jsonrpc":"2.0","id":1`, 400, -32700, "null", "unexpected end"},
		{"trailing data", `{"jsonrpc":"2.0","id":1,"method":"ping"} x`, 400, -32700, "null", "after the message"},
		{"two messages", `{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`, 400, -32700, "null", "after the message"},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", 400, -32700, "null", "UTF-8"},
		{"a number", `42`, 400, -32600, "null", "object"},
		{"a string", `"ping"`, 400, -32600, "null", "object"},
		{"null", `null`, 400, -32600, "null", "object"},
		{"empty object", `{}`, 400, -32600, "null", "jsonrpc"},
		{"no tag", `{"id":1,"method":"ping"}`, 400, -32600, "1", "jsonrpc"},
		{"tag 1.0", `{"jsonrpc":"1.0","id":1,"method":"ping"}`, 400, -32600, "1", "jsonrpc"},
		{"tag as a number", `{"jsonrpc":2.0,"id":1,"method":"ping"}`, 400, -32600, "1", "jsonrpc"},
		{"folded case", `{"JSONRPC":"2.0","Id":1,"Method":"ping"}`, 400, -32600, "null", "jsonrpc"},
		{"no method", `{"jsonrpc":"2.0","id":1}`, 400, -32600, "1", "method"},
		{"method null", `{"jsonrpc":"2.0","id":1,"method":null}`, 400, -32600, "1", "method"},
		{"method a number", `{"jsonrpc":"2.0","id":1,"method":5}`, 400, -32600, "1", "method"},
		{"method empty", `{"jsonrpc":"2.0","id":1,"method":""}`, 400, -32600, "1", "method"},
		{"unknown method", `{"jsonrpc":"2.0","id":"x","method":"tools/nope"}`, 200, -32601, `"x"`, "tools/nope"},
		{"method of a newer version", `{"jsonrpc":"2.0","id":1,"method":"server/discover"}`, 200, -32601, "1", "method not found"},
		{"parked method of a newer version", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{}}`, 200, -32601, "1", "method not found"},
		{"unknown tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nope"}}`, 200, -32602, "1", "nope"},
		{"notification with an id", `{"jsonrpc":"2.0","id":1,"method":"notifications/initialized"}`, 400, -32600, "1", "no id"},
		{"call without an id", `{"jsonrpc":"2.0","method":"tools/list"}`, 400, -32600, "null", "id"},
		{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, 400, -32600, "null", "id"},
		{"id true", `{"jsonrpc":"2.0","id":true,"method":"ping"}`, 400, -32600, "null", "id"},
		{"id an object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, 400, -32600, "null", "id"},
		{"id an array", `{"jsonrpc":"2.0","id":[1],"method":"ping"}`, 400, -32600, "null", "id"},
		{"id a fraction", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, 400, -32600, "1.5", "id"},
		{"id huge", `{"jsonrpc":"2.0","id":12345678901234567890,"method":"ping"}`, 400, -32600, "12345678901234567890", "id"},
		{"id beyond a float", `{"jsonrpc":"2.0","id":1e400,"method":"ping"}`, 400, -32600, "1e400", "id"},
		{"id too long", `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 5000) + `","method":"ping"}`, 400, -32600, "null", "id"},
		{"no params", `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, 200, -32602, "1", "params is required"},
		{"params null", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}`, 200, -32602, "1", "params is required"},
		{"params an array", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}`, 200, -32602, "1", "params must be an object"},
		{"params a string", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"x"}`, 200, -32602, "1", "params must be an object"},
		{"name a number", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}`, 200, -32602, "1", "params.name must be a string, not a number"},
		{"meta a string", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":"x"}}`, 200, -32602, "1", "params._meta must be an object, not a string"},
		{"initialize without params", `{"jsonrpc":"2.0","id":1,"method":"initialize"}`, 200, -32602, "1", "params is required"},
		{"initialize with a wrong type", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":5}}`, 200, -32602, "1", "params.protocolVersion must be a string"},
		{"deep nesting", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":` + deep(2000) + `}}}`, 400, -32600, "1", "depth"},
		{"very deep nesting", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + deep(100000) + `}`, 400, -32700, "null", "depth"},
		{"many members", `{"jsonrpc":"2.0","id":1,"method":"ping"` + strings.Repeat(`,"a":1`, 100) + `}`, 400, -32600, "null", "members"},
		{"empty batch", `[]`, 400, -32600, "null", "empty"},
		{"truncated batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"},`, 400, -32700, "null", "unexpected end"},
		{"large batch", `[` + strings.Repeat(`1,`, 200) + `1]`, 400, -32600, "null", "at most 100"},
		{"too large", strings.Repeat(" ", 1<<20) + call, 413, -32600, "null", "larger than 1048576"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := f.post(t, tt.body)
			var got struct {
				JSONRPC string
				ID      json.RawMessage
				Error   *struct {
					Code    int
					Message string
					Data    json.RawMessage
				}
			}
			if err := json.Unmarshal([]byte(answer), &got); err != nil || got.Error == nil {
				t.Fatalf("status %d, not a JSON-RPC error: %.300s", status, answer)
			}
			if status != tt.status || got.Error.Code != tt.code || string(got.ID) != tt.id || got.JSONRPC != "2.0" {
				t.Errorf("got status %d, %s; want status %d, code %d, id %s", status, answer, tt.status, tt.code, tt.id)
			}
			if !strings.Contains(got.Error.Message, tt.message) || len(got.Error.Message) > 400 {
				t.Errorf("message %q; want a short one with %q", got.Error.Message, tt.message)
			}
		})
	}
	// After all that, the server still works.
	if status, answer := f.post(t, call); status != 200 || !strings.Contains(answer, `{\"a\":1}`) {
		t.Errorf("status %d: %s", status, answer)
	}
}

// TestChunkedBody covers bodies of unknown length.
func TestChunkedBody(t *testing.T) {
	f := newFixture(t, Config{MaxBodyBytes: 2 << 20})
	for _, tt := range []struct {
		padding, status int
	}{{100, 200}, {1200 << 10, 200}, {2 << 20, 413}} {
		body := io.MultiReader(strings.NewReader(strings.Repeat(" ", tt.padding)), iotest.OneByteReader(strings.NewReader(call)))
		req, err := http.NewRequestWithContext(t.Context(), "POST", f.url, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer local")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != tt.status || !json.Valid(answer) {
			t.Errorf("padding %d: status %d, want %d: %.200s (%v)", tt.padding, resp.StatusCode, tt.status, answer, err)
		}
	}
	// The leases of large bodies were released.
	if s := f.large.Stats(); s.Used != 0 {
		t.Errorf("room for large bodies was not given back: %+v", s)
	}
}

// TestPlainCallers: a simple client gets one JSON object, whatever headers it sends.
func TestPlainCallers(t *testing.T) {
	f := newFixture(t, Config{})
	for _, headers := range [][]string{
		nil, // curl -d
		{"Accept: application/json", "Content-Type: application/json"},
		{"Accept: ", "Content-Type: "},
		{"Accept: text/html", "Content-Type: text/plain"},
		{"Accept: application/json,text/html,application/xhtml+xml,*/*;q=0.9"},
		{"Accept: application/json, text/event-stream;q=0"},
		{"Accept: */*", "Mcp-Protocol-Version: 2025-06-18"},
	} {
		resp := f.do(t, "POST", f.url, call, headers...)
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"{\"a\":1}"}]}}`
		if resp.StatusCode != 200 || string(got) != want || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: status %d, type %q\n got %s\nwant %s", headers, resp.StatusCode, resp.Header.Get("Content-Type"), got, want)
		}
	}
	// A client that asks for a stream gets one, with headers that stop proxies from buffering it.
	resp := f.do(t, "POST", f.url, call, "Accept: application/json, text/event-stream")
	got, _ := io.ReadAll(resp.Body)
	if !strings.HasPrefix(string(got), "event: message\ndata: {") || resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers %v, body %s", resp.Header, got)
	}
}

// TestInitializePlain is contract 2's first example: no capabilities, no clientInfo.
func TestInitializePlain(t *testing.T) {
	f := newFixture(t, Config{})
	_, got := f.post(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}`)
	want := `{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tools":{}},"protocolVersion":"2024-11-05","serverInfo":{"name":"mcp-code-sandbox","version":"1.0.0"}}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestNotificationsAndResponses(t *testing.T) {
	f := newFixture(t, Config{})
	session := f.initialize(t, "2025-06-18")
	for _, headers := range [][]string{nil, {session}} {
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/of-the-future","params":[1]}`,
			`{"jsonrpc":"2.0","method":"of-the-future"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`,
			`{"jsonrpc":"2.0","id":5,"result":{}}`,
			`{"jsonrpc":"2.0","id":5,"error":{"code":1,"message":"x"}}`,
			`[{"jsonrpc":"2.0","method":"notifications/initialized"}]`,
		} {
			if status, answer := f.post(t, body, headers...); status != 202 || answer != "" {
				t.Errorf("%s %s: status %d, %q; want 202 and nothing", headers, body, status, answer)
			}
		}
	}
}

func TestBatch(t *testing.T) {
	f := newFixture(t, Config{})
	_, answer := f.post(t, `[`+call+`,5,{"jsonrpc":"2.0","method":"notifications/initialized"},`+
		`{"jsonrpc":"2.0","id":"p","method":"ping"},{"jsonrpc":"2.0","id":"q","method":"nope"},`+call+`,{"jsonrpc":"2.0","id":3,"method":"initialize","params":{"protocolVersion":"2025-03-26"}}]`)
	var got []struct {
		ID     json.RawMessage
		Result json.RawMessage
		Error  *struct{ Code int }
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	outcome := make(map[string][]int)
	for _, r := range got {
		code := 0
		if r.Error != nil {
			code = r.Error.Code
		}
		outcome[string(r.ID)] = append(outcome[string(r.ID)], code)
	}
	want := map[string][]int{"null": {-32600}, `"q"`: {-32601}, "7": {-32600, 0}, "3": {-32600}, `"p"`: {0}}
	if a, b := mustJSON(t, outcome), mustJSON(t, want); a != b {
		t.Errorf("codes by id: got %s, want %s\n%s", a, b, answer)
	}
	// Versions from 2025-06-18 on have no batches.
	status, answer := f.post(t, `[`+call+`]`, "Mcp-Protocol-Version: 2025-06-18")
	if status != 400 || !strings.Contains(answer, `-32600`) {
		t.Errorf("status %d: %s", status, answer)
	}
}

func mustJSON(t *testing.T, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestHandlerFailures: a handler that panics or fails ends only its own request, and the client
// learns no details.
func TestHandlerFailures(t *testing.T) {
	f := newFixture(t, Config{})
	for _, tool := range []string{"panic", "fail"} {
		status, answer := f.post(t, strings.Replace(call, "echo", tool, 1))
		if status != 200 || !strings.Contains(answer, `"code":-32603`) || strings.Contains(answer, "secret") {
			t.Errorf("%s: status %d: %s", tool, status, answer)
		}
	}
}

func TestHTTPRefusals(t *testing.T) {
	f := newFixture(t, Config{})
	session := f.initialize(t, "2025-11-25")
	tests := []struct {
		method, url, body string
		headers           []string
		status            int
		allow             string
	}{
		{"PUT", "/mcp", call, nil, 405, "GET, POST, DELETE"},
		{"POST", "/mcp/events", call, nil, 405, "GET"},
		{"GET", "/mcp", "", []string{"Mcp-Protocol-Version: 2026-07-28"}, 405, "POST"},
		{"DELETE", "/mcp", "", []string{"Mcp-Protocol-Version: 2026-07-28", session}, 405, "POST"},
		{"DELETE", "/mcp", "", nil, 400, ""},
		{"DELETE", "/mcp", "", []string{"Mcp-Session-Id: nope"}, 404, ""},
		{"POST", "/mcp", call, []string{"Mcp-Session-Id: nope"}, 404, ""},
		{"GET", "/mcp", "", []string{"Mcp-Session-Id: nope"}, 404, ""},
		{"POST", "/mcp", call, []string{"Mcp-Protocol-Version: 1999-01-01"}, 400, ""},
		{"POST", "/mcp", call, []string{"Content-Encoding: gzip"}, 415, ""},
		{"GET", "/mcp", "", []string{"Accept: application/json"}, 406, ""},
		// Another user's session is inaccessible.
		{"POST", "/mcp", call, []string{session, "Authorization: Bearer mallory"}, 403, ""},
		{"GET", "/mcp", "", []string{session, "Authorization: Bearer mallory"}, 403, ""},
		{"DELETE", "/mcp", "", []string{session, "Authorization: Bearer mallory"}, 403, ""},
	}
	for _, tt := range tests {
		resp := f.do(t, tt.method, strings.TrimSuffix(f.url, "/mcp")+tt.url, tt.body, tt.headers...)
		answer, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != tt.status || resp.Header.Get("Allow") != tt.allow || !strings.Contains(string(answer), `"error":{"code":-32`) {
			t.Errorf("%s %s %q: status %d, Allow %q, %s; want %d, %q and a JSON-RPC error",
				tt.method, tt.url, tt.headers, resp.StatusCode, resp.Header.Get("Allow"), answer, tt.status, tt.allow)
		}
	}
	// The owner's session still works.
	if status, answer := f.post(t, call, session); status != 200 {
		t.Errorf("status %d: %s", status, answer)
	}
}

// TestCancel: a call ends soon after its client leaves, in any of several ways.
func TestCancel(t *testing.T) {
	const wait = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait"}}`
	const modern = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	sse := "Accept: application/json, text/event-stream"
	tests := []struct {
		name    string
		session bool
		body    string
		headers []string
		cancel  func(t *testing.T, f *fixture, session string) // nil: the connection is closed
	}{
		{"connection of a plain caller", false, wait, nil, nil},
		{"stream without a session", false, wait, []string{sse, "Mcp-Protocol-Version: 2025-06-18"}, nil},
		{"connection in a session", true, wait, nil, nil},
		{"stream in a session", true, wait, []string{sse}, nil},
		{"stream of 2026-07-28", false, modern, []string{sse, "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: wait"}, nil},
		{"notification", true, wait, []string{sse}, func(t *testing.T, f *fixture, session string) {
			if status, _ := f.post(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, session); status != 202 {
				t.Errorf("status %d", status)
			}
		}},
		{"end of the session", true, wait, []string{sse}, func(t *testing.T, f *fixture, session string) {
			if resp := f.do(t, "DELETE", f.url, "", session); resp.StatusCode != 204 {
				t.Errorf("status %d", resp.StatusCode)
			}
		}},
		{"shutdown", false, wait, nil, func(t *testing.T, f *fixture, _ string) {
			if err := f.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, Config{})
			headers, session := tt.headers, ""
			if tt.session {
				session = f.initialize(t, "2025-11-25")
				headers = append(headers, session)
			}
			ctx, hangUp := context.WithCancel(t.Context())
			defer hangUp()
			req, err := http.NewRequestWithContext(ctx, "POST", f.url, strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer local")
			for _, h := range headers {
				name, value, _ := strings.Cut(h, ": ")
				req.Header.Set(name, value)
			}
			answered := make(chan error, 1)
			go func() {
				resp, err := http.DefaultClient.Do(req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				answered <- err
			}()
			soon(t, f.started)
			if tt.cancel != nil {
				tt.cancel(t, f, session)
			} else {
				hangUp()
			}
			if cause := soon(t, f.ended); cause == nil {
				t.Error("the call ended without a cause")
			}
			soon(t, answered)
		})
	}
}

// TestProgress: notifications reach a streaming client in order and before the answer. Other
// clients get only the answer.
func TestProgress(t *testing.T) {
	f := newFixture(t, Config{})
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"progress","_meta":{"progressToken":"p"}}}`
	resp := f.do(t, "POST", f.url, body, "Accept: text/event-stream")
	r := bufio.NewReader(resp.Body)
	isData := func(s string) bool { return strings.HasPrefix(s, "data: ") }
	for i := 1; i <= 3; i++ {
		if s := line(t, r, isData); !strings.Contains(s, `"notifications/progress"`) || !strings.Contains(s, `"progress":`+string(rune('0'+i))) {
			t.Errorf("notification %d: %s", i, s)
		}
	}
	if s := line(t, r, isData); !strings.Contains(s, `"text":"done"`) {
		t.Errorf("answer: %s", s)
	}
	if _, answer := f.post(t, body); answer != `{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"done"}]}}` {
		t.Errorf("plain caller: %s", answer)
	}
}

func TestHeartbeats(t *testing.T) {
	f := newFixture(t, Config{Heartbeat: time.Millisecond})
	session := f.initialize(t, "2025-11-25")
	isBeat := func(s string) bool { return s == ": heartbeat" }
	for _, tt := range []struct {
		path    string
		headers []string
	}{
		{"/mcp", nil},
		{"/mcp", []string{"Accept: "}},
		{"/mcp", []string{"Accept: text/event-stream", session}},
		{"/mcp/events", []string{"Last-Event-ID: x_1"}},
	} {
		resp := f.do(t, "GET", strings.TrimSuffix(f.url, "/mcp")+tt.path, "", tt.headers...)
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" {
			t.Fatalf("%s %q: status %d, headers %v", tt.path, tt.headers, resp.StatusCode, h)
		}
		r := bufio.NewReader(resp.Body)
		line(t, r, isBeat)
		line(t, r, isBeat)
		resp.Body.Close()
	}
	// Heartbeats keep a long call alive before its first output.
	resp := f.do(t, "POST", f.url, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work"}}`, "Accept: text/event-stream", session)
	r := bufio.NewReader(resp.Body)
	line(t, r, isBeat)
	close(f.release)
	if s := line(t, r, func(s string) bool { return strings.HasPrefix(s, "data: ") }); !strings.Contains(s, `"id":1`) {
		t.Errorf("answer: %s", s)
	}
}

// TestLateStatus: an error after the first heartbeat becomes an event.
func TestLateStatus(t *testing.T) {
	w := httptest.NewRecorder()
	r := newReply(w, true)
	r.beatLocked()
	r.Header().Set("Content-Type", "application/json")
	r.WriteHeader(400)
	r.Write([]byte(`{"jsonrpc":"2.0"}`))
	r.finish(message{})
	if got, want := w.Body.String(), ": heartbeat\n\nevent: message\ndata: {\"jsonrpc\":\"2.0\"}\n\n"; got != want || w.Code != 200 {
		t.Errorf("status %d, body %q; want 200, %q", w.Code, got, want)
	}
}

// TestLargeAnswer: the Python SDK refuses events over 1 MiB, so a large answer becomes the JSON
// body if nothing was sent before it.
func TestLargeAnswer(t *testing.T) {
	f := newFixture(t, Config{Heartbeat: time.Hour}) // so that none precedes the answer
	session := f.initialize(t, "2025-11-25")
	for _, tt := range []struct {
		size    int
		headers []string
		want    string
	}{
		{100, nil, "text/event-stream"},
		{2 << 20, nil, "application/json"},
		{100, []string{session}, "text/event-stream"},
		{2 << 20, []string{session}, "application/json"},
	} {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"` + strings.Repeat("x", tt.size) + `"}}}`
		resp := f.do(t, "POST", f.url, body, append(tt.headers, "Accept: application/json, text/event-stream")...)
		got, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || len(got) < tt.size || !strings.HasPrefix(resp.Header.Get("Content-Type"), tt.want) {
			t.Errorf("%d bytes, headers %q: status %d, %s, %d bytes, %v; want %s",
				tt.size, tt.headers, resp.StatusCode, resp.Header.Get("Content-Type"), len(got), err, tt.want)
		}
	}
}
