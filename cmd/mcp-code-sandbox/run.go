package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

type runCmd struct {
	Language string            `short:"l" placeholder:"NAME" help:"Runner to use. Default: by the file's extension."`
	Session  string            `short:"s" default:"cli" help:"Session whose files the code sees as /data."`
	Net      bool              `help:"Give the code network."`
	Hosts    []string          `placeholder:"HOST" help:"Hosts that the code may connect to, such as api.example.com."`
	Packages []string          `name:"with" sep:"none" placeholder:"PACKAGE" help:"A package to install first, such as humanize or 'pandas>=2,<3', if SANDBOX_PACKAGES turns packages on. Can be given several times."`
	Env      map[string]string `short:"e" placeholder:"NAME=VALUE" mapsep:"none" help:"Environment variable of the code; may be repeated."`
	File     string            `arg:"" optional:"" default:"-" help:"File with the code; - is stdin."`
}

// extensions map a file's extension to its language.
var extensions = map[string]string{
	".py": "python", ".ts": "typescript", ".tsx": "typescript", ".mts": "typescript", ".js": "javascript",
	".mjs": "javascript", ".cjs": "javascript", ".jsx": "typescript", ".sh": "shell", ".bash": "shell",
}

// Run runs one piece of code, streams its output and exits with its exit code.
func (c *runCmd) Run(ctx context.Context, inv *invocation) error {
	inv.code = exitServer // until the code has one
	s := inv.settings
	language := c.Language
	if language == "" {
		language = extensions[strings.ToLower(filepath.Ext(c.File))]
	}
	if language == "" {
		inv.code = exitUsage
		return errors.New("which language? Set it with --language, for example --language python")
	}
	code, err := readCode(inv.stdin, c.File, int64(s.MaxCodeBytes))
	if err != nil {
		inv.code = exitUsage
		return err
	}
	s.SharedZygote = "off"           // only one sandbox will use it
	s.MaxExecTimeout = s.ExecTimeout // a run cannot ask for more
	quiet := *inv
	quiet.stderr = io.Discard // the terminal shows the code's output only; the log file has the rest
	a, err := newApp(ctx, &quiet, "http://"+s.listenAddr())
	if err != nil {
		return err
	}
	defer a.Close()

	stdout, stderr := newSpool(inv.stdout), newSpool(inv.stderr)
	res, err := a.executor.Run(ctx, session.Local, executor.Request{
		Session: c.Session, Runner: language, Code: code, Network: c.Net, Hosts: c.Hosts, Packages: c.Packages, Env: c.Env, Artifacts: true, FailedArtifacts: true,
		Output: func(stream executor.Stream, p []byte) {
			if stream == executor.Stderr {
				stderr.write(p)
			} else {
				stdout.write(p)
			}
		},
	})
	stdout.close()
	stderr.close()
	if err != nil {
		if refusal, ok := errors.AsType[*executor.Error](err); ok && refusal.Code != executor.CodeBackendUnavailable {
			inv.code = exitUsage
			if refusal.Code == executor.CodeUnknownRunner {
				a.printMissing(inv.stderr, language)
			}
		}
		return err
	}
	if res.Cause != "" {
		fmt.Fprintf(inv.stderr, "mcp-code-sandbox: the run was ended: %s\n", strings.ReplaceAll(string(res.Cause), "_", " "))
	}
	if res.Hint != "" {
		fmt.Fprintln(inv.stderr, "mcp-code-sandbox:", res.Hint)
	}
	switch {
	case res.Cause == sandbox.CauseTimeout && res.Timeout == s.ExecTimeout:
		fmt.Fprintln(inv.stderr, "mcp-code-sandbox: give it more time with --exec-timeout, for example --exec-timeout 10m")
	case res.Cause == "" && res.Hint != "":
		a.printMissing(inv.stderr, language)
	}
	if names := writtenFiles(res); names != "" {
		fmt.Fprintf(inv.stderr, "mcp-code-sandbox: wrote %s in %s\n", names, a.sessions.FilesDir(session.Local, c.Session))
	}
	inv.code = exitCode(res)
	return nil
}

// maxNamed bounds the files that a message names.
const maxNamed = 20

// writtenFiles names the files that a run has written, and the images that it has shown.
func writtenFiles(res executor.Result) string {
	var names []string
	for _, d := range res.Displays {
		if strings.HasPrefix(d.File, workspace.PlotsDir+"/") {
			names = append(names, d.File)
		}
	}
	for _, f := range res.Files {
		names = append(names, f.Name)
	}
	total := len(names) - len(res.Files) + max(len(res.Files), res.FilesTotal)
	names = names[:min(len(names), maxNamed)]
	for i, name := range names {
		if strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == utf8.RuneError }) {
			names[i] = strconv.Quote(name) // the terminal would execute it
		}
	}
	list := strings.Join(names, ", ")
	if total > len(names) {
		list += fmt.Sprintf(" and %d more", total-len(names))
	}
	return list
}

// printMissing prints what is not installed for a language, or for any if the language is unknown.
func (a *app) printMissing(w io.Writer, language string) {
	r, known := a.environments.runners().Lookup(language)
	for _, p := range a.environments.missing() {
		if !known || p.Runner == r.Name || slices.Contains(r.Environments, p.Runner) {
			fmt.Fprintln(w, "mcp-code-sandbox:", p)
		}
	}
}

// exitCode follows the shell's and timeout(1)'s conventions.
func exitCode(res executor.Result) int {
	switch {
	case res.Cause == sandbox.CauseTimeout:
		return exitTimeout
	case res.Cause == sandbox.CauseCancelled:
		return 130
	case res.Cause == sandbox.CauseLost:
		return exitServer
	case res.Signal != 0:
		return 128 + res.Signal
	case res.Cause != "" && res.ExitCode <= 0:
		return 137
	}
	return res.ExitCode
}

// readCode reads at most one byte over the limit, which the executor then refuses.
func readCode(stdin io.Reader, file string, limit int64) (string, error) {
	r := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		r = f
	}
	code, err := io.ReadAll(io.LimitReader(r, limit+1))
	return string(code), err
}

// spool writes output in a goroutine, so that a slow terminal does not block the run. The run's
// output limit bounds its size.
type spool struct {
	mu     sync.Mutex
	ready  sync.Cond
	buf    []byte
	ended  bool
	done   chan struct{}
	target io.Writer
}

func newSpool(w io.Writer) *spool {
	s := &spool{target: w, done: make(chan struct{})}
	s.ready.L = &s.mu
	go s.drain()
	return s
}

func (s *spool) write(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf, p...)
	s.ready.Signal()
}

// close returns when everything has been written.
func (s *spool) close() {
	s.mu.Lock()
	s.ended = true
	s.ready.Signal()
	s.mu.Unlock()
	<-s.done
}

func (s *spool) drain() {
	defer close(s.done)
	for {
		s.mu.Lock()
		for len(s.buf) == 0 && !s.ended {
			s.ready.Wait()
		}
		p := s.buf
		s.buf = nil
		s.mu.Unlock()
		if len(p) == 0 {
			return
		}
		if _, err := s.target.Write(p); err != nil {
			return // the reader is gone
		}
	}
}
