package executor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/session/sessiontest"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/wire"
)

// A refused run leaves no trace, and the refusal contains no value of the environment.
func TestRunRefuses(t *testing.T) {
	r := newRig(t, nil, nil)
	env := func(name, value string) Request {
		return Request{Session: "x", Runner: "python", Env: map[string]string{name: value}}
	}
	tests := []struct {
		name string
		req  Request
		want Code
	}{
		{"no session", Request{Runner: "python"}, CodeInvalidID},
		{"traversal", Request{Session: "..", Runner: "python"}, CodeInvalidID},
		{"path", Request{Session: "../../etc", Runner: "python"}, CodeInvalidID},
		{"a user's link id", Request{Session: "~abc", Runner: "python"}, CodeInvalidID},
		{"unknown language", Request{Session: "x", Runner: "cobol"}, CodeUnknownRunner},
		{"no language", Request{Session: "x"}, CodeUnknownRunner},
		{"a language of a megabyte", Request{Session: "x", Runner: strings.Repeat("x", 1<<20)}, CodeUnknownRunner},
		{"long code", Request{Session: "x", Runner: "python", Code: strings.Repeat("x", 1001)}, CodeCodeTooLarge},
		{"network", Request{Session: "x", Runner: "python", Network: true}, CodeNetworkDenied},
		{"env name empty", env("", "hunter2"), CodeInvalidEnvironment},
		{"env name with =", env("A=B", "hunter2"), CodeInvalidEnvironment},
		{"env name with NUL", env("A\x00B", "hunter2"), CodeInvalidEnvironment},
		{"env name with newline", env("A\nLD_PRELOAD", "hunter2"), CodeInvalidEnvironment},
		{"env name with digit first", env("1A", "hunter2"), CodeInvalidEnvironment},
		{"env name with dash", env("A-B", "hunter2"), CodeInvalidEnvironment},
		{"env name not ASCII", env("Ä", "hunter2"), CodeInvalidEnvironment},
		{"env bash function", env("BASH_FUNC_ls%%", "hunter2"), CodeInvalidEnvironment},
		{"env value with NUL", env("A", "hunter2\x00B=c"), CodeInvalidEnvironment},
		{"env value not UTF-8", env("A", "hunter2\xff"), CodeInvalidEnvironment},
		{"env too large", env("A", strings.Repeat("hunter2", 20_000)), CodeInvalidEnvironment},
	}
	for _, tt := range tests {
		_, err := r.Run(t.Context(), session.Local, tt.req)
		if got := codeOf(err); got != tt.want {
			t.Errorf("%s: %q (%v), want %q", tt.name, got, err, tt.want)
		} else if msg := err.Error(); strings.Contains(msg, "hunter2") || len(msg) > 400 {
			t.Errorf("%s: the message is %.500q", tt.name, msg)
		}
	}
	if _, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "cobol"}); !strings.Contains(err.Error(), "python") {
		t.Errorf("%q does not list the languages", err)
	}
	if entries, _ := os.ReadDir(r.root); len(entries) > 0 || r.backend.Started() > 0 {
		t.Errorf("refused runs left %v and started %d sandboxes", entries, r.backend.Started())
	}
}

