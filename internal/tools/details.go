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

// Keys in _meta. A client that shows runs to people asks for details with detailsKey and receives
// them in _meta, so that no model reads them and results stay the same for other clients.
const (
	detailsKey = "mcp-code-sandbox/details" // call: true asks for details; tools/list and its result: true if available
	tagKey     = "mcp-code-sandbox/tag"     // call that runs code: the client's own name for the run
	runKey     = "mcp-code-sandbox/run"     // result: detailsJSON
	runsKey    = "mcp-code-sandbox/runs"    // result of list_artifacts: []runInfoJSON
	runIDKey   = "mcp-code-sandbox/run_id"  // first progress notification, sent when the run begins
	stderrKey  = "mcp-code-sandbox/stderr"  // progress notification: the spans of its message that came from stderr
	missedKey  = "mcp-code-sandbox/missed"  // progress notification: skipped bytes after its message
	statusKey  = "mcp-code-sandbox/status"  // progress notification: queued, or running when the wait is over
	queuedKey  = "mcp-code-sandbox/queued"  // progress notification with the status queued: queueJSON
)

const (
	maxTag         = 64        // bytes
	maxDisplayText = 512 << 10 // bytes of displayed text in one result
	maxSpans       = 1000      // spans of one message; later output from stderr counts as stdout
)

// detailsJSON describes a run in the same form for every tool and language.
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
	State             string        `json:"state,omitempty"` // what happened to the variables, if anything
	DurationMS        int64         `json:"duration_ms"`
	MemoryBytes       int64         `json:"memory_bytes,omitempty"` // of the largest process
	Stdout            string        `json:"stdout"`
	Stderr            string        `json:"stderr"`
	StdoutTruncated   bool          `json:"stdout_truncated,omitempty"`
	StderrTruncated   bool          `json:"stderr_truncated,omitempty"`
	Displays          []displayJSON `json:"displays,omitempty"`
	DisplaysTruncated bool          `json:"displays_truncated,omitempty"`
	Outputs           []pieceJSON   `json:"outputs,omitempty"`    // of a run that has ended: all of it in order
	OutputURL         string        `json:"output_url,omitempty"` // all that it printed, if Outputs omits some of it

	// Set by wait_run, instead of Stdout and Stderr if the output was kept in order.
	*outputJSON
}

// outputJSON is the output since a cursor, both streams in order.
type outputJSON struct {
	Output       string `json:"output"`
	OutputStderr []span `json:"output_stderr,omitempty"`
	OutputMissed int64  `json:"output_missed_bytes,omitempty"` // before Output
	Cursor       int64  `json:"cursor"`
}

// pieceJSON is a part of what a run printed and showed.
type pieceJSON struct {
	Type    string `json:"type"`                    // stdout, stderr, display or image
	Text    string `json:"text,omitempty"`          // of stdout or stderr
	Omitted int64  `json:"omitted_bytes,omitempty"` // of stdout or stderr, in place of Text
	Index   *int   `json:"index,omitempty"`         // in displays, or among the image items of the content
	File    string `json:"file,omitempty"`          // of an image
	URL     string `json:"url,omitempty"`           // of File
}

