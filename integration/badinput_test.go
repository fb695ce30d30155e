//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// answer calls a tool and describes the outcome in one line: "-32602 message" for a JSON-RPC error,
// "code: message" for a refusal, "result: text" otherwise.
func (s *server) answer(t *testing.T, tool string, args map[string]any) string {
	t.Helper()
	res := s.call(t, tool, args)
	if res.Error != nil {
		return fmt.Sprintf("%d %s", res.Error.Code, res.Error.Message)
	}
	if len(res.Content) != 1 || res.Content[0].Type != "text" {
		t.Fatalf("%s: a plain caller gets exactly one text item, not %+v", tool, res.Content)
	}
	text := res.Content[0].Text
	var refusal struct{ Error, Message string }
	if err := json.Unmarshal([]byte(text), &refusal); err != nil {
		t.Fatalf("%s: %v in %s", tool, err, text)
	}
	if res.IsError != (refusal.Error != "") {
		t.Errorf("%s: isError is %t in %s", tool, res.IsError, text)
	}
	if refusal.Error != "" {
		return refusal.Error + ": " + refusal.Message
	}
	return "result: " + text
}

// TestBadArguments checks that each wrong argument gets a short answer that says what is wrong, and
// that no session is created.
func TestBadArguments(t *testing.T) {
	s := serve(t, "SANDBOX_NETWORK=off", "SANDBOX_MAX_UPLOAD_BYTES=2MB")
	sessions := func() int {
		dirs, err := os.ReadDir(s.Root)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, d := range dirs {
			if len(d.Name()) == 64 {
				n++
			}
		}
		return n
	}
	type args = map[string]any
	long := strings.Repeat("x", 1<<20)
	const secret = "value-of-the-environment"
	tests := []struct {
		name string
		args args // over those of a call that works
		want string
	}{
		{"no id", args{"conversationId": nil}, "-32602 conversationId is required"},
		{"empty id", args{"conversationId": ""}, "-32602 conversationId is required"},
		{"id a number", args{"conversationId": 5}, "-32602 conversationId must be a string"},
		{"id a list", args{"conversationId": []string{"a"}}, "-32602 conversationId must be a string"},
		{"id too long", args{"conversationId": strings.Repeat("x", 129)}, "invalid_id: "},
		{"id far too long", args{"conversationId": long}, "invalid_id: "},
		{"id too long in characters", args{"conversationId": strings.Repeat("ü", 129)}, "invalid_id: "},
		{"id a dot", args{"conversationId": "."}, "invalid_id: "},
		{"id two dots", args{"conversationId": ".."}, "invalid_id: "},
		{"id a path", args{"conversationId": "../../etc"}, "invalid_id: "},
		{"id with a backslash", args{"conversationId": `..\x`}, "invalid_id: "},
		{"id with a space", args{"conversationId": "a b"}, "invalid_id: "},
		{"id with a NUL", args{"conversationId": "a\x00b"}, "invalid_id: "},
		{"id with a newline", args{"conversationId": "a\n[MCP] forged"}, "invalid_id: "},
		{"id with an override", args{"conversationId": "a\u202eb"}, "invalid_id: "},
		{"id with a zero width", args{"conversationId": "a\u200bb"}, "invalid_id: "},
		{"id with a tilde first", args{"conversationId": "~" + strings.Repeat("0", 64)}, "invalid_id: "},

		{"no language", args{"language": nil}, "-32602 language is required"},
		{"empty language", args{"language": ""}, "-32602 language is required"},
		{"language a bool", args{"language": true}, "-32602 language must be a string"},
		{"unknown language", args{"language": "cobol"}, "[python, typescript, javascript, shell]"},
		{"language a path", args{"language": "../python"}, "Unknown language"},
		{"language far too long", args{"language": long}, "Unknown language"},
		{"language with a NUL", args{"language": "python\x00"}, "Unknown language"},

		{"no code", args{"code": nil}, "-32602 code is required"},
		{"code a list", args{"code": []int{1}}, "-32602 code must be a string"},
		{"code too large", args{"code": strings.Repeat("#", 100<<10+1)}, "code_too_large: "},
		{"code far too large", args{"code": strings.Repeat("#", 3<<20)}, "code_too_large: "},

		{"network a string", args{"network": "yes"}, "-32602 network must be a boolean"},
		{"network where there is none", args{"network": true}, "network_denied: "},

		{"environment a list", args{"environment": []string{"A=" + secret}}, "-32602 environment must be an object whose values are strings"},
		{"environment of numbers", args{"environment": args{"A": 1}}, "-32602 environment must be an object whose values are strings"},
		{"environment of nulls", args{"environment": args{"A": nil}}, "-32602 environment must be an object whose values are strings"},
		{"name with an equals sign", args{"environment": args{"A=B": secret}}, "invalid_environment: "},
		{"name with a NUL", args{"environment": args{"A\x00B": secret}}, "invalid_environment: "},
		{"name with a newline", args{"environment": args{"A\nB": secret}}, "invalid_environment: "},
		{"name empty", args{"environment": args{"": secret}}, "invalid_environment: "},
		{"name a number", args{"environment": args{"1A": secret}}, "invalid_environment: "},
		{"name far too long", args{"environment": args{strings.Repeat("A", 100_000): secret}}, "invalid_environment: "},
		{"value with a NUL", args{"environment": args{"A": secret + "\x00"}}, "invalid_environment: "},
		{"value of 1 MB", args{"environment": args{"A": long[:1<<20-100]}}, "invalid_environment: "},
		{"value of 3 MB", args{"environment": args{"A": strings.Repeat("x", 3<<20)}}, "-32602 environment is too large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			call := args{"conversationId": "bad", "language": "python", "code": "print(1)"}
			for k, v := range tt.args {
				call[k] = v
				if v == nil {
					delete(call, k)
				}
			}
			got := s.answer(t, "run_code", call)
			if !strings.Contains(got, tt.want) || len(got) > 600 || !utf8.ValidString(got) {
				t.Errorf("got %.600q, want %q", got, tt.want)
			}
			if strings.Contains(got, secret) || strings.ContainsAny(got, "\x00\u202e\u200b") {
				t.Errorf("the answer repeats what it must not: %q", got)
			}
		})
	}
	t.Run("upload_file", func(t *testing.T) {
		b64 := base64.StdEncoding.EncodeToString
		for _, tt := range []struct {
			name string
			args args
			want string
		}{
			{"no name", args{"filename": nil}, "-32602 filename is required"},
			{"name a number", args{"filename": 7}, "-32602 filename must be a string"},
			{"content a number", args{"content": 7}, "-32602 content must be a string"},
			{"two contents", args{"content_base64": "eA=="}, "-32602 content and content_base64"},
			{"two ids", args{"session_id": "other"}, "-32602 conversationId and session_id"},
			{"overwrite a string", args{"overwrite": "yes"}, "-32602 overwrite must be a boolean"},
			{"not base64", args{"content": "this is not base64!"}, "invalid_base64: "},
			{"base64 with a NUL", args{"content": "aGk\x00"}, "invalid_base64: "},
			{"base64 with bad padding", args{"content": "a==="}, "invalid_base64: "},
			{"base64 cut off", args{"content": "aGVsb"}, "invalid_base64: "},
			{"one byte too many", args{"content": b64(make([]byte, 2<<20+1))}, "file_too_large: "},
			{"bad id", args{"conversationId": "a/b"}, "invalid_id: "},
			{"bad id for a link", args{"conversationId": "a/b", "content": nil}, "invalid_id: "},
		} {
			t.Run(tt.name, func(t *testing.T) {
				call := args{"conversationId": "bad", "filename": "f.txt", "content": "aGVsbG8="}
				for k, v := range tt.args {
					call[k] = v
					if v == nil {
						delete(call, k)
					}
				}
				if got := s.answer(t, "upload_file", call); !strings.Contains(got, tt.want) || len(got) > 600 {
					t.Errorf("got %.600q, want %q", got, tt.want)
				}
			})
		}
	})
	// A body larger than any upload is not read at all.
	head := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + s.Token + "\r\nContent-Length: 8388608\r\n\r\n{"
	if got := s.raw(t, head); !strings.HasPrefix(got, "HTTP/1.1 413") || !strings.Contains(got, "SANDBOX_MAX_UPLOAD_BYTES") {
		t.Errorf("a request of 8 MB: %.300s", got)
	}
	if n := sessions(); n > 1 { // an upload that is too large has been refused in the session "bad"
		t.Errorf("%d sessions were made", n)
	}
	// At the edge of the limits everything works.
	for _, tt := range []args{
		{"conversationId": strings.Repeat("ü", 128)},
		{"conversationId": "-rf"},
		{"conversationId": "a%2fb?c#d&e"},
		{"conversationId": "<script>"},
		{"conversationId": "日本語"},
		{"code": "print(1)\n" + strings.Repeat("#", 100<<10-9)},
		{"environment": args{"A": strings.Repeat("x", 100<<10)}},
		{"unknown": long},
	} {
		call := args{"conversationId": "good", "language": "python", "code": "print(1)"}
		for k, v := range tt {
			call[k] = v
		}
		if got := s.answer(t, "run_code", call); !strings.Contains(got, `"output": "1\n"`) {
			t.Errorf("%.100v: %.300s", tt, got)
		}
	}
	for _, id := range []string{"a%2fb?c#d&e", "-rf", "日本語", "<script>", "a;b", "...", strings.Repeat("ü", 128)} {
		r := s.run(t, id, "shell", "echo mine > f")
		if len(r.Files) != 1 {
			t.Fatalf("%q: %+v", id, r)
		}
		if status, body := s.fetch(t, http.MethodGet, r.Files[0].URL, nil); status != http.StatusOK || string(body) != "mine\n" {
			t.Errorf("the file of session %q at %s: %d %s", id, r.Files[0].URL, status, body)
		}
	}
	for _, line := range []string{secret, "forged"} {
		if strings.Contains(s.log.String(), line) {
			t.Errorf("the log has %q", line)
		}
	}
}

