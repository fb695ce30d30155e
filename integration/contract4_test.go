//go:build linux

package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// artifact and pythonResult are contract 4's types with our additions.
type artifact struct {
	Path        string `json:"path"`
	Filename    string `json:"filename"`
	SizeBytes   int64  `json:"size_bytes"`
	MIMEType    string `json:"mime_type"`
	DownloadURL string `json:"download_url"`
}

type pythonResult struct {
	SessionID       string     `json:"session_id"`
	RunID           string     `json:"run_id"`
	ExitCode        int        `json:"exit_code"`
	Stdout          string     `json:"stdout"`
	Stderr          string     `json:"stderr"`
	StdoutTruncated bool       `json:"stdout_truncated"`
	StderrTruncated bool       `json:"stderr_truncated"`
	Artifacts       []artifact `json:"artifacts"`
	DurationMS      int64      `json:"duration_ms"`
	Cause           string     `json:"cause"`
	Blocked         []any      `json:"blocked"`
	Hint            string     `json:"hint"`
}

// ask calls a tool as a plain caller and decodes its JSON result, in which every field must be
// known.
func (s *server) ask(t *testing.T, tool string, args map[string]any, into any) {
	t.Helper()
	text, ok := strings.CutPrefix(s.answer(t, tool, args), "result: ")
	if !ok {
		t.Fatalf("%s: %s", tool, text)
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%s: %v in %s", tool, err, text)
	}
}

func (s *server) python(t *testing.T, session, code string) (r pythonResult) {
	t.Helper()
	s.ask(t, "run_python", map[string]any{"session_id": session, "code": code}, &r)
	return r
}

