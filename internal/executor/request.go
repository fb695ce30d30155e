package executor

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/untrusted"
)

const (
	maxEnvBytes = 128 << 10 // of a run's environment; the kernel rejects a larger variable
	maxQuoted   = 64        // bytes of a requested name that a message quotes
)

// Stream is one of a program's two output streams.
type Stream = session.Stream

// The streams of a program.
const (
	Stdout = session.Stdout
	Stderr = session.Stderr
)

// Request asks for one execution of one piece of code in a caller's session.
type Request struct {
	Session string // the id that the caller chose
	Runner  string // a runner's name or alias
	Code    string
	Network bool
	// Hosts are the hosts that the code may connect to while it runs, without network otherwise.
	Hosts []string
	// Packages are requirements to install into the session before the code runs.
	Packages []string
	Env      map[string]string
	// Services are the outside services that the code may call while it runs.
	Services []ServiceRequest
	// Persistent runs the code in the session's interpreter for the runner, which keeps its
	// variables. Such runs queue: background runs without a limit, others for a minute. After that
	// they are refused with session_busy.
	Persistent bool
	// Restart starts a new interpreter for it.
	Restart bool
	// Artifacts asks for the files that the run creates or changes instead of all files. While
	// another run of the session is active, the request is refused with session_busy.
	Artifacts bool
	// FailedArtifacts also lists the artifacts of a run that failed.
	FailedArtifacts bool
	// Timeout bounds the run; zero: Config.ExecTimeout.
	Timeout time.Duration
	// Background has Run return when the run has begun. WaitRun returns the result.
	Background bool
	// Followed keeps more output of a background run, for WaitRun calls that follow it closely.
	Followed bool
	// Handover has Run return after that time and continue the run in the background. Zero: never.
	Handover time.Duration
	// Once closes the session when the run ends.
	Once bool
	// Tag is the caller's own name for the run. RecentRuns reports it; it is not stored.
	Tag string
	// Internal marks a run that the server itself needs. It is neither listed nor stored.
	Internal bool
	// Tool is copied to every Result of the run.
	Tool string
	// Observer is notified about the stages of the run. It may be nil.
	Observer Observer
	// Begun gets the run's id before Run waits for anything. It may be nil.
	Begun func(runID string)
	// Queued is called when the run has to wait for others, when one of them leaves the queue, and
	// with nil when the wait is over. It must not block. Run does not call it after it has
	// returned.
	Queued func(*Queue)
	// Output gets the program's output in order as it arrives. It must not block and must not keep
	// p. Run does not call it after it has returned. It may be nil.
	Output func(stream Stream, p []byte)
}

// Observer is notified about the stages of one run, in order, from one goroutine. A background run
// calls it after Run has returned. Its methods must not block. A refused request calls none of
// them, and a run that fails skips the rest.
type Observer interface {
	Started(runID string, r runner.Runner)
	Opened(sessionKey string)
	Ended(res Result)  // the code has ended; res has no files yet
	Listed(res Result) // res is complete; a run that must not list its files skips this
}

// silent is the Observer of a Request without one.
type silent struct{}

func (silent) Started(string, runner.Runner) {}
func (silent) Opened(string)                 {}
func (silent) Ended(Result)                  {}
func (silent) Listed(Result)                 {}