// TestOddCode runs code with bytes that no program should contain or print.
func TestOddCode(t *testing.T) {
	s := serve(t)
	for _, p := range []program{
		{name: "NUL in Python", language: "python", code: "print(1)\x00", fails: true, exitCode: 1, contains: []string{"null bytes"}},
		{name: "NUL in TypeScript", language: "typescript", code: "console.log(1)\x00", fails: true, exitCode: 1, contains: []string{"ERROR"}},
		{name: "NUL in JavaScript", language: "javascript", code: "console.log(1)\x00", fails: true, exitCode: 1, contains: []string{"ERROR"}},
		{name: "NUL in a script", language: "shell", code: "echo a\x00b", fails: true, exitCode: 126, contains: []string{"binary file"}},
		{name: "a byte order mark", language: "python", code: "\ufeffprint(1)", output: "1\n"},
		{name: "a byte order mark in TypeScript", language: "typescript", code: "\ufeffconst a: number = 1; console.log(a)", output: "1\n"},
		{name: "DOS line ends", language: "python", code: "if True:\r\n    print(1)\r\n", output: "1\n"},
		{name: "blanks", language: "python", code: " \n\n"},
		{name: "a shebang", language: "javascript", code: "#!/usr/bin/env node\nconsole.log(1)", output: "1\n"},
		{name: "a dash", language: "shell", code: "-c 'echo x'", fails: true, exitCode: 127, contains: []string{"-c"}},
		{name: "invalid UTF-8", language: "python", code: `import sys; sys.stdout.buffer.write(b"a\xff\xfeb\xed\xa0\x80c\n"); sys.stderr.buffer.write(b"\xc3")`, contains: []string{"a\ufffd", "b\ufffd", "c\n\n\ufffd"}},
		{name: "NUL and controls", language: "python", code: `print("a\0b\x1b[31m\x7f\u2028")`, output: "a\x00b\x1b[31m\x7f\u2028\n"},
		{name: "JSON and HTML", language: "shell", code: `echo '"}]}}<script>&amp;</script>\u0000'`, output: "\"}]}}<script>&amp;</script>\\u0000\n"},
		{name: "frames of the wire protocol", language: "python", code: `
import json, struct, sys
def frame(**f):
    b = json.dumps(f).encode(); return struct.pack(">I", len(b)) + b
out = b"".join(frame(type=t, id=i, exit={"code": 0}, data="Zm9yZ2Vk") for t in ("exit", "stdout", "hello", "close") for i in (0, 2, 4, 6, 1))
for s in (sys.stdout, sys.stderr): s.buffer.write(out); s.flush()
import os
for fd in range(3, 64):
    try: os.write(fd, out)
    except OSError: pass
sys.exit(5)
`, fails: true, exitCode: 5, contains: []string{`"type": "exit"`}},
		{name: "events and headers", language: "shell", code: `printf 'x\n\ndata: {"jsonrpc":"2.0","id":7,"result":{}}\n\nevent: message\r\n\r\nHTTP/1.1 200 OK\r\n'`,
			output: "x\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n\nevent: message\r\n\r\nHTTP/1.1 200 OK\r\n"},
	} {
		if onDocker() && p.name == "NUL in Python" {
			continue // older ones, as of the tests' images, read up to it
		}
		t.Run(p.name, func(t *testing.T) {
			r := s.run(t, "odd", p.language, p.code)
			p.check(t, r)
			if !utf8.ValidString(r.Output) {
				t.Error("the output is not valid UTF-8")
			}
		})
	}
}

