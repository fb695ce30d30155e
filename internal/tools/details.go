package tools

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
)

// What a client that shows runs to people can ask for, by detailsKey in the _meta of its call. It comes in _meta, too, so
// that no model reads it, and results stay what they are for everybody else.
const (
	detailsKey = "mcp-code-sandbox/details" // of a call: true; of a list of tools and its result: true, where they are to be had
	tagKey     = "mcp-code-sandbox/tag"     // of a call that runs code: the client's own name for the run
	runKey     = "mcp-code-sandbox/run"     // of a result: detailsJSON
	runsKey    = "mcp-code-sandbox/runs"    // of a result of list_artifacts: []runInfoJSON
	runIDKey   = "mcp-code-sandbox/run_id"  // of the first progress notification, which comes when the run has begun
	stderrKey  = "mcp-code-sandbox/stderr"  // of a progress notification: the spans of its message that came from stderr
	missedKey  = "mcp-code-sandbox/missed"  // of a progress notification: the bytes after its message that are left out
	statusKey  = "mcp-code-sandbox/status"  // of a progress notification: queued, or running when a run waits no longer
	queuedKey  = "mcp-code-sandbox/queued"  // of a progress notification with the status queued: queueJSON
)

const maxTag = 64

// maxDisplayText bounds what is sent of displays that are text.
const maxDisplayText = 512 << 10

// detailsJSON is a run in one shape, whichever tool and language it was.
type detailsJSON struct {
	RunID             string        `json:"run_id"`
	SessionID         string        `json:"session_id"`
	Runner            string        `json:"runner"`
	Status            string        `json:"status"`                  // queued, running, completed or cancelled
	QueuedBehind      *queueJSON    `json:"queued_behind,omitempty"` // while it is queued
	ExitCode          int           `json:"exit_code"`
	Signal            int           `json:"signal,omitempty"`
	Cause             string        `json:"cause,omitempty"`
	Hint              string        `json:"hint,omitempty"`
	State             string        `json:"state,omitempty"` // what became of the variables, where there is something to say
	DurationMS        int64         `json:"duration_ms"`
	MemoryBytes       int64         `json:"memory_bytes,omitempty"` // most of one process
	Stdout            string        `json:"stdout"`
	Stderr            string        `json:"stderr"`
	StdoutTruncated   bool          `json:"stdout_truncated,omitempty"`
	StderrTruncated   bool          `json:"stderr_truncated,omitempty"`
	Displays          []displayJSON `json:"displays,omitempty"`
	DisplaysTruncated bool          `json:"displays_truncated,omitempty"`

	// Of wait_run, in place of Stdout and Stderr where both are kept in order: what was printed since the cursor.
	*outputJSON
}

// outputJSON is a part of a run's output, both streams in the order they came.
type outputJSON struct {
	Output       string `json:"output"`
	OutputStderr []span `json:"output_stderr,omitempty"`
	OutputMissed int64  `json:"output_missed_bytes,omitempty"` // before Output
	Cursor       int64  `json:"cursor"`
}

// runInfoJSON is a run in the list that comes with the files of a session.
type runInfoJSON struct {
	RunID      string `json:"run_id"`
	Runner     string `json:"runner"`
	Tag        string `json:"tag,omitempty"`
	Started    string `json:"started"`
	Status     string `json:"status"` // queued, running, completed or cancelled
	DurationMS int64  `json:"duration_ms,omitempty"`
	ExitCode   int    `json:"exit_code"`
	Cause      string `json:"cause,omitempty"`
}

// displayJSON is something that code showed and that is text; hostile, as all of its output.
type displayJSON struct {
	MIMEType string `json:"mime_type"`
	Text     string `json:"text"`
	Plain    string `json:"plain,omitempty"` // the part of stdout in whose place Text may be shown, byte for byte
}

// wantsDetails reports whether the client asked for details. A plain caller's result has no _meta.
func (c call) wantsDetails() bool {
	wanted, _ := c.req.Params.Meta[detailsKey].(bool)
	return wanted && !c.client.plain
}

// tag is the client's own name for a run; empty when it gave none that is usable.
func (c call) tag() string {
	tag, _ := c.req.Params.Meta[tagKey].(string)
	if len(tag) > maxTag {
		return ""
	}
	return tag
}

// detailed adds the details of a run to its result, if they are wanted.
func (t *toolset) detailed(c call, out *mcp.CallToolResult, res executor.Result) *mcp.CallToolResult {
	if c.wantsDetails() {
		out.Meta = mcp.Meta{runKey: t.detailsOf(res)}
	}
	return out
}

