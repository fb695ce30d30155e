package tools

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
)

// maxFactFiles bounds the files that the line of facts names.
const maxFactFiles = 5

// finishedText returns the output of a run that has ended.
func (t *toolset) finishedText(c *call, res executor.Result) *mcp.CallToolResult {
	facts := append(factsOf(res), c.warnings...)
	if len(facts) > 0 {
		facts = append(facts, res.RunID)
	}
	return t.runText(c, res, combine(res.Stdout, res.Stderr), facts)
}

// stateText returns the state of a background run. If a resumed run has ended, it does not repeat
// earlier output.
func (t *toolset) stateText(c *call, res executor.Result, resumed bool) *mcp.CallToolResult {
	facts := []string{"status: " + statusOf(res)}
	output := combine(res.Stdout, res.Stderr)
	if res.Running {
		facts = append(facts, "run_id: "+res.RunID, "session: "+res.Session, fmt.Sprintf("cursor: %d", res.Recent.Cursor))
	}
	if res.Running || resumed {
		output = validUTF8(res.Recent.Data)
		if n := res.Recent.Missed; n > 0 {
			facts = append(facts, fmt.Sprintf("%d bytes before this output were skipped", n))
		}
	}
	if res.Running {
		facts = append(facts, c.warnings...)
		facts[len(facts)-1] += ". " + t.nextStep(res)
	} else {
		facts = append(append(append(facts, factsOf(res)...), c.warnings...), res.RunID)
	}
	return t.runText(c, res, output, facts)
}

// runText returns a notice, the output, displayed text and one line of facts, all in one text item,
// since some frameworks show their model only the first item. Images follow.
func (t *toolset) runText(c *call, res executor.Result, output string, facts []string) *mcp.CallToolResult {
	var text strings.Builder
	add := func(part string) {
		if text.Len() > 0 && part != "" && !strings.HasSuffix(text.String(), "\n") {
			text.WriteByte('\n')
		}
		text.WriteString(part)
	}
	if notice := noticeOf(res); notice != "" {
		add("[" + notice + "]")
	}
	add(output)
	remaining, omitted := maxDisplayText, 0
	for _, d := range res.Displays {
		if !strings.HasPrefix(d.MIME, "text/") || d.MIME == "text/html" {
			continue
		}
		if data, _ := d.Content(); len(data) <= remaining {
			remaining -= len(data)
			add(validUTF8(data))
		} else {
			omitted++
		}
	}
	images, missing := t.images.images(res.Displays)
	var first []string
	for _, fact := range []string{missing, droppedDisplays(res)} {
		if fact != "" {
			first = append(first, fact)
		}
	}
	if omitted > 0 {
		first = append(first, fmt.Sprintf("%d long texts that were shown are left out; save them to /data instead", omitted))
	}
	if facts = append(first, facts...); len(facts) > 0 {
		add("[" + strings.Join(facts, "; ") + "]")
	}
	if text.Len() == 0 && len(images) == 0 {
		add("(no output)")
	}
	out := &mcp.CallToolResult{}
	if text.Len() > 0 {
		out.Content = append(out.Content, &mcp.TextContent{Text: text.String()})
	}
	out.Content = append(append(out.Content, images...), t.links(c, res)...)
	return out
}

// droppedDisplays says how many displays are lost. It returns "" if none are.
func droppedDisplays(res executor.Result) string {
	if n := res.Dropped(); n > 0 {
		return fmt.Sprintf("%d of the displays are no longer kept: server memory is short; run again or save to /data", n)
	}
	return ""
}

// factsOf returns facts about a run that has ended. A successful run that made no files has none.
func factsOf(res executor.Result) (facts []string) {
	if res.Cause == sandbox.CauseTimeout {
		facts = append(facts, res.TimeoutMessage())
	} else if res.Cause != "" {
		facts = append(facts, "cause: "+string(res.Cause))
	} else if res.ExitCode != 0 {
		facts = append(facts, fmt.Sprintf("exit code %d", res.ExitCode))
	}
	if state := stateOf(res); state != "" {
		facts = append(facts, state)
	}
	if hint := strings.TrimPrefix(res.Hint, res.TimeoutMessage()+". "); hint != "" { // the message is a fact already
		facts = append(facts, hint)
	}
	if n := len(res.Files); n > 0 {
		var names []string
		for _, f := range res.Files[:min(n, maxFactFiles)] {
			name := factName(f.Name)
			if f.URL != "" {
				name += " <" + f.URL + ">"
			}
			names = append(names, name)
		}
		files := "files: " + strings.Join(names, ", ")
		if n > maxFactFiles {
			files += fmt.Sprintf(" and %d more", n-maxFactFiles)
		}
		facts = append(facts, files)
	}
	return facts
}

// factName returns a file's name for the line of facts. It quotes names that could end the line or
// add to it: hostile code chooses them.
func factName(name string) string {
	unsafe := func(r rune) bool { return !strconv.IsPrint(r) || strings.ContainsRune("[]<>;,\"", r) }
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unsafe) {
		return strconv.Quote(name)
	}
	return name
}

// noticeOf warns that a run did not use the same interpreter as the run before. It precedes the
// output.
func noticeOf(res executor.Result) string {
	if !res.Switched {
		return ""
	}
	this, other := "without", "with"
	if res.Network {
		this, other = other, this
	}
	return fmt.Sprintf("This run used the session's other interpreter, the one %s network: variables, functions and imports of runs %s network are not defined in it. "+
		"To pass data, save it to a file in /data in one and read it in the other.", this, other)
}

// stateOf says what happened to the variables of a persistent run, if anything.
func stateOf(res executor.Result) string {
	switch {
	case !res.Persistent:
	case res.StateLost:
		return "the interpreter has ended: its variables are lost, and the next run starts a new one"
	case res.Evicted:
		return "the interpreter of earlier runs was ended to make room for other sessions: this run started a new one, without their variables; " +
			"files in /data are kept (the operator can raise SANDBOX_MAX_SESSIONS)"
	case res.Forgotten:
		return "the interpreter of earlier runs had ended: this run started a new one, without their variables"
	case res.Cause == sandbox.CauseCancelled && res.NotStarted:
		return "the code was not started; the variables are as they were"
	case res.Cause == sandbox.CauseTimeout || res.Cause == sandbox.CauseCancelled:
		return "the code was interrupted; the variables are kept"
	}
	return ""
}