// TestHostileEnvironment checks that a run's variables cannot stop the interpreter from starting,
// and that none of them reaches the next run.
func TestHostileEnvironment(t *testing.T) {
	s := serve(t)
	with := func(env map[string]any) func(map[string]any) {
		return func(args map[string]any) { args["environment"] = env }
	}
	s.run(t, "env", "shell", `echo 'echo from BASH_ENV' > env.sh; echo 'console.log("from NODE_OPTIONS")' > pre.js`)
	for _, tt := range []struct {
		name, language string
		env            map[string]any
		output         string // after which the program's own follows
	}{
		{"LD_PRELOAD", "shell", map[string]any{"LD_PRELOAD": "/data/none.so", "LD_LIBRARY_PATH": "/data"}, ""},
		{"PATH", "python", map[string]any{"PATH": "/nowhere"}, ""},
		{"PATH empty", "typescript", map[string]any{"PATH": ""}, ""},
		{"HOME and TMPDIR", "typescript", map[string]any{"HOME": "/proc", "TMPDIR": "/nowhere", "TMP": "/", "PWD": "/etc"}, ""},
		{"PYTHONHOME is the program's own trouble", "shell", map[string]any{"PYTHONHOME": "/nowhere", "PYTHONPATH": "/proc", "PYTHONSTARTUP": "/data/env.sh"}, ""},
		{"BASH_ENV", "shell", map[string]any{"BASH_ENV": "/data/env.sh"}, "from BASH_ENV\n"},
		{"NODE_OPTIONS", "javascript", map[string]any{"NODE_OPTIONS": "--require /data/pre.js"}, "from NODE_OPTIONS\n"},
		{"the server's settings", "shell", map[string]any{"SANDBOX_ROOT": "/", "MCP_API_TOKEN": "x", "FILE_SECRET": "x"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code := map[string]string{"shell": "echo 1", "python": "print(1)", "typescript": "console.log(1)", "javascript": "console.log(1)"}[tt.language]
			r := s.run(t, "env", tt.language, code, with(tt.env))
			if !r.Success || !strings.HasPrefix(r.Output, tt.output+"1\n") {
				t.Errorf("%+v", r)
			}
			if r := s.run(t, "env", "shell", "env"); strings.Contains(r.Output, "nowhere") || strings.Contains(r.Output, "/data/none.so") || strings.Contains(r.Output, "ENV=") || strings.Contains(r.Output, "OPTIONS") || strings.Contains(r.Output, "MCP_") {
				t.Errorf("the next run has %s", r.Output)
			}
		})
	}
	// No run sees the server's environment.
	for _, language := range []string{"shell", "python"} {
		code := map[string]string{"shell": "cat /proc/*/environ /proc/self/environ", "python": "import os; print(os.environ)"}[language]
		if r := s.run(t, "env", language, code); strings.Contains(r.Output, s.Token) || strings.Contains(r.Output, "MCP_") || strings.Contains(r.Output, s.Root) {
			t.Errorf("%s sees %s", language, r.Output)
		}
	}
}

