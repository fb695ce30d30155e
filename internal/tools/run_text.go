package tools

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/digest"
	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/sandbox"
)

// maxFactFiles bounds the files, and the packages, that the line of facts names.
const maxFactFiles = 20

// cancelled is the fact about a cancelled run.
const cancelled = "cause: " + string(sandbox.CauseCancelled)

// finishedText returns the output of a run that has ended.
func (t *toolset) finishedText(c *call, res executor.Result) *mcp.CallToolResult {
	facts := append(factsOf(res), c.warnings...)
	if len(facts) > 0 {
		facts = append(facts, res.RunID)
	}
	return t.runText(c, res, res.Pieces(), facts)
}

// stateText returns the state of a background run. If a resumed run has ended, it does not repeat
// earlier output.
func (t *toolset) stateText(c *call, res executor.Result, resumed bool) *mcp.CallToolResult {
	facts := []string{"status: " + statusOf(res)}
	pieces := res.Pieces()
	if res.Running {
		facts = append(facts, "run_id: "+res.RunID, "session: "+res.Session, fmt.Sprintf("cursor: %d", res.Recent.Cursor))
	}
	if res.Running || resumed {
		pieces = res.RecentPieces()
		for i := range res.Displays {
			pieces = append(pieces, executor.Piece{Display: i})
		}
		if n := res.Recent.Missed; n > 0 {
			facts = append(facts, fmt.Sprintf("%d bytes before this output were skipped", n))
		}
	}
	if res.Running {
		facts = append(facts, c.warnings...)
		facts[len(facts)-1] += ". " + t.nextStep(res)
	} else {
		facts = append(append(append(facts, factsOf(res)...), c.warnings...), res.RunID)
		facts = slices.DeleteFunc(facts, func(fact string) bool { return fact == cancelled }) // the status says so
	}
	return t.runText(c, res, pieces, facts)
}

// runText returns a notice, what the run printed and showed, in order, and one line of facts. Text
// is one item up to the first image, since some frameworks show their model only the first item.
func (t *toolset) runText(c *call, res executor.Result, pieces []executor.Piece, facts []string) *mcp.CallToolResult {
	var out answer
	if notice := noticeOf(res); notice != "" {
		out.add("[" + notice + "]")
	}
	images := t.imagesOf(c, res)
	for i, text := range t.textsOf(res, pieces) {
		out.add(text)
		if p := pieces[i]; p.Stream == 0 && images.list[p.Display] != nil {
			out.addImage(images.list[p.Display])
		}
	}
	var first []string
	for _, fact := range []string{images.missing, droppedDisplays(res)} {
		if fact != "" {
			first = append(first, fact)
		}
	}
	if facts = append(first, facts...); len(facts) > 0 {
		out.add("[" + strings.Join(facts, "; ") + "]")
	}
	if out.isEmpty() {
		out.add("(no output)")
	}
	return &mcp.CallToolResult{Content: append(out.content(), t.links(c, res)...)}
}

// textsOf returns the text of each piece for a model.
func (t *toolset) textsOf(res executor.Result, pieces []executor.Piece) []string {
	texts := make([]digest.Text, len(pieces))
	for i, p := range pieces {
		if p.Stream == 0 {
			texts[i].Text = t.displayedText(res.Displays[p.Display])
		} else {
			texts[i] = digest.Text{Text: digest.Fold(digest.Clean(validUTF8(p.Text))), Omitted: p.Omitted}
		}
	}
	return digest.Limit(texts, t.resultBytes, func(omitted int64) string {
		return fmt.Sprintf("\n… [%d bytes omitted%s] …\n", omitted, whereOutput(res, omitted))
	})
}

// whereOutput says where a model can read the whole output of a run.
func whereOutput(res executor.Result, omitted int64) string {
	uri, all := outputURI(res.RunID, 0), "all output"
	if omitted > executor.MaxSpooled {
		all = fmt.Sprintf("the first %d MB", executor.MaxSpooled>>20)
	}
	switch {
	case res.Running:
		return ": after the run's end, the resource " + uri + " has " + all
	case res.Spooled && res.Once:
		return ": the resource " + uri + " has " + all
	case res.Spooled:
		return ": the resource " + uri + " and, for code, the file " + executor.OutputFile(res.RunID) + " have " + all
	}
	return "; write long output to a file in /data and print a part of it"
}

