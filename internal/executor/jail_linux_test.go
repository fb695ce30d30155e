package executor

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/backend/jail"
	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/workspace"
)

// newJail is an executor on the real jail with only a shell. It skips the test if no sandbox can
// start, unless REQUIRE_ALL is set.
func newJail(t *testing.T) *Executor {
	t.Helper()
	skip := t.Skipf
	if os.Getenv("REQUIRE_ALL") != "" {
		skip = t.Fatalf
	}
	instance := "test-" + strings.ToLower(session.NewID()[5:])
	backend, err := jail.New(jail.Config{Dir: t.TempDir(), Instance: instance, AgentBinary: buildAgent(t)})
	if err != nil {
		skip("no jail here: %v", err)
	}
	t.Cleanup(backend.Close)
	for _, c := range backend.Probe(t.Context()) {
		if c.Status == sandbox.Fail || c.Name == "cgroups" && c.Status != sandbox.OK {
			skip("no jail with limits here: %s: %s (fix: %s)", c.Name, c.Detail, c.Fix)
		}
	}
	owner := workspace.Owner{UID: -1, GID: -1}
	if os.Geteuid() == 0 {
		owner.UID, owner.GID = jail.Owner()
	}
	quota := workspace.Usage{Bytes: 20 << 20, Files: 1000}
	sessions := session.New(session.Config{Root: t.TempDir(), InstallationKey: []byte("key"), Backend: backend, Owner: owner, Quota: quota,
		Limits:      sandbox.Limits{MemoryBytes: 128 << 20, CPUs: 1, PIDs: 200, TmpBytes: 16 << 20},
		OutputLimit: 4 << 20, MaxSessions: 8, MaxRunsPerSession: 4})
	shell := runner.Runner{Image: "jail:shell", Definition: runner.Definition{
		Name: "shell", File: "main.sh", Argv: []string{"/bin/bash", "{file}"}}}
	e := New(Config{Sessions: sessions, Runners: func() runner.Set { return runner.Set{shell} },
		Signer: signedurl.New([]byte("secret"), "http://host", 0, nil), ExecTimeout: 20 * time.Second,
		MaxCodeBytes: 100 << 10, MaxOutputBytes: 10 << 10, MaxUploadBytes: 1 << 20, Quota: quota})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := sessions.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Supervision works on real processes: each misbehaviour ends in time with its cause, and the
// session stays usable.
func TestJail(t *testing.T) {
	e := newJail(t)
	shell := func(ctx context.Context, id, code string) Result {
		t.Helper()
		res, err := e.Run(ctx, session.Local, Request{Session: id, Runner: "shell", Code: code})
		if err != nil {
			t.Fatalf("%.60q: %v", code, err)
		}
		return res
	}
	tests := []struct {
		name, code string
		cause      sandbox.Cause
		hint       string
	}{
		{"fills the disk", `i=0; while :; do head -c 1000000 /dev/zero > f$i; i=$((i+1)); sleep 0.01; done`, sandbox.CauseDiskQuota, "quota"},
		{"writes many files", `i=0; while :; do : > f$i; i=$((i+1)); done`, sandbox.CauseDiskQuota, "1000 files"},
		{"prints for ever", `yes`, sandbox.CauseOutputLimit, "printed too much"},
		{"prints to stderr for ever", `yes >&2`, sandbox.CauseOutputLimit, "printed too much"},
		{"kills itself", `kill -9 $$`, sandbox.CauseKilled, "SIGKILL"},
		{"eats memory", `tail /dev/zero`, sandbox.CauseOutOfMemory, "128 MB"},
		{"forks a bomb", `perl -e 'for (1..300) { defined($p = fork) or exit 1; $p or do { sleep 60; exit } }'`, sandbox.CausePIDsLimit, "200"},
		{"loses a child to memory", `tail /dev/zero; exit 1`, "", "a process was killed because memory reached the limit of 128 MB (SANDBOX_MEMORY_LIMIT)"},
		{"writes outside", `echo x > /usr/x; exit 1`, "", "/data"},
		{"asks for all disks", `df -h`, "", "df -h /data"},
		{"asks the network", `getent hosts example.com || { echo "Could not resolve host" >&2; exit 6; }`, "", "no network"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id := session.NewID()
			res := shell(t.Context(), id, tt.code)
			if res.Success() || res.Cause != tt.cause || !strings.Contains(res.Hint, tt.hint) || res.Duration > 15*time.Second {
				t.Errorf("exit %d, cause %q, hint %q after %v; stderr %.300q", res.ExitCode, res.Cause, res.Hint, res.Duration, res.Stderr)
			}
			if res := shell(t.Context(), id, `rm -rf /data/*; echo fine`); string(res.Stdout) != "fine\n" || !res.Success() {
				t.Errorf("the next run: %+v", res)
			}
		})
	}

	t.Run("waits for a child that memory killed", func(t *testing.T) {
		res, err := e.Run(t.Context(), session.Local, Request{Session: "waits", Runner: "shell", Code: `tail /dev/zero; sleep 600`, Timeout: 8 * time.Second})
		want := "Execution timed out after 8 seconds. While the code ran, a process was killed because memory reached the limit of 128 MB"
		if err != nil || res.Cause != sandbox.CauseTimeout || !strings.HasPrefix(res.Hint, want) || strings.Contains(res.Hint, "more time") {
			t.Errorf("cause %q, hint %q, %v", res.Cause, res.Hint, err)
		}
	})

	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan struct{})
		var cancelled time.Time
		go func() {
			<-started
			cancelled = time.Now()
			cancel()
		}()
		var once sync.Once
		res, err := e.Run(ctx, session.Local, Request{Session: "cancel", Runner: "shell",
			Code:   `trap "" TERM INT HUP; (setsid sleep 600 &) ; echo started; while :; do sleep 600; done`,
			Output: func(Stream, []byte) { once.Do(func() { close(started) }) }})
		if err != nil || res.Cause != sandbox.CauseCancelled || time.Since(cancelled) > time.Second {
			t.Errorf("%+v, %v, %v after the cancel", res, err, time.Since(cancelled))
		}
		if res := shell(t.Context(), "cancel", `pgrep sleep || echo none`); string(res.Stdout) != "none\n" {
			t.Errorf("left: %q", res.Stdout)
		}
	})

	t.Run("files", func(t *testing.T) {
		if _, err := e.Upload(t.Context(), session.Local, UploadRequest{Session: "files", Name: "in.txt", Content: strings.NewReader("42")}); err != nil {
			t.Fatal(err)
		}
		res := shell(t.Context(), "files", `cp in.txt /mnt/data/out.txt; echo "+1" >> /workspace/in.txt; cat in.txt out.txt`)
		if string(res.Stdout) != "42+1\n42" || len(res.Files) != 2 {
			t.Errorf("%q, files %v; stderr %q", res.Stdout, res.Files, res.Stderr)
		}
		if _, err := e.Upload(t.Context(), session.Local, UploadRequest{Session: "files", Name: "in.txt", Content: strings.NewReader("x"), Overwrite: true}); err != nil {
			t.Errorf("upload over a file that code changed: %v", err)
		}
	})

	t.Run("overlap", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				res, err := e.Run(t.Context(), session.Local, Request{Session: "overlap", Runner: "shell", Code: `sleep 0.2; ls /proc | grep -c '^[0-9]'`})
				if err != nil || !res.Success() || len(strings.TrimSpace(string(res.Stdout))) != 1 {
					t.Errorf("%q, %v: a run sees others' processes; stderr %q", res.Stdout, err, res.Stderr)
				}
			})
		}
		wg.Wait()
	})
}