// TestMalformedRequests sends what is not JSON-RPC, and what is not HTTP. mcpserver's own table has
// every kind of malformed message; here each family meets the whole server.
func TestMalformedRequests(t *testing.T) {
	s := serve(t)
	deep := func(open, shut string, n int) string { return strings.Repeat(open, n) + strings.Repeat(shut, n) }
	for _, tt := range []struct {
		name, body string
		status     int
		code       int
		id         string
	}{
		{"empty", ``, 400, -32600, "null"},
		{"not JSON", `<xml/>`, 400, -32700, "null"},
		{"cut off", `{"jsonrpc":"2.0","id":1,"meth`, 400, -32700, "null"},
		{"NUL bytes", "\x00\x00\x00", 400, -32700, "null"},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"run_code\xff\"}}", 400, -32700, "null"},
		{"two messages", `{"jsonrpc":"2.0","id":1,"method":"ping"}{}`, 400, -32700, "null"},
		{"a scalar", `7`, 400, -32600, "null"},
		{"no version", `{"id":"a","method":"ping"}`, 400, -32600, `"a"`},
		{"no method", `{"jsonrpc":"2.0","id":3}`, 400, -32600, "3"},
		{"method a list", `{"jsonrpc":"2.0","id":3,"method":["ping"]}`, 400, -32600, "3"},
		{"id an object", `{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}`, 400, -32600, "null"},
		{"id of 100 KB", `{"jsonrpc":"2.0","id":"` + strings.Repeat("9", 100_000) + `","method":"ping"}`, 400, -32600, "null"},
		{"unknown method", `{"jsonrpc":"2.0","id":3,"method":"__proto__"}`, 200, -32601, "3"},
		{"method of 1 MB", `{"jsonrpc":"2.0","id":3,"method":"` + strings.Repeat("m", 1<<20) + `"}`, 200, -32601, "3"},
		{"params a list", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":[]}`, 200, -32602, "3"},
		{"no tool", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{}}`, 200, -32602, "3"},
		{"unknown tool", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"rm -rf","arguments":{}}}`, 200, -32602, "3"},
		{"a name twice prefixed", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"sandbox.sandbox.run_code","arguments":{}}}`, 200, -32602, "3"},
		{"arguments a list", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_code","arguments":[1]}}`, 200, -32602, "3"},
		{"arguments a string", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_code","arguments":"x"}}`, 200, -32602, "3"},
		{"no arguments", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_code"}}`, 200, -32602, "3"},
		{"arguments 100 000 deep", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_code","arguments":` + deep("[", "]", 100_000) + `}}`, 400, -32700, "null"},
		{"objects 1 000 000 deep", deep(`{"a":`, `}`, 1_000_000), 400, -32700, "null"},
		{"open brackets", strings.Repeat("[", 1<<20), 400, -32700, "null"},
		{"empty batch", `[]`, 400, -32600, "null"},
		{"a batch of everything", `[` + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, 5000) + `1]`, 400, -32600, "null"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := s.post(t, tt.body)
			var got struct {
				JSONRPC string
				ID      json.RawMessage
				Result  json.RawMessage
				Error   *struct {
					Code    int
					Message string
				}
			}
			if err := json.Unmarshal(answer, &got); err != nil || got.Error == nil || got.Result != nil || got.JSONRPC != "2.0" {
				t.Fatalf("status %d, no JSON-RPC error: %.300s", status, answer)
			}
			if status != tt.status || got.Error.Code != tt.code || string(got.ID) != tt.id || got.Error.Message == "" || len(answer) > 1000 {
				t.Errorf("status %d: %.1000s; want status %d, code %d, id %s", status, answer, tt.status, tt.code, tt.id)
			}
		})
	}

	auth := "Authorization: Bearer " + s.Token + "\r\n"
	for _, tt := range []struct {
		name, request string
		want          string // how the status line begins; empty: the connection is just closed
	}{
		{"no HTTP", "hello\r\n\r\n", "HTTP/1.1 400"},
		{"binary", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "HTTP/1.1 400"},
		{"no Host", "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400"},
		{"two lengths", "POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "HTTP/1.1 400"},
		{"a negative length", "POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Length: -1\r\n\r\n{}", "HTTP/1.1 400"},
		{"a length of 10 GB", "POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Length: 10737418240\r\n\r\n{}", "HTTP/1.1 413"},
		{"a length of 10 GB, no token", "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10737418240\r\n\r\n{}", "HTTP/1.1 401"},
		{"bad chunks", "POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\nZZZ\r\n{}\r\n", "HTTP/1.1 400"},
		{"compressed", "POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", "HTTP/1.1 415"},
		{"a header of 1 MB", "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "HTTP/1.1 431"},
		{"another method", "PATCH /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n", "HTTP/1.1 405"},
		{"TRACE", "TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 405"},
		{"CONNECT", "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n", "HTTP/1.1 40"},
		{"an absolute address", "GET http://169.254.169.254/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 403"},
		{"a path out of the page", "GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 "},
		{"HTTP/2 by prior knowledge", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := s.raw(t, tt.request)
			if !strings.HasPrefix(got, tt.want) || strings.Contains(got, "root:") || strings.HasPrefix(got, "HTTP/1.1 500") {
				t.Errorf("got %.500q, want %q", got, tt.want)
			}
		})
	}
	if r := s.run(t, "after", "shell", "echo ok"); r.Output != "ok\n" {
		t.Errorf("afterwards: %+v", r)
	}
	if strings.Contains(s.log.String(), "panic") {
		t.Error("the log tells of a panic")
	}
}