// displayedText returns text that a run showed and did not print. A display may be much longer than
// an answer, and Clean takes many times its length, so it gets the two ends.
func (t *toolset) displayedText(d executor.Display) string {
	data, plain := d.Content()
	if plain != nil || !strings.HasPrefix(d.MIME, "text/") || d.MIME == "text/html" {
		return ""
	}
	omitted := len(data) - 2*t.resultBytes
	if omitted <= 0 {
		return digest.Clean(validUTF8(data))
	}
	head, tail := data[:t.resultBytes], data[len(data)-t.resultBytes:]
	return digest.Clean(validUTF8(head)) + fmt.Sprintf("\n… [%d bytes omitted] …\n", omitted) + digest.Clean(validUTF8(tail))
}

// answer collects the content of a result. It starts a new line for each part.
type answer struct {
	items []mcp.Content
	text  strings.Builder
}

func (a *answer) add(part string) {
	if a.text.Len() > 0 && part != "" && !strings.HasSuffix(a.text.String(), "\n") {
		a.text.WriteByte('\n')
	}
	a.text.WriteString(part)
}

func (a *answer) addImage(image *mcp.ImageContent) { a.items = append(a.content(), image) }

func (a *answer) isEmpty() bool { return a.text.Len() == 0 && len(a.items) == 0 }

func (a *answer) content() []mcp.Content {
	if a.text.Len() > 0 {
		a.items = append(a.items, &mcp.TextContent{Text: a.text.String()})
		a.text.Reset()
	}
	return a.items
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
	switch {
	case res.Cause == sandbox.CauseTimeout:
		facts = append(facts, res.TimeoutMessage())
	case res.Cause != "":
		facts = append(facts, "cause: "+string(res.Cause))
	case res.ExitCode != 0:
		facts = append(facts, fmt.Sprintf("exit code %d", res.ExitCode))
	}
	if state := stateOf(res); state != "" {
		facts = append(facts, state)
	}
	// The cause is a fact already.
	hint := strings.TrimPrefix(res.Hint, res.TimeoutMessage()+". ")
	if hint = strings.TrimSpace(strings.TrimPrefix(hint, executor.CancelledHint)); hint != "" {
		facts = append(facts, hint)
	}
	if fact := blockedFact(res.Blocked); fact != "" {
		facts = append(facts, fact)
	}
	if n := len(res.Installed); n > 0 {
		fact := "installed: " + listPackages(res.Installed[:min(n, maxFactFiles)])
		if n > maxFactFiles {
			fact += fmt.Sprintf(" and %d more", n-maxFactFiles)
		}
		facts = append(facts, fact)
	}
	if n := len(res.Files); n > 0 {
		var names []string
		for _, f := range res.Files[:min(n, maxFactFiles)] {
			names = append(names, linkedName(f.Name, f.URL))
		}
		files := "files: " + strings.Join(names, ", ")
		if total := max(n, res.FilesTotal); total > len(names) {
			files += fmt.Sprintf(" and %d more", total-len(names))
		}
		facts = append(facts, files)
	}
	return facts
}

// listPackages names packages with their versions.
func listPackages(list []executor.Package) string {
	var texts []string
	for _, p := range list {
		texts = append(texts, factName(p.Name+" "+p.Version))
	}
	return strings.Join(texts, ", ")
}

// linkedName returns a file's name and its link for the line of facts.
func linkedName(name, url string) string {
	if url == "" {
		return factName(name)
	}
	return factName(name) + " <" + url + ">"
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

// noticeOf warns that a run did not use the same interpreter as the run before, or not the runner's
// libraries, or that packages do not fit together. It precedes the output.
func noticeOf(res executor.Result) string {
	notice := interpreterNotice(res)
	if len(res.Conflicts) == 0 {
		return notice
	}
	return strings.TrimSpace(notice + " Not all packages fit together: " + strings.Join(res.Conflicts, " "))
}

func interpreterNotice(res executor.Result) string {
	packages := listPackages(res.Replaced[:min(len(res.Replaced), maxFactFiles)])
	switch {
	case res.Switched:
	case res.Outdated && res.Persistent:
		return fmt.Sprintf("The session has its own %s, but this interpreter started before and may have loaded another version: set restart to true to use it.", packages)
	case res.Outdated:
		return fmt.Sprintf("The session has its own %s now, but this process may have loaded another version: the next run uses it.", packages)
	case len(res.Replaced) > 0:
		return fmt.Sprintf("This run used the session's own %s instead of the environment's version, so Python started without preloaded libraries.", packages)
	default:
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
		return "the code was not started, so it changed no variables"
	case res.Cause == sandbox.CauseTimeout || res.Cause == sandbox.CauseCancelled:
		return "the code was interrupted; the variables are kept"
	}
	return ""
}