func TestRun(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit {
		p.Stdout([]byte("out"))
		p.Stderr(bytes.Repeat([]byte("e"), 5000))
		for i, name := range []string{"old.txt", "new.txt", "sub/deep.txt"} {
			path := filepath.Join(p.Spec.Workspace, name)
			when := time.Now().Add(time.Duration(i) * time.Second)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(name), 0o600), os.Chtimes(path, when, when)); err != nil {
				t.Error(err)
			}
		}
		return wire.Exit{Code: int(p.Code[0] - '0'), MaxRSSB: 7}
	}, func(c *Config) { c.NetworkAllowed = true })
	for _, code := range []string{"0 # hunter2", "3 # hunter2"} {
		var streamed [3]bytes.Buffer
		var stages stageLog
		res, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "py", Code: code, Network: true,
			Env: map[string]string{"TOKEN": "hunter2"}, Observer: &stages, Output: func(s Stream, p []byte) { streamed[s].Write(p) }})
		if err != nil {
			t.Fatal(err)
		}
		exit := int(code[0] - '0')
		if res.Success() != (exit == 0) || res.ExitCode != exit || res.Cause != "" || res.Session != "x" || res.Runner != "python" || res.MaxRSSBytes != 7 || res.NotStarted {
			t.Errorf("result %+v", res)
		}
		if string(res.Stdout) != "out" || res.StdoutCut != nil || res.StderrCut == nil || len(res.Stderr) > 1100 {
			t.Errorf("stdout %q, %d bytes of stderr, truncated %t", res.Stdout, len(res.Stderr), res.StderrCut != nil)
		}
		if streamed[Stdout].String() != "out" || streamed[Stderr].Len() != 5000 {
			t.Errorf("streamed %q and %d bytes", &streamed[Stdout], streamed[Stderr].Len())
		}
		if !regexp.MustCompile(`^run_\d{8}T\d{6}Z_[0-9a-f]{4}$`).MatchString(res.RunID) {
			t.Errorf("run id %q", res.RunID)
		}
		var names []string
		for _, f := range res.Files {
			names = append(names, f.Name)
			u, err := url.Parse(f.URL)
			if err != nil || r.signer.Verify("x", f.Name, u.Query()) != nil || u.Path != "/files/x/"+f.Name {
				t.Errorf("link %q: %v", f.URL, err)
			}
		}
		if got := strings.Join(names, " "); got != "sub/deep.txt new.txt old.txt" {
			t.Errorf("files %q", got)
		}
		// The record exists after the executor is closed; see TestRecord.
		want := fmt.Sprintf("started %s on jail:python, opened %s, ended with %d and 0 files, listed 3 files", res.RunID, r.Executor.cfg.Sessions.Key(session.Local, "x"), exit)
		if got := strings.Join(stages, ", "); got != want {
			t.Errorf("observed %q, want %q", got, want)
		}
	}
	for _, secret := range []string{"hunter2", "sig=", "eeee"} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("the log holds %q:\n%s", secret, r.log)
		}
	}
	if got := counters(t, r.reg); got[`sandbox_runs_total python success local`] != 1 || got[`sandbox_runs_total python failure local`] != 1 ||
		got["sandbox_output_bytes_total"] != 10006 || got["sandbox_live_sandboxes local"] != 1 {
		t.Errorf("metrics %v", got)
	}
}

// stageLog lists the stages of a run.
type stageLog []string

func (l *stageLog) add(format string, args ...any) { *l = append(*l, fmt.Sprintf(format, args...)) }

func (l *stageLog) Started(runID string, r runner.Runner) { l.add("started %s on %s", runID, r.Image) }
func (l *stageLog) Opened(key string)                     { l.add("opened %s", key) }
func (l *stageLog) Ended(res Result) {
	l.add("ended with %d and %d files", res.ExitCode, len(res.Files))
}
func (l *stageLog) Listed(res Result) { l.add("listed %d files", len(res.Files)) }

func counters(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			// Labels are ordered by name: caller, outcome, runner.
			for i := len(m.Label) - 1; i >= 0; i-- {
				name += " " + m.Label[i].GetValue()
			}
			if f.GetType() == dto.MetricType_GAUGE {
				got[name] = m.GetGauge().GetValue()
			} else {
				got[name] = m.GetCounter().GetValue()
			}
		}
	}
	return got
}

func TestRecord(t *testing.T) {
	r := newRig(t, func(p *sessiontest.Process) wire.Exit { return sessiontest.SIGKILL }, nil)
	res := r.mustRun(t, session.Local, Request{Session: "x", Runner: "python"})
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := r.store.GetRun(t.Context(), res.RunID)
	if err != nil || got.Caller != "local" || got.Session != "x" || got.Runner != "python" || got.ExitCode != 137 || got.Cause != "killed" || !got.Started.Equal(res.Started) {
		t.Errorf("record %+v, %v", got, err)
	}
	// A run does not depend on its record.
	if _, err := r.Run(t.Context(), session.Local, Request{Session: "x", Runner: "python"}); err != nil {
		t.Error(err)
	}
}