// displayJSON is text that code displayed. It is hostile, as all output.
type displayJSON struct {
	MIMEType string `json:"mime_type"`
	Text     string `json:"text"`
	Plain    string `json:"plain,omitempty"` // the part of stdout, byte for byte, that Text may replace
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

// wantsDetails reports whether the client asked for details. A plain caller's result has no _meta.
func (c *call) wantsDetails() bool {
	wanted, _ := c.req.Params.Meta[detailsKey].(bool)
	return wanted && !c.client.plain
}

// tag returns the client's own name for a run, or "" if it is missing or too long.
func (c *call) tag() string {
	tag, _ := c.req.Params.Meta[tagKey].(string)
	if len(tag) > maxTag {
		return ""
	}
	return tag
}

// addDetails adds the details of a run to the result of a call that asked for them.
func (t *toolset) addDetails(c *call, res executor.Result) {
	if c.wantsDetails() {
		c.meta = mcp.Meta{runKey: t.detailsOf(c, res)}
	}
}

// followedResult returns the new output of a run, the images it has shown, and its details, for a
// client that follows the run.
func (t *toolset) followedResult(c *call, res executor.Result) *mcp.CallToolResult {
	d := t.detailsOf(c, res)
	d.outputJSON = outputOf(res.Recent)
	if d.Cursor > 0 { // the output was kept in order
		d.Stdout, d.Stderr = "", ""
	}
	c.meta = mcp.Meta{runKey: d}
	return &mcp.CallToolResult{Content: append([]mcp.Content{}, items(t.imagesOf(c, res).list)...)}
}

func (t *toolset) detailsOf(c *call, res executor.Result) detailsJSON {
	out := detailsJSON{
		RunID: res.RunID, SessionID: res.Session, Runner: res.Runner,
		Status: statusOf(res), QueuedBehind: queueOf(res.Queued),
		ExitCode: res.ExitCode, Signal: res.Signal, Cause: string(res.Cause), Hint: t.hintForPeople(res),
		DurationMS: res.Duration.Milliseconds(), MemoryBytes: res.MaxRSSBytes,
		Stdout: validUTF8(res.Stdout), StdoutTruncated: res.StdoutCut != nil,
		Stderr: validUTF8(res.Stderr), StderrTruncated: res.StderrCut != nil,
		DisplaysTruncated: res.DisplaysDropped+res.DisplaysBeyond > 0,
	}
	if !res.Running {
		out.State = cmp.Or(stateOf(res), noticeOf(res))
	}
	remaining := maxDisplayText
	listed := map[int]int{} // by the index in res.Displays
	for i, d := range res.Displays {
		if !strings.HasPrefix(d.MIME, "text/") && d.MIME != "image/svg+xml" {
			continue // image content
		}
		data, plain := d.Content()
		size := len(data) + len(plain)
		if size > remaining || len(data) == 0 && (d.File != "" || d.Dropped()) {
			out.DisplaysTruncated = true
			continue
		}
		remaining -= size
		listed[i] = len(out.Displays)
		out.Displays = append(out.Displays, displayJSON{MIMEType: d.MIME, Text: validUTF8(data), Plain: validUTF8(plain)})
	}
	if !res.Running {
		out.Outputs = outputsOf(res, listed, t.imagesOf(c, res).list)
		if res.StdoutCut != nil || res.StderrCut != nil {
			out.OutputURL = res.OutputURL
		}
	}
	return out
}

// outputsOf returns what a run printed and showed, in order. listed has the places of displays in
// the list of displays, and images those of the image items.
func outputsOf(res executor.Result, listed map[int]int, images []*mcp.ImageContent) (out []pieceJSON) {
	shown := 0
	for _, p := range res.Pieces() {
		switch p.Stream {
		case executor.Stdout:
			out = append(out, pieceJSON{Type: "stdout", Text: validUTF8(p.Text), Omitted: p.Omitted})
			continue
		case executor.Stderr:
			out = append(out, pieceJSON{Type: "stderr", Text: validUTF8(p.Text), Omitted: p.Omitted})
			continue
		}
		d := res.Displays[p.Display]
		image := pieceJSON{Type: "image", File: d.File, URL: d.URL}
		if at, isListed := listed[p.Display]; isListed {
			out = append(out, pieceJSON{Type: "display", Index: &at, File: d.File, URL: d.URL})
		} else if images[p.Display] != nil {
			image.Index = new(shown)
			out = append(out, image)
			shown++
		} else if strings.HasPrefix(d.MIME, "image/") { // it is not shown, but has a link
			out = append(out, image)
		}
	}
	return out
}

// hintForPeople returns a run's hint without arguments of tools, which people do not see.
func (t *toolset) hintForPeople(res executor.Result) string {
	switch {
	case res.Cause == sandbox.CauseTimeout:
		// The cause and the duration already say that the time was up.
		more := ""
		if res.Timeout < t.maxTimeout {
			more = fmt.Sprintf("raise the time limit in the settings (at most %s seconds), ", decimal(t.maxTimeout.Seconds()))
		}
		return "Do less in one run, " + more + "or save intermediate results to /data and continue in the next run."
	case res.Hint == executor.NoNetworkHint || res.Hint == executor.NoHostsHint:
		return "This run had no network access. It can be turned on in the settings."
	}
	return res.Hint
}

// outputOf returns output as text. It makes each stretch of one stream valid UTF-8 by itself, so
// that the spans fit.
func outputOf(recent executor.Output) *outputJSON {
	var text strings.Builder
	var s spans
	at := 0
	add := func(stream executor.Stream, to int) {
		part := validUTF8(recent.Data[at:to])
		text.WriteString(part)
		s.add(stream, part)
		at = to
	}
	for _, r := range recent.Stderr {
		add(executor.Stdout, r[0])
		add(executor.Stderr, r[1])
	}
	add(executor.Stdout, len(recent.Data))
	return &outputJSON{Output: text.String(), OutputStderr: s.stderr, OutputMissed: recent.Missed, Cursor: recent.Cursor}
}

func runsOf(list []executor.RunInfo) []runInfoJSON {
	out := make([]runInfoJSON, len(list))
	for i, r := range list {
		out[i] = runInfoJSON{
			RunID: r.ID, Runner: r.Runner, Tag: r.Tag, Started: r.Started.UTC().Format(time.RFC3339Nano),
			Status:     statusOf(executor.Result{Running: r.Running, Queued: r.Queued, Cause: r.Cause}),
			DurationMS: r.Duration.Milliseconds(), ExitCode: r.ExitCode, Cause: string(r.Cause),
		}
	}
	return out
}

// span is a range of a text, as start and end in UTF-16 units, in which JavaScript and most clients
// count.
type span [2]int

// spans records which parts of a growing text came from stderr. The zero value is ready to use.
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
