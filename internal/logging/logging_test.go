package logging_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/logging"
	"mcp-code-sandbox/internal/secret"
)

func TestConsole(t *testing.T) {
	for _, tc := range []struct {
		name string
		log  func(*slog.Logger)
		want string // a regular expression for what follows the time
	}{
		{"prefix first", func(l *slog.Logger) { l.Info("[MCP] Found 2 runners") }, `INFO  \[MCP\] Found 2 runners\n`},
		{"attributes", func(l *slog.Logger) { l.With("session_id", "a b").Warn("x", "n", 3, "empty", "") }, `WARN  x session_id="a b" n=3 empty=""\n`},
		{"group", func(l *slog.Logger) { l.WithGroup("g").Error("x", slog.Group("h", "k", true)) }, `ERROR x g\.h\.k=true\n`},
		{"forged line", func(l *slog.Logger) { l.Info("id=a\nINFO forged\x1b[2J", "k", "v\nINFO forged") },
			`INFO  id=a\\nINFO forged\\x1b\[2J k="v\\nINFO forged"\n`},
		{"bad UTF-8", func(l *slog.Logger) { l.Info("a\xffb") }, `INFO  a\\xffb\n`},
		{"secret", func(l *slog.Logger) { l.Info("x", "token", secret.New("s3cr3t-s3cr3t")) }, `INFO  x token=\[redacted\]\n`},
		{"below the level", func(l *slog.Logger) { l.Debug("x") }, ``},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			log, c := logging.New(logging.Config{Out: &out})
			defer c.Close()
			tc.log(log)
			want := `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ` + tc.want + `$`
			if tc.want == "" {
				want = `^$`
			}
			if !regexp.MustCompile(want).MatchString(out.String()) {
				t.Fatalf("got %q\nwant %s", out.String(), want)
			}
		})
	}
}

func TestJSONGoesToBoth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "logs", "sandbox.log")
	var out bytes.Buffer
	log, c := logging.New(logging.Config{Out: &out, JSON: true, File: file, Level: slog.LevelDebug})
	log.Debug("run done", "session_id", "s", "run_id", "r", "duration_ms", 12, "exit_code", 1)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	inFile, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(inFile) {
		t.Errorf("stderr has %q, the file %q", out.String(), inFile)
	}
	var rec map[string]any
	if err := json.Unmarshal(inFile, &rec); err != nil {
		t.Fatal(err)
	}
	if rec["session_id"] != "s" || rec["duration_ms"] != 12.0 || rec["exit_code"] != 1.0 {
		t.Errorf("record = %v", rec)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("log file: %v, %v", fi.Mode(), err)
	}
}

func TestUnwritableFileOnlyWarns(t *testing.T) {
	dir := t.TempDir() // a directory cannot be opened as a file, not even by root
	var out bytes.Buffer
	log, c := logging.New(logging.Config{Out: &out, File: dir})
	defer c.Close()
	log.Info("still here")
	if !strings.Contains(out.String(), "WARN") || !strings.Contains(out.String(), "SANDBOX_LOG_FILE") || !strings.Contains(out.String(), "still here") {
		t.Fatalf("got %q", out.String())
	}
}