func TestRunErrors(t *testing.T) {
	started := make(chan struct{}, 3)
	r := newRig(t, func(p *sessiontest.Process) wire.Exit { started <- struct{}{}; <-p.Done(); return sessiontest.SIGKILL }, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, id := range []string{"a", "a", "b"} {
		wg.Go(func() {
			res, err := r.Run(ctx, session.Local, Request{Session: id, Runner: "python"})
			if err != nil || res.Cause != sandbox.CauseCancelled || res.Success() || res.ExitCode != -1 {
				t.Errorf("cancelled: %+v, %v", res, err)
			}
		})
		<-started
	}
	for id, want := range map[string]Code{"a": CodeSessionBusy, "c": CodeMaxSessions} {
		if _, err := r.Run(t.Context(), session.Local, Request{Session: id, Runner: "python"}); codeOf(err) != want {
			t.Errorf("session %s: %v, want %s", id, err, want)
		}
	}
	cancel()
	wg.Wait()
	r.backend.OnStart = func(context.Context, sandbox.Spec) error {
		return &sandbox.Error{Op: "start bubblewrap", Err: errors.New("not permitted"), Fix: "run this"}
	}
	_, err := r.Run(t.Context(), session.Local, Request{Session: "c", Runner: "python"})
	if codeOf(err) != CodeBackendUnavailable || !strings.Contains(err.Error(), "run this") {
		t.Errorf("no backend: %v", err)
	}
	r.backend.OnStart = func(context.Context, sandbox.Spec) error {
		return &sandbox.Error{Op: "connect", Err: errors.New("not permitted"), Fix: "modprobe tun", NetworkOnly: true}
	}
	_, err = r.Run(t.Context(), session.Local, Request{Session: "c", Runner: "python"})
	if codeOf(err) != CodeNetworkDenied || !strings.HasPrefix(err.Error(), "Network is not available here: run it without network.") || strings.Contains(err.Error(), "modprobe") {
		t.Errorf("no network: %v", err)
	}
}

func TestUpload(t *testing.T) {
	r := newRig(t, nil, nil)
	up := func(caller session.Caller, id, name, content string, overwrite bool) (FileLink, error) {
		return r.Upload(t.Context(), caller, UploadRequest{Session: id, Name: name, Content: strings.NewReader(content), Overwrite: overwrite})
	}
	f, err := up(session.Local, "x", "/mnt/data/in/data.csv", "1,2", false)
	if err != nil || f.Name != "in/data.csv" || f.Size != 3 || !strings.HasPrefix(f.URL, "http://host:1/files/x/in/data.csv?sig=") {
		t.Fatalf("Upload = %+v, %v", f, err)
	}
	for _, tt := range []struct {
		id, name, content string
		want              Code
	}{
		{"x", "in/data.csv", "new", CodeFileExists},
		{"x", "../y", "", CodeInvalidPath}, {"x", "/etc/passwd", "", CodeInvalidPath}, {"x", "", "", CodeInvalidPath},
		{"..", "a", "", CodeInvalidID}, {"", "a", "", CodeInvalidID},
		{"x", "big", strings.Repeat("x", 1001), CodeFileTooLarge},
	} {
		if _, err := up(session.Local, tt.id, tt.name, tt.content, false); codeOf(err) != tt.want {
			t.Errorf("upload of %q to %q: %v, want %s", tt.name, tt.id, err, tt.want)
		}
	}
	if _, err := up(session.Local, "x", "in/data.csv", "new", true); err != nil {
		t.Error(err)
	}
	for i := range 120 { // the quota is 100 files
		if _, err = up(session.Local, "full", fmt.Sprint(i), "", false); err != nil {
			break
		}
	}
	if codeOf(err) != CodeQuotaExceeded {
		t.Errorf("a hundred uploads and more: %v", err)
	}

	// Another caller's session with the same id is a different session, with a different id in its
	// links.
	if _, _, err := r.openFile(mallory, "x", "in/data.csv"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another caller's file: %v", err)
	}
	f, err = up(mallory, "x", "in/data.csv", "mine", false)
	if err != nil {
		t.Fatal(err)
	}
	for link, want := range map[string]string{f.URL: "mine", r.signer.FileURL("x", "in/data.csv"): "new"} {
		if got, err := r.follow(t, link); err != nil || got != want {
			t.Errorf("%s leads to %q, want %q", link, got, want)
		}
	}
	got, _, err := r.openFile(session.Local, "x", "in/data.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if b, err := io.ReadAll(got); string(b) != "new" || err != nil {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if _, _, err := r.openFile(session.Local, "x", "none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Upload(ctx, session.Local, UploadRequest{Session: "x", Name: "gone", Content: strings.NewReader("x")}); !errors.Is(err, context.Canceled) {
		t.Errorf("an upload whose client is gone: %v", err)
	}
}

func TestUploadLink(t *testing.T) {
	r := newRig(t, nil, nil)
	var linked string // the session as the last link names it
	ticket := func(caller session.Caller, overwrite bool) string {
		t.Helper()
		link, expires, err := r.UploadURL(t.Context(), caller, "x", "/data/a b.txt", overwrite)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(link)
		if err != nil || time.Until(expires) > time.Hour || time.Until(expires) < 59*time.Minute {
			t.Fatalf("%q, %v", link, expires)
		}
		id, name, err := signedurl.ParsePath(u.EscapedPath())
		if err != nil || name != "a b.txt" || (id == "x") != (caller == session.Local) {
			t.Fatalf("%q: %q, %v", link, id, err)
		}
		linked = id
		ticket, err := r.signer.VerifyUpload(id, name, u.Query())
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	receive := func(ticket, id, name, body string) error {
		_, err := r.ReceiveUpload(t.Context(), ticket, id, name, strings.NewReader(body))
		return err
	}
	one := ticket(session.Local, false)
	won := make(chan error, 8)
	for range cap(won) {
		go func() { won <- receive(one, "x", "a b.txt", "hello") }()
	}
	ok := 0
	for range cap(won) {
		if err := <-won; err == nil {
			ok++
		} else if codeOf(err) != CodeLinkExpired {
			t.Error(err)
		}
	}
	if ok != 1 {
		t.Errorf("one ticket was used %d times", ok)
	}
	if err := receive(ticket(session.Local, false), "x", "a b.txt", "again"); codeOf(err) != CodeFileExists {
		t.Errorf("over a file: %v", err)
	}
	if err := receive(ticket(session.Local, true), "x", "a b.txt", "again"); err != nil {
		t.Errorf("overwrite: %v", err)
	}
	for _, other := range [][2]string{{"y", "a b.txt"}, {"x", "b.txt"}} {
		if err := receive(ticket(session.Local, true), other[0], other[1], "x"); codeOf(err) != CodeLinkExpired {
			t.Errorf("a ticket for another file: %v", err)
		}
	}
	if err := receive("no-such-ticket", "x", "a b.txt", ""); codeOf(err) != CodeLinkExpired {
		t.Errorf("no ticket: %v", err)
	}
	// The file goes to the session of the caller that asked for the link.
	alice := session.Caller{ID: "user:alice"}
	if err := receive(ticket(alice, true), "x", "a b.txt", "alice's"); codeOf(err) != CodeLinkExpired {
		t.Errorf("a ticket for another caller's session: %v", err)
	}
	if err := receive(ticket(alice, true), linked, "a b.txt", "alice's"); err != nil {
		t.Error(err)
	}
	f, _, err := r.openFile(session.Local, "x", "a b.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, _ := io.ReadAll(f); string(b) != "again" {
		t.Errorf("the local caller's file holds %q", b)
	}
	for _, bad := range [][2]string{{"..", "a"}, {"x", "../a"}} {
		if _, _, err := r.UploadURL(t.Context(), session.Local, bad[0], bad[1], false); codeOf(err) == "" {
			t.Errorf("a link for %q: %v", bad, err)
		}
	}
}

func BenchmarkRun(b *testing.B) {
	r := newRig(b, nil, func(c *Config) { c.Logger = nil })
	for b.Loop() {
		if res, err := r.Run(b.Context(), session.Local, Request{Session: "x", Runner: "python", Code: "x"}); err != nil || !res.Success() {
			b.Fatal(res, err)
		}
	}
}