// check refuses a request that cannot run and completes one that can, before anything is created.
func (e *Executor) check(ctx context.Context, caller session.Caller, req *Request) (runner.Runner, error) {
	if err := session.CheckID(req.Session); err != nil {
		return runner.Runner{}, e.wrap(err)
	}
	runners := e.cfg.Runners()
	rn, ok := runners.Lookup(req.Runner)
	if !ok {
		return rn, unknownRunner(req.Runner, runners)
	}
	if limit := e.cfg.MaxCodeBytes; limit > 0 && len(req.Code) > limit {
		return rn, refuse(CodeCodeTooLarge,
			"The code has %d bytes, the limit is %d. Upload data as a file and read it from /data.", len(req.Code), limit)
	}
	if err := checkEnv(req.Env); err != nil {
		return rn, err
	}
	if req.Network && !e.cfg.NetworkAllowed {
		if e.cfg.Hosts != nil {
			return rn, refuse(CodeNetworkDenied, "This server gives code no network but named hosts (SANDBOX_NETWORK=list). "+
				"Name them instead: hosts: [\"api.example.com\"].")
		}
		return rn, refuse(CodeNetworkDenied,
			"This server gives no network to code (SANDBOX_NETWORK=off). Run it without network.")
	}
	if err := e.checkHosts(rn, req); err != nil {
		return rn, err
	}
	if err := e.checkPackages(rn, req); err != nil {
		return rn, err
	}
	if err := e.checkServices(ctx, caller, rn, req.Services); err != nil {
		return rn, err
	}
	if req.Background && e.cfg.Store == nil {
		return rn, refuse(CodeBackendUnavailable, "This server does not store results, so code cannot run in the background.")
	}
	if most := max(e.cfg.MaxExecTimeout, e.cfg.ExecTimeout); req.Timeout > most {
		return rn, refuse(CodeInvalidTimeout, "A run may take %s at most.", seconds(most))
	}
	if req.Timeout <= 0 {
		req.Timeout = e.cfg.ExecTimeout
		if rn.TimeoutSeconds > 0 {
			req.Timeout = time.Duration(rn.TimeoutSeconds) * time.Second
		}
	}
	if req.Observer == nil {
		req.Observer = silent{}
	}
	req.Code = unfence(req.Code)
	return rn, nil
}

// unfence returns code that is as a whole in a Markdown fence without the fence: models write it
// so, and in no language does code begin or end with one. A fence at one end counts if it is the
// only one.
func unfence(code string) string {
	const fence = "\n```"
	text := "\n" + strings.TrimSpace(code)
	body, isClosed := strings.CutSuffix(text, fence)
	rest, isOpen := strings.CutPrefix(body, fence)
	if isOpen {
		language, _, _ := strings.Cut(rest, "\n")
		if strings.ContainsAny(language, "`\"'()=;") {
			return code
		}
		body = strings.TrimPrefix(rest, language)
	}
	if !isOpen && !isClosed || strings.Contains(body, fence) {
		return code
	}
	return strings.TrimPrefix(body+"\n", "\n")
}

func unknownRunner(name string, runners runner.Set) error {
	if len(runners) == 0 {
		return refuse(CodeUnknownRunner,
			"No language is available on this server. The operator can find out why with: mcp-code-sandbox doctor.")
	}
	return refuse(CodeUnknownRunner, "Unknown language %q. Available: %s.",
		untrusted.Clip(name, maxQuoted), strings.Join(runners.Names(), ", "))
}

// checkEnv never puts a value into its message: values may be secrets.
func checkEnv(env map[string]string) error {
	total := 0
	for name, value := range env {
		switch {
		case !validEnvName(name):
			return refuse(CodeInvalidEnvironment, "The environment variable name %q is not valid. "+
				"Use letters, digits and underscores, and do not start with a digit.", untrusted.Clip(name, maxQuoted))
		case strings.ContainsRune(value, 0):
			return refuse(CodeInvalidEnvironment, "The value of the environment variable %s contains a NUL byte. Remove it.", name)
		case !utf8.ValidString(value):
			return refuse(CodeInvalidEnvironment,
				"The value of the environment variable %s is not valid UTF-8. Encode it, for example as base64.", name)
		}
		total += len(name) + len(value) + 2 // "=" and NUL
	}
	if total > maxEnvBytes {
		return refuse(CodeInvalidEnvironment,
			"The environment has %d bytes, the limit is %d. Upload large values as a file.", total, maxEnvBytes)
	}
	return nil
}

func validEnvName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 1024
}
