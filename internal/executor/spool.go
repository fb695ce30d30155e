package executor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

const (
	MaxSpooled  = 16 << 20  // bytes of one run's output
	keptSpooled = 128 << 20 // bytes of all outputs of a session; the oldest are deleted first
)

var errDiscarded = errors.New("the run has failed")

// spool writes long output of a run, both streams in order, to a file in the workspace, where the
// session's code and RunOutput can read it. Output of at most after bytes is in the result anyway.
type spool struct {
	after int64 // 0: never write
	write func(io.Reader) error

	head  []byte // until the file is begun
	total int64
	file  *io.PipeWriter
	buf   *bufio.Writer // of file: programs print line by line
	done  chan error
}

// newSpool returns the spool of a run.
func (e *Executor) newSpool(r *run, s *session.Session) *spool {
	if r.req.Internal {
		return &spool{}
	}
	return &spool{after: int64(e.cfg.SpoolAfter), write: func(content io.Reader) error {
		if _, err := s.Write(outputName(r.id), content, workspace.WriteOptions{Quota: e.cfg.Quota}); err != nil {
			return err
		}
		if err := s.Prune(context.Background(), workspace.OutputsDir, keptSpooled, ResultRetention); err != nil {
			r.log.Warn("cannot delete the output of old runs", "error", err)
		}
		return nil
	}}
}

func outputName(runID string) string { return workspace.OutputsDir + "/" + runID + ".txt" }

// add adds output. It waits for the disk, and so does the program.
func (sp *spool) add(p []byte) {
	if sp.after <= 0 {
		return
	}
	kept := p[:max(0, min(int64(len(p)), MaxSpooled-sp.total))]
	sp.total += int64(len(p))
	switch {
	case sp.total <= sp.after:
		sp.head = append(sp.head, p...)
		return
	case sp.file == nil:
		sp.begin()
		kept = append(sp.head, kept...)
		sp.head = nil
	}
	_, _ = sp.buf.Write(kept) // an error comes from done
}

func (sp *spool) begin() {
	r, w := io.Pipe()
	sp.file, sp.buf, sp.done = w, bufio.NewWriterSize(w, freeOutput), make(chan error, 1)
	go func() {
		err := sp.write(r)
		r.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // the rest goes nowhere
		sp.done <- err
	}()
}

// discard deletes a file that is not finished.
func (sp *spool) discard() {
	if sp.file != nil {
		_ = sp.file.CloseWithError(errDiscarded)
	}
}

// finish completes the file and reports whether there is one.
func (sp *spool) finish(ctx context.Context, r *run) bool {
	if sp.file == nil {
		return false
	}
	if missing := sp.total - MaxSpooled; missing > 0 {
		fmt.Fprintf(sp.buf, "\n… [%d bytes omitted: %d MB of output are kept] …\n", missing, MaxSpooled>>20)
	}
	_ = sp.buf.Flush()
	_ = sp.file.Close()
	if err := <-sp.done; err != nil {
		r.log.WarnContext(ctx, "cannot keep the whole output of a run", "error", err)
		return false
	}
	return true
}

// OutputFile returns the path inside the sandbox of a run's whole output.
func OutputFile(runID string) string { return "/data/" + outputName(runID) }

// OutputPart is a part of what a run printed, both streams in order.
type OutputPart struct {
	Text []byte
	Next int64 // the offset of what follows
	Size int64 // of all
}

// RunOutput returns at most limit bytes of what a run printed, from an offset that is not negative.
// It splits no character. Its errors are those of WaitRun, run_active, and not_found if the output
// is no longer kept.
func (e *Executor) RunOutput(ctx context.Context, caller session.Caller, runID string, offset, limit int64) (OutputPart, error) {
	res, err := e.WaitRun(ctx, caller, runID, WaitRequest{})
	if err != nil {
		return OutputPart{}, err
	}
	if res.Running {
		return OutputPart{}, refuse(CodeRunActive, "The run has not ended. Call wait_run for what it has printed so far.")
	}
	if !e.room(ctx, caller, answerCopies*limit, memoryWait) {
		return OutputPart{}, memoryShort("")
	}
	if !res.Spooled {
		text := res.text()
		part := text[min(offset, int64(len(text))):]
		return newOutputPart(part[:min(limit, int64(len(part)))], offset, int64(len(text))), nil
	}
	part, size, err := e.readOutput(caller, res, offset, limit)
	if err != nil {
		return OutputPart{}, err
	}
	return newOutputPart(part, offset, size), nil
}

// newOutputPart leaves out incomplete characters at both ends, unless the output itself has them.
func newOutputPart(part []byte, offset, size int64) OutputPart {
	next := min(offset, size) + int64(len(part))
	if next < size {
		whole := cutEnd(part)
		next -= int64(len(part) - len(whole))
		part = whole
	}
	for n := 1; offset > 0 && n < utf8.UTFMax && len(part) > 0 && !utf8.RuneStart(part[0]); n++ {
		part = part[1:]
	}
	return OutputPart{Text: part, Next: next, Size: size}
}

// text returns what the result keeps of the output, in order.
func (r Result) text() (text []byte) {
	for _, p := range r.Pieces() {
		if p.Omitted > 0 {
			text = fmt.Appendf(text, "\n… [%d bytes omitted] …\n", p.Omitted)
		}
		text = append(text, p.Text...)
	}
	return text
}

// readOutput reads from the file of a run's output, also if the session is closed and retained.
func (e *Executor) readOutput(caller session.Caller, res Result, offset, limit int64) (part []byte, size int64, err error) {
	name := outputName(res.RunID)
	f, fi, err := e.openFile(caller, res.Session, name)
	if err != nil {
		return nil, 0, e.wrapFile("output", name, err)
	}
	defer f.Close()
	part = make([]byte, max(0, min(limit, fi.Size()-offset)))
	n, err := f.ReadAt(part, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	return part[:n], fi.Size(), nil
}