// followed is a run for a client that follows it: what is new, and once it has ended the images and the details.
func (t *toolset) followed(res executor.Result) *mcp.CallToolResult {
	d := t.detailsOf(res)
	d.outputJSON = outputOf(res.Recent)
	if d.Cursor > 0 { // else nothing was kept while it ran
		d.Stdout, d.Stderr = "", ""
	}
	out := &mcp.CallToolResult{Content: []mcp.Content{}, Meta: mcp.Meta{runKey: d}}
	images, _ := t.images.images(res.Displays)
	out.Content = append(out.Content, images...)
	return out
}

// outputOf is output as text. Each stretch of one stream is made valid by itself, so that the spans fit.
func outputOf(recent executor.Output) *outputJSON {
	var b strings.Builder
	var s spans
	at := 0
	add := func(stream executor.Stream, to int) {
		text := validUTF8(recent.Data[at:to])
		b.WriteString(text)
		s.add(stream, text)
		at = to
	}
	for _, r := range recent.Stderr {
		add(executor.Stdout, r[0])
		add(executor.Stderr, r[1])
	}
	add(executor.Stdout, len(recent.Data))
	return &outputJSON{Output: b.String(), OutputStderr: s.stderr, OutputMissed: recent.Missed, Cursor: recent.Cursor}
}

// hintForPeople is a run's hint without the arguments of tools, which people do not see.
func (t *toolset) hintForPeople(res executor.Result) string {
	switch {
	case res.Cause == sandbox.CauseTimeout:
		more := ""
		if res.Timeout < t.maxTimeout {
			more = fmt.Sprintf("raise the time limit in the settings (at most %g seconds), ", t.maxTimeout.Seconds())
		}
		// That the time was up, and how much it was, is told by the cause and the duration.
		return "Do less in one run, " + more + "or save intermediate results to /data and go on in the next run."
	case res.Hint == executor.NoNetworkHint:
		return "This run had no network access. It can be turned on in the settings."
	}
	return res.Hint
}

// runsOf lists runs for a client that shows them to people.
func runsOf(list []executor.RunInfo) []runInfoJSON {
	out := make([]runInfoJSON, len(list))
	for i, r := range list {
		out[i] = runInfoJSON{
			RunID: r.ID, Runner: r.Runner, Tag: r.Tag, Started: r.Started.UTC().Format(time.RFC3339Nano), Status: statusOf(executor.Result{Running: r.Running, Queued: r.Queued, Cause: r.Cause}),
			DurationMS: r.Duration.Milliseconds(), ExitCode: r.ExitCode, Cause: string(r.Cause),
		}
	}
	return out
}

func (t *toolset) detailsOf(res executor.Result) detailsJSON {
	out := detailsJSON{
		RunID: res.RunID, SessionID: res.Session, Runner: res.Runner, Status: statusOf(res), QueuedBehind: queueOf(res.Queued),
		ExitCode: res.ExitCode, Signal: res.Signal, Cause: string(res.Cause), Hint: t.hintForPeople(res),
		DurationMS: res.Duration.Milliseconds(), MemoryBytes: res.MaxRSSBytes,
		Stdout: validUTF8(res.Stdout), Stderr: validUTF8(res.Stderr), StdoutTruncated: res.StdoutTruncated, StderrTruncated: res.StderrTruncated,
	}
	if !res.Running {
		out.State = cmp.Or(stateOf(res), noticeOf(res))
	}
	out.DisplaysTruncated = res.DisplaysDropped+res.DisplaysBeyond > 0
	left := maxDisplayText
	for _, d := range res.Displays {
		if !strings.HasPrefix(d.MIME, "text/") && d.MIME != "image/svg+xml" {
			continue // image content
		}
		data, plain := d.Content()
		if len(data) == 0 && (d.File != "" || d.Dropped()) {
			out.DisplaysTruncated = true
			continue
		}
		size := len(data) + len(plain)
		if size > left {
			out.DisplaysTruncated = true
			continue
		}
		left -= size
		out.Displays = append(out.Displays, displayJSON{MIMEType: d.MIME, Text: validUTF8(data), Plain: validUTF8(plain)})
	}
	return out
}

// span is a part of a text, from and up to, in UTF-16 units: what JavaScript and most clients count strings in.
type span [2]int

// maxSpans bounds the spans of one message; what comes after them passes for stdout.
const maxSpans = 1000

// spans notes which parts of a text that grows came from stderr. The zero value is ready.
type spans struct {
	length int // of the text
	stderr []span
}

func (s *spans) add(stream executor.Stream, text string) {
	from := s.length
	for _, r := range text {
		s.length += utf16.RuneLen(r)
	}
	if stream != executor.Stderr || s.length == from {
		return
	}
	if n := len(s.stderr); n > 0 && s.stderr[n-1][1] == from {
		s.stderr[n-1][1] = s.length
	} else if n < maxSpans {
		s.stderr = append(s.stderr, span{from, s.length})
	}
}
