//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// reply is curl's answer.
type reply struct {
	status int
	header http.Header
	body   string
}

// curl runs curl with its own defaults. stdin is for @- and the like.
func curl(t *testing.T, stdin string, args ...string) reply {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		skip(t, "curl is not installed")
	}
	cmd := exec.CommandContext(t.Context(), "curl", append([]string{"-q", "-sS", "-i", "--raw", "--noproxy", "*", "--max-time", "60"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("curl %q: %v %s", args, err, stderr.String())
	}
	r := bufio.NewReader(bytes.NewReader(out))
	request := &http.Request{Method: http.MethodGet}
	if slices.Contains(args, "-I") {
		request.Method = http.MethodHead
	}
	for {
		resp, err := http.ReadResponse(r, request)
		if err != nil {
			t.Fatalf("curl %q: %v in %q", args, err, out)
		}
		if resp.StatusCode < 200 {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("curl %q: %v in %q", args, err, out)
		}
		return reply{resp.StatusCode, resp.Header, string(body)}
	}
}

// send posts a message to /mcp with curl.
func (s *server) send(t *testing.T, body string, args ...string) reply {
	t.Helper()
	return curl(t, body, append([]string{"-H", "Authorization: Bearer " + s.Token, "--data-binary", "@-", s.URL + "/mcp"}, args...)...)
}

// callers are the headers with which plain callers send the same request.
var callers = map[string][]string{
	"as the contract says": {"-H", "Content-Type: application/json"},
	"n8n":                  {"-H", "Content-Type: application/json", "-H", "Accept: application/json,text/html,application/xhtml+xml,application/xml,text/*;q=0.9, image/*;q=0.8, */*;q=0.7"},
	"curl's own headers":   nil,
	"no headers":           {"-H", "Accept:", "-H", "Content-Type:"},
}

// An exchange is a contract's request and its answer. In the answer, "*" matches any string. A
// "text" that is not a string matches the JSON in the text, which may have further members.
type exchange struct {
	name, request, answer string
}

const plot = `import matplotlib.pyplot as plt\nimport numpy as np\n\nx = np.linspace(0, 10, 100)\ny = np.sin(x)\n\nplt.plot(x, y)\nplt.savefig('/data/plot.png')\nprint('Plot saved!')`

// exchanges are all examples of contract 2 and of contract 1's section 7. The session's name is a
// parameter, because each caller has its own.
var exchanges = []exchange{
	{"initialize", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05","clientInfo":{"name":"client-name","version":"1.0.0"}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2024-11-05","serverInfo":{"name":"mcp-code-sandbox","version":"*"},"capabilities":{"tools":{}}}}`},
	{"initialize as n8n", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2024-11-05","serverInfo":{"name":"mcp-code-sandbox","version":"*"},"capabilities":{"tools":{}}}}`},
	{"upload_file", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"upload_file","arguments":{"conversationId":"SESSION","filename":"data.csv","content":"bmFtZSxhZ2UKQWxpY2UsMzAKQm9iLDI1"}}}`,
		`{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":{"success":true,"message":"File 'data.csv' uploaded successfully (24 bytes)","file":{"name":"data.csv","url":"*"}}}]}}`},
	{"run_code", `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"run_code","arguments":{"conversationId":"SESSION","language":"python","code":"` + plot + `","network":false,"environment":{"API_KEY":"secret-value"}}}}`,
		`{"jsonrpc":"2.0","id":4,"result":{"content":[{"type":"text","text":{"success":true,"output":"Plot saved!\n","files":[{"name":"plot.png","url":"*"},{"name":"data.csv","url":"*"}]}}]}}`},
	{"list_runners", `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"list_runners","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":5,"result":{"content":[{"type":"text","text":{"languages":[{"language":"python","image":"IMAGE:python"},{"language":"typescript","image":"IMAGE:typescript"},{"language":"javascript","image":"IMAGE:javascript"},{"language":"shell","image":"IMAGE:shell"}]}}]}}`},
	{"error", `{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"run_code","arguments":{"language":"python","code":"print(1)"}}}`,
		`{"jsonrpc":"2.0","id":5,"error":{"code":-32602,"message":"conversationId is required","data":null}}`},
	{"contract 1's request", `{"jsonrpc":"2.0","id":"some-id","method":"tools/call","params":{"name":"sandbox.run_code","arguments":{"conversationId":"SESSION-1","language":"python","code":"print('hello')"}}}`,
		`{"jsonrpc":"2.0","id":"some-id","result":{"content":[{"type":"text","text":{"success":true,"output":"hello\n","files":[]}}]}}`},
	{"contract 1's failure", `{"jsonrpc":"2.0","id":"some-id","method":"tools/call","params":{"name":"sandbox.run_code","arguments":{"conversationId":"SESSION-1","language":"shell","code":"echo out; echo err >&2; exit 3"}}}`,
		`{"jsonrpc":"2.0","id":"some-id","result":{"content":[{"type":"text","text":{"success":false,"output":"out\n\nerr\n","files":[]}}]}}`},
	{"contract 1's list_runners", `{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"sandbox.list_runners"}}`,
		`{"jsonrpc":"2.0","id":6,"result":{"content":[{"type":"text","text":{"languages":[{"language":"python","image":"*"},{"language":"typescript","image":"*"},{"language":"javascript","image":"*"},{"language":"shell","image":"*"}]}}]}}`},
	{"n8n's run", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"sandbox.run_code","arguments":{"conversationId":"SESSION-2","language":"typescript","code":"const n: number = 6; console.log(n * 7)"}}}`,
		`{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":{"success":true,"output":"42\n","files":[]}}]}}`},
	{"unknown method", `{"jsonrpc":"2.0","id":9,"method":"tools/destroy"}`, `{"jsonrpc":"2.0","id":9,"error":{"code":-32601,"message":"*"}}`},
	{"unknown tool", `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"destroy"}}`, `{"jsonrpc":"2.0","id":9,"error":{"code":-32602,"message":"*"}}`},
	{"no request", `{"jsonrpc":"1.0","id":9,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":9,"error":{"code":-32600,"message":"*"}}`},
	{"no JSON", `{"jsonrpc":`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"*"}}`},
}

// images are the names of the runners on the backend.
var images = func() *strings.Replacer {
	if onDocker() {
		return strings.NewReplacer("IMAGE:python", "runner-python", "IMAGE:typescript", "runner-typescript", "IMAGE:javascript", "runner-typescript", "IMAGE:shell", "runner-python")
	}
	return strings.NewReplacer("IMAGE:", "jail:")
}()

// TestContractWithCurl sends every example with the real curl, as different plain callers do.
func TestContractWithCurl(t *testing.T) {
	const secret = "a secret for links"
	s := serve(t, "FILE_SECRET="+secret)
	number := 0
	for caller, headers := range callers {
		session := fmt.Sprintf("user-123-session-%d", number)
		number++
		t.Run(caller, func(t *testing.T) {
			for _, e := range exchanges {
				r := s.send(t, strings.ReplaceAll(e.request, "SESSION", session), headers...)
				if ct := r.header.Get("Content-Type"); ct != "application/json" {
					t.Errorf("%s: Content-Type is %q", e.name, ct)
				}
				var want, got any
				if err := json.Unmarshal([]byte(images.Replace(e.answer)), &want); err != nil {
					t.Fatalf("%s: %v", e.name, err)
				}
				if err := json.Unmarshal([]byte(r.body), &got); err != nil {
					t.Errorf("%s: %v in %s", e.name, err, r.body)
					continue
				}
				if d := difference("answer", want, got, false); d != "" {
					t.Errorf("%s: %s\n%s", e.name, d, r.body)
				}
			}
			checkTools(t, s.send(t, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, headers...))

			// The links of contract 1, made by its formula.
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write([]byte(session + "/plot.png"))
			link := fmt.Sprintf("%s/files/%s/plot.png?sig=%s", s.URL, session, hex.EncodeToString(mac.Sum(nil)))
			if r := curl(t, "", link); r.status != http.StatusOK || !strings.HasPrefix(r.body, "\x89PNG") || r.header.Get("Content-Type") != "image/png" {
				t.Errorf("GET of the plot: %d %v", r.status, r.header)
			}
		})
	}
}

// difference describes where got differs from want, or is empty. Within a text, members that the
// contract does not know are fine.
func difference(path string, want, got any, more bool) string {
	switch want := want.(type) {
	case map[string]any:
		if text, ok := got.(string); ok && strings.HasSuffix(path, ".text") {
			var inner any
			if err := json.Unmarshal([]byte(text), &inner); err != nil {
				return fmt.Sprintf("%s: %v", path, err)
			}
			if !strings.HasPrefix(text, "{\n  \"") {
				return path + " is not indented as the contract's"
			}
			got, more = inner, true
		}
		object, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is %v, want an object", path, got)
		}
		for k, w := range want {
			g, ok := object[k]
			if !ok {
				return fmt.Sprintf("%s.%s is missing", path, k)
			}
			if d := difference(path+"."+k, w, g, more); d != "" {
				return d
			}
		}
		for k, g := range object {
			if _, ok := want[k]; !ok && !more && !(k == "data" && g == nil) { // every error may have "data": null
				return fmt.Sprintf("%s.%s is not in the contract", path, k)
			}
		}
	case []any:
		list, ok := got.([]any)
		if !ok || len(list) != len(want) {
			return fmt.Sprintf("%s is %v, want %d items", path, got, len(want))
		}
		for i := range want {
			if d := difference(fmt.Sprintf("%s[%d]", path, i), want[i], list[i], more); d != "" {
				return d
			}
		}
	default:
		if text, ok := got.(string); want == "*" && ok && text != "" {
			return ""
		}
		if got != want {
			return fmt.Sprintf("%s is %v, want %v", path, got, want)
		}
	}
	return ""
}

// checkTools compares tools/list with contract 2: its schemas must be complete, except for
// arguments that the tools no longer require.
func checkTools(t *testing.T, r reply) {
	t.Helper()
	var listed struct {
		ID     int
		Result struct {
			Tools []struct {
				Name, Description string
				InputSchema       struct {
					Type       string
					Properties map[string]struct {
						Type                 string
						Description          string
						Enum                 []string
						AdditionalProperties map[string]any
					}
					Required []string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(r.body), &listed); err != nil || listed.ID != 2 {
		t.Fatalf("tools/list: %v in %s", err, r.body)
	}
	wants := map[string]struct {
		properties map[string]string
		required   []string
	}{
		"upload_file":  {map[string]string{"conversationId": "string", "filename": "string", "content": "string"}, []string{"filename"}},
		"run_code":     {map[string]string{"conversationId": "string", "language": "string", "code": "string", "network": "boolean", "environment": "object"}, []string{"conversationId", "language", "code"}},
		"list_runners": {},
	}
	for _, tool := range listed.Result.Tools {
		want, ok := wants[tool.Name]
		if !ok {
			continue
		}
		delete(wants, tool.Name)
		if tool.Description == "" || tool.InputSchema.Type != "object" || !slices.Equal(tool.InputSchema.Required, want.required) {
			t.Errorf("tools/list: %+v", tool)
		}
		for name, kind := range want.properties {
			if p := tool.InputSchema.Properties[name]; p.Type != kind || p.Description == "" {
				t.Errorf("tools/list: %s.%s is %+v", tool.Name, name, p)
			}
		}
		if tool.Name != "run_code" {
			continue
		}
		if got := tool.InputSchema.Properties["language"].Enum; !slices.Equal(got, []string{"python", "typescript", "javascript", "shell"}) {
			t.Errorf("the languages are %v", got)
		}
		if got := tool.InputSchema.Properties["environment"].AdditionalProperties["type"]; got != "string" {
			t.Errorf("the environment's values are of type %v", got)
		}
		for _, part := range []string{"Supports: [python, typescript, javascript, shell]", "\n\nAvailable libraries:\n- python: [", "\n- typescript: [postgres, pg, csv-parser, papaparse, zod, lodash, date-fns, cheerio]", "psycopg2"} {
			if !strings.Contains(tool.Description, part) {
				t.Errorf("run_code's description lacks %q:\n%s", part, tool.Description)
			}
		}
	}
	if len(wants) > 0 {
		t.Errorf("tools/list lacks %v", wants)
	}
}

// TestDoorsWithCurl checks who gets in, and what others are told.
func TestDoorsWithCurl(t *testing.T) {
	s := serve(t)
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	token := "Authorization: Bearer " + s.Token
	for _, c := range []struct {
		name      string
		args      []string
		status    int
		challenge string
		body      string // part of it
	}{
		{name: "no token", args: []string{"-d", list, s.URL + "/mcp"}, status: 401, challenge: "Bearer", body: "Authorization"},
		{name: "wrong token", args: []string{"-d", list, "-H", "Authorization: Bearer nonsense", s.URL + "/mcp"}, status: 401, challenge: `error="invalid_token"`},
		{name: "token by Basic", args: []string{"-d", list, "-u", "user:" + s.Token, s.URL + "/mcp"}, status: 401, challenge: "Bearer"},
		{name: "token in the query", args: []string{"-d", list, s.URL + "/mcp?token=" + s.Token}, status: 401, challenge: "Bearer"},
		{name: "stream without a token", args: []string{s.URL + "/mcp"}, status: 401, challenge: "Bearer"},
		{name: "events without a token", args: []string{s.URL + "/mcp/events"}, status: 401, challenge: "Bearer"},
		{name: "metrics without a token", args: []string{s.URL + "/metrics"}, status: 401, challenge: "Bearer"},
		{name: "foreign host", args: []string{"-d", list, "-H", token, "-H", "Host: evil.example.com", s.URL + "/mcp"}, status: 403, body: "SANDBOX_ALLOWED_HOSTS"},
		{name: "foreign origin", args: []string{"-d", list, "-H", token, "-H", "Origin: https://evil.example.com", s.URL + "/mcp"}, status: 403, body: "SANDBOX_ALLOWED_ORIGINS"},
		{name: "own origin", args: []string{"-d", list, "-H", token, "-H", "Origin: " + s.URL, s.URL + "/mcp"}, status: 200, body: "run_code"},
		{name: "asked for a stream", args: []string{"-d", list, "-H", token, "-H", "Accept: application/json, text/event-stream", s.URL + "/mcp"}, status: 200, body: "data: {"},
		{name: "other path", args: []string{"-H", token, s.URL + "/nothing"}, status: 404},
		{name: "other method", args: []string{"-X", "PATCH", "-H", token, s.URL + "/mcp"}, status: 405},
		{name: "health", args: []string{s.URL + "/healthz"}, status: 200},
		{name: "readiness", args: []string{s.URL + "/readyz"}, status: 200},
		{name: "metrics", args: []string{"-H", token, s.URL + "/metrics"}, status: 200, body: "sandbox_"},
		{name: "page", args: []string{s.URL + "/"}, status: 200, body: "<html"},
	} {
		r := curl(t, "", c.args...)
		if r.status != c.status || !strings.Contains(r.header.Get("WWW-Authenticate"), c.challenge) || !strings.Contains(r.body, c.body) {
			t.Errorf("%s: %d %v %.300s", c.name, r.status, r.header, r.body)
		}
	}
}

// TestFilesWithCurl checks signed links, and upload links that work once.
func TestFilesWithCurl(t *testing.T) {
	s := serve(t)
	made := s.run(t, "files", "shell", "printf 0123456789 > digits.txt; mkdir sub; echo deep > 'sub/a b.txt'; ln -s /etc/hostname link; mkfifo pipe")
	links := map[string]string{}
	for _, f := range made.Files {
		links[f.Name] = f.URL
	}
	digits, deep := links["digits.txt"], links["sub/a b.txt"]
	if len(links) != 2 || digits == "" || deep == "" {
		t.Fatalf("the files are %v", links)
	}
	if r := curl(t, "", "-I", digits); r.status != 200 || r.header.Get("Content-Length") != "10" || r.body != "" || r.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("HEAD: %+v", r)
	}
	for _, c := range []struct {
		name, link string
		args       []string
		status     int
		body       string
	}{
		{name: "whole", link: digits, status: 200, body: "0123456789"},
		{name: "range", link: digits, args: []string{"-r", "2-4"}, status: 206, body: "234"},
		{name: "end", link: digits, args: []string{"-r", "-3"}, status: 206, body: "789"},
		{name: "beyond", link: digits, args: []string{"-r", "50-60"}, status: 416},
		{name: "sub-directory", link: deep, status: 200, body: "deep\n"},
		{name: "sub-directory, escaped slash", link: strings.Replace(deep, "/sub/", "/sub%2F", 1), status: 200, body: "deep\n"},
		{name: "no signature", link: strings.Split(digits, "?")[0], status: 403},
		{name: "another's signature", link: strings.Split(digits, "?")[0] + "?" + strings.Split(deep, "?")[1], status: 403},
		{name: "missing, unsigned", link: s.URL + "/files/files/none.txt?sig=00", status: 403},
		{name: "upload by a download link", link: digits, args: []string{"-T", "-"}, status: 403},
		{name: "deletion", link: digits, args: []string{"-X", "DELETE"}, status: 405},
	} {
		r := curl(t, "", append(c.args, "--path-as-is", c.link)...)
		if r.status != c.status || c.body != "" && r.body != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.name, r.status, r.body, c.status, c.body)
		}
	}
	s.run(t, "files", "shell", "rm digits.txt; ln -s 'sub/a b.txt' digits.txt")
	if r := curl(t, "", digits); r.status != http.StatusNotFound {
		t.Errorf("a link in place of the file gives %d", r.status)
	}
	s.run(t, "files", "shell", "rm digits.txt")
	if r := curl(t, "", digits); r.status != http.StatusNotFound {
		t.Errorf("a removed file gives %d", r.status)
	}

	var offer struct {
		URL  string `json:"upload_url"`
		Curl string `json:"curl"`
	}
	ask := func(name string) {
		t.Helper()
		res := s.call(t, "upload_file", map[string]any{"conversationId": "files", "filename": name})
		if len(res.Content) != 1 || json.Unmarshal([]byte(res.Content[0].Text), &offer) != nil || offer.URL == "" {
			t.Fatalf("upload_file without content: %+v", res)
		}
	}
	dir := t.TempDir()
	content := string(madeBytes())
	if err := os.WriteFile(filepath.Join(dir, "big.bin"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	ask("up/big.bin")
	if r := curl(t, "", "-T", filepath.Join(dir, "big.bin"), offer.URL); r.status != http.StatusCreated {
		t.Errorf("the upload link gives %d %s", r.status, r.body)
	} else {
		var uploaded struct{ URL string }
		if err := json.Unmarshal([]byte(r.body), &uploaded); err != nil {
			t.Fatal(err)
		}
		if r := curl(t, "", uploaded.URL); r.body != content {
			t.Error("what was uploaded comes back different")
		}
	}
	if r := curl(t, "", "-T", filepath.Join(dir, "big.bin"), offer.URL); r.status != http.StatusGone && r.status != http.StatusForbidden {
		t.Errorf("the upload link, used again, gives %d %s", r.status, r.body)
	}
	if r := s.run(t, "files", "shell", "wc -c < up/big.bin"); r.Output != "70000\n" {
		t.Errorf("the uploaded file: %+v", r)
	}
	// The command line that the model passes on works as it is.
	ask("big.bin")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", offer.Curl)
	cmd.Dir, cmd.Env = dir, append(baseEnv(), "no_proxy=*")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", offer.Curl, err, out)
	}
	if r := s.run(t, "files", "shell", "cmp big.bin up/big.bin && echo same"); r.Output != "same\n" {
		t.Errorf("the uploaded file: %+v", r)
	}
}

// TestEventsWithCurl checks that both event streams start at once and send heartbeats.
func TestEventsWithCurl(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		skip(t, "curl is not installed")
	}
	s := serve(t)
	for _, c := range []struct {
		name, path string
		args       []string
	}{
		{"stream", "/mcp", []string{"-H", "Accept: text/event-stream"}},
		{"stream with curl's own headers", "/mcp", nil},
		{"events", "/mcp/events", []string{"-H", "Accept: text/event-stream"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, "curl", append([]string{"-q", "-sS", "-N", "-i", "--raw", "--noproxy", "*", "-H", "Authorization: Bearer " + s.Token, s.URL + c.path}, c.args...)...)
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			resp, err := http.ReadResponse(bufio.NewReader(stdout), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" || resp.Header.Get("X-Accel-Buffering") != "no" {
				t.Errorf("the stream starts with %d %v", resp.StatusCode, resp.Header)
			}
			if wait := time.Since(start); wait > 10*time.Second {
				t.Errorf("the stream starts after %v", wait)
			}
			for sc := bufio.NewScanner(resp.Body); ; {
				if !sc.Scan() {
					t.Fatalf("the stream ends without a heartbeat: %v", errors.Join(sc.Err(), ctx.Err()))
				}
				if sc.Text() == ": heartbeat" {
					break
				}
			}
			cancel()
			_ = cmd.Wait() // it was killed
		})
	}
}