// raw sends bytes and returns what the server answers before it closes the connection or falls
// silent.
func (s *server) raw(t *testing.T, request string) string {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(15 * time.Second))
	go io.WriteString(conn, request) // the server may stop reading at any point
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // a closed connection also counts as the end
	return fmt.Sprintf("HTTP/1.1 %s\n%s", resp.Status, body)
}

// TestDoors checks that requests without a token, from a foreign page or for a foreign host name
// are refused.
func TestDoors(t *testing.T) {
	s := serve(t)
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	token := "Authorization: Bearer " + s.Token
	file := s.run(t, "doors", "shell", "echo hi > f.txt").Files[0].URL
	for _, tt := range []struct {
		name, method, url string
		headers           []string
		want              int
	}{
		{"token", "POST", "/mcp", []string{token}, 200},
		{"scheme in capitals", "POST", "/mcp", []string{"Authorization: BEARER " + s.Token}, 200},
		{"no token", "POST", "/mcp", nil, 401},
		{"no token for events", "GET", "/mcp/events", nil, 401},
		{"no token for the stream", "GET", "/mcp", nil, 401},
		{"no token to end a session", "DELETE", "/mcp", []string{"Mcp-Session-Id: x"}, 401},
		{"no token for metrics", "GET", "/metrics", nil, 401},
		{"wrong token", "POST", "/mcp", []string{"Authorization: Bearer wrong"}, 401},
		{"empty token", "POST", "/mcp", []string{"Authorization: Bearer "}, 401},
		{"a part of the token", "POST", "/mcp", []string{token[:len(token)-1]}, 401},
		{"more than the token", "POST", "/mcp", []string{token + "x"}, 401},
		{"another scheme", "POST", "/mcp", []string{"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(s.Token+":"))}, 401},
		{"no scheme", "POST", "/mcp", []string{"Authorization: " + s.Token}, 401},
		{"two headers", "POST", "/mcp", []string{"Authorization: Bearer wrong", token}, 401},
		{"token in the query", "POST", "/mcp?token=" + s.Token + "&access_token=" + s.Token, nil, 401},
		{"token in a cookie", "POST", "/mcp", []string{"Cookie: token=" + s.Token}, 401},

		{"foreign name", "POST", "/mcp", []string{token, "Host: evil.example"}, 403},
		{"foreign name for a file", "GET", file, []string{"Host: evil.example"}, 403},
		{"foreign name for the page", "GET", "/", []string{"Host: evil.example"}, 403},
		{"a name that begins like ours", "POST", "/mcp", []string{token, "Host: 127.0.0.1.evil.example"}, 403},
		{"a name that ends like ours", "POST", "/mcp", []string{token, "Host: evil-localhost"}, 403},
		{"an address of all", "POST", "/mcp", []string{token, "Host: 0.0.0.0"}, 403},
		{"our other name", "POST", "/mcp", []string{token, "Host: localhost:1"}, 200},
		{"health by any name", "GET", "/healthz", []string{"Host: evil.example"}, 200},

		{"foreign page", "POST", "/mcp", []string{token, "Origin: https://evil.example"}, 403},
		{"foreign page for a file", "GET", file, []string{"Origin: https://evil.example"}, 403},
		{"a page without an origin", "POST", "/mcp", []string{token, "Origin: null"}, 403},
		{"a page that begins like ours", "POST", "/mcp", []string{token, "Origin: http://localhost.evil.example"}, 403},
		{"a page with our name as user", "POST", "/mcp", []string{token, "Origin: http://localhost@evil.example"}, 403},
		{"one of two pages", "POST", "/mcp", []string{token, "Origin: http://localhost", "Origin: https://evil.example"}, 403},
		{"our own page", "POST", "/mcp", []string{token, "Origin: " + s.URL}, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address := tt.url
			if !strings.HasPrefix(address, "http") {
				address = s.URL + address
			}
			status, body := s.fetch(t, tt.method, address, []byte(ping), tt.headers...)
			if status != tt.want {
				t.Errorf("%d %.300s, want %d", status, body, tt.want)
			}
			if bytes.Contains(body, []byte(s.Token)) {
				t.Errorf("the answer has the token in it: %s", body)
			}
		})
	}
	resp, err := http.Post(s.URL+"/mcp", "application/json", strings.NewReader(ping))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if c := resp.Header.Get("WWW-Authenticate"); !strings.HasPrefix(c, "Bearer ") {
		t.Errorf("the challenge is %q", c)
	}
	if strings.Contains(s.log.String(), s.Token) {
		t.Error("the log has the token in it")
	}
}