// list lists a session's files as name=type.
func (s *server) list(t *testing.T, session string) string {
	t.Helper()
	var r struct {
		Artifacts []artifact `json:"artifacts"`
		SessionID string     `json:"session_id"`
	}
	s.ask(t, "list_artifacts", map[string]any{"session_id": session}, &r)
	var list []string
	for _, a := range r.Artifacts {
		list = append(list, strings.TrimPrefix(a.Path, "/mnt/data/")+"="+a.MIMEType)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func (s *server) upload(t *testing.T, session, name, content string) {
	t.Helper()
	got := s.answer(t, "upload_file", map[string]any{"session_id": session, "filename": name, "content_base64": base64.StdEncoding.EncodeToString([]byte(content))})
	if !strings.Contains(got, `"path": "/mnt/data/`+name+`"`) || !strings.Contains(got, `"session_id": "`+session+`"`) {
		t.Fatalf("upload_file: %s", got)
	}
}

// later is answer for a slow call.
func (s *server) later(t *testing.T, tool string, args map[string]any) <-chan string {
	answer := make(chan string, 1)
	go func() { answer <- s.answer(t, tool, args) }()
	return answer
}

// TestStages checks the test criteria of contract 4's stages 0 to 2 and 4. Stage 3 is
// TestMarketingExample; the tests after it are stage 5.
func TestStages(t *testing.T) {
	s := serve(t)

	// Stage 0: the five tools exist.
	var listed struct {
		Result struct {
			Tools []struct {
				Name        string
				Description string
				InputSchema struct {
					Required   []string
					Properties map[string]struct{ Type string }
				}
			}
		}
	}
	if _, body := s.post(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); json.Unmarshal(body, &listed) != nil {
		t.Fatalf("%s", body)
	}
	tools := map[string]string{}
	for _, tool := range listed.Result.Tools {
		if tool.InputSchema.Properties["session_id"].Type == "string" {
			tools[tool.Name] = strings.Join(tool.InputSchema.Required, " ")
		}
		if tool.Name == "run_python" && !strings.Contains(tool.Description, "reportlab") {
			t.Errorf("run_python: %s", tool.Description)
		}
	}
	if want := map[string]string{"upload_file": "filename", "run_python": "code", "read_artifact": "session_id path",
		"list_artifacts": "session_id", "close_session": "session_id", "delete_file": "session_id filename"}; !maps.Equal(tools, want) {
		t.Errorf("tools with a session_id: %v, want %v", tools, want)
	}

	// Stage 1: a run in a session that the server names, then another in the same session.
	text := strings.TrimPrefix(s.answer(t, "run_python", map[string]any{"code": "print(2+2)"}), "result: ")
	var fields map[string]any
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(slices.Sorted(maps.Keys(fields)), " "); got != "artifacts duration_ms exit_code run_id session_id stderr stderr_truncated stdout stdout_truncated" {
		t.Errorf("run_python has the fields %s", got)
	}
	if fields["exit_code"] != 0.0 || fields["stdout"] != "4\n" || fields["stderr"] != "" || fields["stdout_truncated"] != false || len(fields["artifacts"].([]any)) != 0 {
		t.Errorf("run_python: %s", text)
	}
	for field, pattern := range map[string]string{"session_id": `^sess_[0-9a-f]{12}$`, "run_id": `^run_\d{8}T\d{6}Z_[0-9a-f]{4}$`} {
		if v, _ := fields[field].(string); !regexp.MustCompile(pattern).MatchString(v) {
			t.Errorf("%s is %q", field, v)
		}
	}
	if r := s.python(t, "err", "import sys\nprint('out')\nraise KeyError('sales_amount')"); r.ExitCode != 1 || r.Stdout != "out\n" ||
		!strings.HasSuffix(r.Stderr, "KeyError: 'sales_amount'\n") || r.Artifacts == nil || len(r.Artifacts) != 0 || r.SessionID != "err" {
		t.Errorf("a failing run: %+v", r)
	}

	// Stage 2: upload, process, discover, read.
	s.upload(t, "files", "sales.csv", "month,amount\n1,10\n2,25\n")
	if got, want := s.answer(t, "upload_file", map[string]any{"session_id": "files", "filename": "sales.csv", "content_base64": "eA=="}),
		"file_exists: sales.csv already exists. Set overwrite=true to replace."; got != want {
		t.Errorf("a second upload: %s", got)
	}
	r := s.python(t, "files", `
import os, pandas as pd, matplotlib.pyplot as plt
df = pd.read_csv("/mnt/data/sales.csv")
df.plot(x="month", y="amount")
plt.savefig("/mnt/data/chart.png")
os.makedirs("out"); df.describe().to_excel("out/summary.xlsx"); os.rename("sales.csv", "renamed.csv")
open("/tmp/not-kept", "w").close()
print(df.amount.sum())`)
	var made []string
	for _, a := range r.Artifacts {
		made = append(made, a.Path+" "+a.Filename+" "+a.MIMEType)
	}
	slices.Sort(made)
	if want := []string{"/mnt/data/chart.png chart.png image/png", "/mnt/data/out/summary.xlsx summary.xlsx application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
		"/mnt/data/renamed.csv renamed.csv text/csv"}; r.Stdout != "35\n" || !slices.Equal(made, want) {
		t.Fatalf("the run: %+v\nmade %q, want %q", r, made, want)
	}
	if r := s.python(t, "files", "open('/mnt/data/renamed.csv', 'a').write('3,7\\n'); print(open('/mnt/data/chart.png','rb').read(4))"); len(r.Artifacts) != 1 || r.Artifacts[0].Filename != "renamed.csv" {
		t.Errorf("a run that changes one file: %+v", r)
	}
	if r := s.python(t, "files", "open('late.txt', 'w').close(); raise SystemExit(3)"); r.ExitCode != 3 || len(r.Artifacts) != 0 {
		t.Errorf("a run that fails: %+v", r)
	}
	if got, want := s.list(t, "files"), "chart.png=image/png late.txt=text/plain out/summary.xlsx=application/vnd.openxmlformats-officedocument.spreadsheetml.sheet renamed.csv=text/csv"; got != want {
		t.Errorf("list_artifacts: %s, want %s", got, want)
	}
	var png []byte
	for _, path := range []string{"/mnt/data/chart.png", "/data/chart.png", "/workspace/chart.png", "chart.png"} {
		var read struct {
			Path      string `json:"path"`
			Filename  string `json:"filename"`
			MIMEType  string `json:"mime_type"`
			SizeBytes int    `json:"size_bytes"`
			Content   []byte `json:"content_base64"`
			SessionID string `json:"session_id"`
		}
		s.ask(t, "read_artifact", map[string]any{"session_id": "files", "path": path}, &read)
		png = read.Content
		if read.Path != "/mnt/data/chart.png" || read.Filename != "chart.png" || read.MIMEType != "image/png" || read.SizeBytes != len(png) || !bytes.HasPrefix(png, []byte("\x89PNG")) {
			t.Errorf("read_artifact %s: %d bytes, %+v", path, len(png), read)
		}
	}

	// Stage 4: the link returns the file.
	chart := r.Artifacts[slices.IndexFunc(r.Artifacts, func(a artifact) bool { return a.Filename == "chart.png" })]
	resp, err := http.Get(chart.DownloadURL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if _, body := s.fetch(t, http.MethodGet, chart.DownloadURL, nil); !bytes.Equal(body, png) || resp.Header.Get("Content-Type") != "image/png" || chart.SizeBytes != int64(len(png)) {
		t.Errorf("%s: %d bytes of %s, %d were read", chart.DownloadURL, len(body), resp.Header.Get("Content-Type"), len(png))
	}
}

// TestMarketingExample is stage 3: a real client runs the example over stdio, with an error, its
// correction and a PDF.
func TestMarketingExample(t *testing.T) {
	python := clientPython(t, "client.py")
	pdftotext, err := exec.LookPath("pdftotext")
	if err != nil {
		skip(t, "pdftotext is not installed: run make test")
	}
	pdf := filepath.Join(t.TempDir(), "report.pdf")
	cmd := exec.CommandContext(t.Context(), python, "../examples/marketing/demo.py", "--out", pdf, "--", binary, "stdio")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+newRoot(t), "SANDBOX_HTTP_PORT=0", "SANDBOX_LOG_LEVEL=WARN")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("demo.py: %v\n%s", err, out)
	}
	for _, part := range []string{"a first try: exit code 1", "KeyError: 'sales_amount'", "the fixed analysis: exit code 0", "/mnt/data/roas.png (image/png,", "came as image/png", "session closed"} {
		if !strings.Contains(string(out), part) {
			t.Errorf("demo.py does not tell of %q:\n%s", part, out)
		}
	}
	text, err := exec.CommandContext(t.Context(), pdftotext, pdf, "-").Output()
	if err != nil || !strings.Contains(string(text), "Marketing report") || !strings.Contains(string(text), "Best channel: email, 37.4") {
		t.Errorf("pdftotext: %v, %q", err, text)
	}
}

// TestContract4Limits is stage 5's validation and limits: each refusal in the contract's words.
func TestContract4Limits(t *testing.T) {
	s := serve(t, "SANDBOX_EXEC_TIMEOUT_S=2", "SANDBOX_MAX_ARTIFACT_READ_BYTES=1MB", "SANDBOX_MAX_UPLOAD_BYTES=64KB", "SANDBOX_MAX_CODE_BYTES=1KB", "SANDBOX_MAX_OUTPUT_BYTES=10KB")
	s.upload(t, "a", "a.txt", "a")
	s.run(t, "a", "shell", "head -c 3000000 /dev/zero > big.bin; ln -s /etc/passwd link; mkfifo fifo")
	on := func(tool string, pairs ...string) string {
		args := map[string]any{"session_id": "a"}
		for i := 0; i < len(pairs); i += 2 {
			args[pairs[i]] = pairs[i+1]
		}
		return s.answer(t, tool, args)
	}
	for _, tt := range []struct{ got, want string }{
		{on("read_artifact", "path", "/mnt/data/../../../etc/passwd"), "invalid_path: "},
		{on("read_artifact", "path", "../keys/installation"), "invalid_path: "},
		{on("read_artifact", "path", "/etc/passwd"), "invalid_path: "},
		{on("read_artifact", "path", "/mnt/data/sub/../a.txt"), "invalid_path: "},
		{on("read_artifact", "path", "/mnt/data/link"), "not_found: No artifact at /mnt/data/link"},
		{on("read_artifact", "path", "/mnt/data/fifo"), "not_found: No artifact at /mnt/data/fifo"},
		{on("read_artifact", "path", "/mnt/data/chart.png"), "not_found: No artifact at /mnt/data/chart.png"},
		{on("read_artifact", "path", "/mnt/data/big.bin"), "artifact_too_large: big.bin is 3MB, exceeds 1MB limit. Use download_url instead."},
		{on("upload_file", "filename", "../x", "content_base64", ""), "invalid_path: "},
		{on("upload_file", "filename", "/etc/cron.d/x", "content_base64", ""), "invalid_path: "},
		{on("upload_file", "filename", "x", "content_base64", "not base64!"), "invalid_base64: "},
		{on("upload_file", "filename", "x", "content_base64", base64.StdEncoding.EncodeToString(make([]byte, 65<<10))), "file_too_large: "},
		{on("run_python", "code", "#"+strings.Repeat("x", 1<<10)), "code_too_large: "},
		{on("run_python"), "-32602 code is required"},
		{s.answer(t, "run_python", map[string]any{"session_id": "../a", "code": "1"}), "invalid_id: "},
		{s.answer(t, "read_artifact", map[string]any{"session_id": "sess_123", "path": "x"}), "session_not_found: No active session with id sess_123"},
		{s.answer(t, "list_artifacts", map[string]any{"session_id": "sess_123"}), "session_not_found: No active session with id sess_123"},
		{s.answer(t, "close_session", map[string]any{"session_id": "sess_123"}), "session_not_found: No active session with id sess_123"},
		{s.answer(t, "close_session", map[string]any{"session_id": "~x"}), "invalid_id: "},
		{s.answer(t, "close_session", map[string]any{}), "-32602 session_id is required"},
	} {
		if exact := !strings.HasSuffix(tt.want, ": "); exact && tt.got != tt.want || !strings.HasPrefix(tt.got, tt.want) {
			t.Errorf("%s, want %s", tt.got, tt.want)
		}
	}
	res := s.call(t, "read_artifact", map[string]any{"session_id": "a", "path": "big.bin"})
	var tooLarge struct {
		SizeBytes   int64  `json:"size_bytes"`
		DownloadURL string `json:"download_url"`
	}
	if err := json.Unmarshal([]byte(res.Content[0].Text), &tooLarge); err != nil || tooLarge.SizeBytes != 3000000 {
		t.Errorf("%v in %+v", err, res)
	}
	if status, body := s.fetch(t, http.MethodGet, tooLarge.DownloadURL, nil); status != http.StatusOK || len(body) != 3000000 {
		t.Errorf("%s: %d, %d bytes", tooLarge.DownloadURL, status, len(body))
	}

	// After the timeout the result has the output so far, and no traceback.
	r := s.python(t, "a", "import sys, time\nprint('so far', flush=True)\nsys.stderr.write('50%'); sys.stderr.flush()\nopen('x', 'w').close()\nwhile True: time.sleep(1)")
	if r.ExitCode != -1 || r.Stdout != "so far\n" || r.Stderr != "50%\nExecution timed out after 2 seconds" || r.Cause != "timeout" || len(r.Artifacts) != 0 || r.DurationMS < 2000 {
		t.Errorf("a timeout: %+v", r)
	}
	// Each stream is cut separately, in the middle, and the flags say so.
	r = s.python(t, "a", "import sys\nprint('head' + 'ä' * 20000 + 'tail')\nsys.stderr.write('e')")
	if !r.StdoutTruncated || r.StderrTruncated || r.Stderr != "e" || len(r.Stdout) > 11<<10 || !strings.HasPrefix(r.Stdout, "headä") || !strings.HasSuffix(r.Stdout, "ätail\n") ||
		strings.Contains(r.Stdout, "\uFFFD") || !strings.Contains(r.Stdout, "bytes omitted") {
		t.Errorf("a long output: %d bytes, %t, %t, stderr %q", len(r.Stdout), r.StdoutTruncated, r.StderrTruncated, r.Stderr)
	}
	if r := s.python(t, "a", "import urllib.request; urllib.request.urlopen('http://example.com')"); r.ExitCode != 1 || r.Hint == "" {
		t.Errorf("a run without network: %+v", r)
	}
}

const untilStop = "import os, time\nprint('going', flush=True)\nwhile not os.path.exists('stop'): time.sleep(0.02)\nprint('done')"

// TestContract4Concurrency checks that a session runs one run_python at a time, and that the number
// of sessions is bounded.
func TestContract4Concurrency(t *testing.T) {
	s := serve(t, "SANDBOX_MAX_SESSIONS=1")
	running := func(n float64) {
		t.Helper()
		eventually(t, 20*time.Second, fmt.Sprintf("%v runs", n), func() bool { return s.metric(t, "sandbox_active_runs") == n })
	}
	const busy = "session_busy: A run is already in progress for this session. Wait for it to complete."
	try := map[string]any{"session_id": "a", "code": "print(1)"}

	first := s.later(t, "run_python", map[string]any{"session_id": "a", "code": untilStop})
	running(1)
	if got := s.answer(t, "run_python", try); got != busy {
		t.Errorf("a second run: %s", got)
	}
	if got := s.list(t, "a"); got != "" {
		t.Errorf("files during the run: %s", got)
	}
	if got, want := s.answer(t, "run_python", map[string]any{"session_id": "b", "code": "print(1)"}),
		"max_sessions: Maximum 1 concurrent sessions reached. Close an existing session first. "+
			"1 session is running code (yours: a): try again when one of these runs has ended. "+
			"To make room sooner, end a run of yours with cancel_run, which keeps its files; closing a session deletes them."; got != want {
		t.Errorf("a second session: %s", got)
	}
	s.run(t, "a", "shell", "touch stop") // run_code is not refused
	if got := <-first; !strings.Contains(got, `"stdout": "going\ndone\n"`) {
		t.Errorf("the first run: %s", got)
	}
	if got := s.answer(t, "run_python", try); !strings.Contains(got, `"stdout": "1\n"`) {
		t.Errorf("a run after it: %s", got)
	}

	s.run(t, "a", "shell", "rm stop")
	other := s.later(t, "run_code", map[string]any{"conversationId": "a", "language": "python", "code": untilStop})
	running(1)
	if got := s.answer(t, "run_python", try); got != busy {
		t.Errorf("a run during run_code: %s", got)
	}

	// Closing the session ends its runs and makes room.
	if got := s.answer(t, "close_session", map[string]any{"session_id": "a"}); !strings.Contains(got, `"status": "closed"`) {
		t.Errorf("close_session: %s", got)
	}
	if got := <-other; !strings.Contains(got, `"cause": "cancelled"`) || !strings.Contains(got, `"exit_code": -1`) {
		t.Errorf("the run of the closed session: %s", got)
	}
	if r := s.python(t, "b", "print(1)"); r.Stdout != "1\n" {
		t.Errorf("another session: %+v", r)
	}
	if left := descendants(t, s.cmd.Process.Pid); slices.ContainsFunc(left, func(p process) bool { return p.name == "sleep" }) {
		t.Errorf("left: %+v", left)
	}
}

// TestContract4Life checks, with contract 4's names of the settings, that idling and restarts end
// processes but never files, and that closing ends the session and, later, its files.
func TestContract4Life(t *testing.T) {
	root := newRoot(t)
	settings := []string{"SANDBOX_ROOT=" + root, "FILE_SECRET=kept", "SANDBOX_SESSION_TTL_M=0.02", "SANDBOX_CLEANUP_INTERVAL_M=0.01"}
	s := serve(t, settings...)
	url := func(address string) string { // of the server as it is now
		return s.URL + address[strings.Index(address, "/files/"):]
	}
	kept := s.python(t, "life", "open('kept.txt', 'w').write('kept')").Artifacts[0].DownloadURL
	s.settle(t) // the idle sandbox is gone
	if got := s.list(t, "life"); got != "kept.txt=text/plain" {
		t.Errorf("files of the idle session: %s", got)
	}
	if r := s.python(t, "life", "print(open('kept.txt').read())"); r.Stdout != "kept\n" {
		t.Errorf("the next run: %+v", r)
	}

	// A killed server leaves orphans, which the next one removes, and its sessions.
	marker := newMarker()
	s.begin(t, "life", marker, sleeper(marker))
	orphans := instancesOn(t, root)
	s.kill(t)
	s = serve(t, append(settings, "SANDBOX_CLOSED_RETENTION_H=1")...)
	eventually(t, 10*time.Second, "orphans to be cleaned up", func() bool {
		return len(marked(marker)) == 0 && len(cgroupsOf(orphans[0])) == 0 && !slices.Contains(instancesOn(t, root), orphans[0])
	})
	if got := s.list(t, "life"); got != "kept.txt=text/plain" {
		t.Errorf("files after a restart: %s", got)
	}

	// A closed session is gone for the tools, but its link works, and prefers the file of a new
	// session with the same id.
	s.upload(t, "other", "kept.txt", "other's")
	if got := s.answer(t, "close_session", map[string]any{"session_id": "life"}); got != "result: {\n  \"status\": \"closed\",\n  \"session_id\": \"life\"\n}" {
		t.Errorf("close_session: %s", got)
	}
	for tool, args := range map[string]map[string]any{"close_session": {}, "list_artifacts": {}, "read_artifact": {"path": "kept.txt"}} {
		args["session_id"] = "life"
		if got := s.answer(t, tool, args); got != "session_not_found: No active session with id life" {
			t.Errorf("%s after closing: %s", tool, got)
		}
	}
	download := func(want string) {
		t.Helper()
		if status, body := s.fetch(t, http.MethodGet, url(kept), nil); status != http.StatusOK || string(body) != want {
			t.Errorf("the link: %d, %s; want %s", status, body, want)
		}
	}
	download("kept")
	if r := s.python(t, "life", "import os; print(os.listdir('.'))"); r.Stdout != "[]\n" {
		t.Errorf("a new use: %+v", r)
	}
	download("kept")
	s.upload(t, "life", "kept.txt", "new")
	download("new")
	s.answer(t, "close_session", map[string]any{"session_id": "life"})
	s.stop(t)

	// The end of the retention removes everything that was closed, and nothing else.
	s = serve(t, append(settings, "SANDBOX_CLOSED_RETENTION_H=1")...)
	download("new")
	s.stop(t)
	s = serve(t, append(settings, "SANDBOX_CLOSED_RETENTION_H=0")...)
	if status, _ := s.fetch(t, http.MethodGet, url(kept), nil); status != http.StatusNotFound {
		t.Errorf("the link after the retention: %d", status)
	}
	eventually(t, 10*time.Second, "the closed sessions' files to be deleted", func() bool {
		left, _ := filepath.Glob(filepath.Join(root, "closed", "*"))
		return len(left) == 0
	})
	if got := s.list(t, "other"); got != "kept.txt=text/plain" {
		t.Errorf("another session: %s", got)
	}
}
