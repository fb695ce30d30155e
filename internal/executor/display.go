package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"mcp-code-sandbox/internal/mediatype"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// imageExtensions are the image types that a display may have.
var imageExtensions = map[string]string{
	"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/svg+xml": ".svg",
}

// bundleMIME is the type of a display with a text version: a JSON object with markup and
// text/plain.
const bundleMIME = "application/vnd.mcp-code-sandbox.bundle+json"

// A display's memory grows in steps, so that it does not reserve memory that others need.
const (
	smallDisplay = 64 << 10 // the first step
	displayStep  = 1 << 20  // the largest step
)

// Display is something that code showed.
type Display struct {
	MIME string
	// Data and Plain hold the results of Content in a stored Result.
	Data []byte `json:",omitempty"`
	// File is the name of the image's file in the workspace, if it has one: the code saved it, or
	// saveImages did, in workspace.PlotsDir.
	File  string `json:",omitempty"`
	URL   string `json:"-"` // the download link of File
	Plain []byte `json:",omitempty"`

	kept *shown // shared by the copies of a Result of this process
}

// Content returns what was shown, and the exact part of stdout that it may replace: nil if nothing
// was printed for it. Both are nil for an image that is too large to be kept twice, and when the
// server needed the memory.
func (d Display) Content() (data, plain []byte) {
	if d.kept == nil {
		return d.Data, d.Plain
	}
	d.kept.mu.Lock()
	defer d.kept.mu.Unlock()
	return d.kept.data, d.kept.plain
}

// Dropped reports whether the server needed the memory of what was shown.
func (d Display) Dropped() bool { return d.kept != nil && d.kept.isDropped() }

// shown is the content of a display. All copies of a Result share it, so that its memory can be
// taken back.
type shown struct {
	hold *hold

	mu          sync.Mutex
	data, plain []byte
	dropped     bool
}

func (s *shown) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.data, s.plain, s.dropped = nil, nil, true
}

func (s *shown) isDropped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// write appends p. Without memory, it drops the content and reports false.
func (s *shown) write(p []byte) bool {
	s.mu.Lock()
	room, size := cap(s.data), len(s.data)+len(p)
	s.mu.Unlock()
	if size > room {
		next := max(size, min(2*room, room+displayStep), smallDisplay)
		if !s.hold.grow(int64(next - room)) {
			s.discard()
			return false
		}
		room = next
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return false
	}
	if room > cap(s.data) {
		s.data = append(make([]byte, 0, room), s.data...)
	}
	s.data = append(s.data, p...)
	return true
}

func (s *shown) discard() {
	s.drop()
	s.hold.release()
}

// displays collects what a run shows, part by part.
type displays struct {
	memory *memory
	redact func([]byte) []byte
	shown  func() // called for each display that is listed
	clear  func() // called when all that was printed and shown is withdrawn

	current *shown // the incomplete display, if any
	list    []Display
	dropped int // for lack of memory
	beyond  int // because a run may show no more
}

func (d *displays) add(part session.Display) {
	if part.Clear {
		d.withdraw()
		return
	}
	if d.current == nil {
		d.current = &shown{}
		d.current.hold = d.memory.hold(d.current.drop)
	}
	s := d.current
	kept := false
	switch {
	case part.Beyond:
		s.discard()
	case !s.isDropped():
		kept = s.write(part.Data)
	}
	if part.More {
		return
	}
	d.current = nil
	switch {
	case part.Beyond:
		d.beyond++
	case kept && d.finish(part, s):
	default:
		d.dropped++
	}
}

// withdraw drops all displays.
func (d *displays) withdraw() {
	if d.current != nil {
		d.current.discard()
	}
	for _, each := range d.list {
		each.kept.discard()
	}
	d.current, d.list, d.dropped, d.beyond = nil, nil, 0, 0
	d.clear()
}

// finish lists a complete display. Without memory for it, it reports false.
func (d *displays) finish(part session.Display, s *shown) bool {
	s.mu.Lock()
	mime, data := part.MIME, s.data
	s.mu.Unlock()
	var plain []byte
	if mime == bundleMIME {
		work := d.memory.hold(func() {}) // for unbundle
		defer work.release()
		if !work.grow(3*int64(len(data)) + 1) {
			s.discard()
			return false
		}
		mime, data, plain = unbundle(data)
	}
	data, plain = d.redact(data), d.redact(plain)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dropped {
		return false
	}
	s.data, s.plain = data, plain
	d.list = append(d.list, Display{MIME: mime, File: part.File, kept: s})
	d.shown()
	return true
}

// unbundle splits a display with a text version.
func unbundle(data []byte) (mime string, markup, plain []byte) {
	var bundle map[string]string
	if json.Unmarshal(data, &bundle) == nil {
		for _, mime := range []string{"text/html", "text/markdown", "text/latex"} {
			if text := bundle[mime]; text != "" {
				return mime, []byte(text), []byte(bundle["text/plain"])
			}
		}
	}
	return bundleMIME, data, nil
}

// isSaved reports whether the code has saved an image in the workspace, as it claims.
func isSaved(s *session.Session, file string) bool {
	name, err := workspace.CleanName(file)
	if err != nil || name != file || !strings.HasPrefix(mediatype.ByName(name), "image/") {
		return false
	}
	f, _, err := s.Workspace().Open(name)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// unsaved counts images that a run showed and that have no file.
type unsaved struct {
	count int
	err   error // why the last of them has none
}

// saveImages saves the images that a run showed and did not save, and sets the file of each
// display. If the workspace is full, the result lacks only the file.
func (e *Executor) saveImages(ctx context.Context, r *run, s *session.Session, list []Display) (failed unsaved) {
	n := 0
	for i := range list {
		d := &list[i]
		ext, isImage := imageExtensions[d.MIME]
		if isImage {
			n++
		}
		if d.File != "" && isImage && isSaved(s, d.File) {
			continue
		}
		d.File = ""
		data, _ := d.Content()
		if !isImage || d.Dropped() {
			continue
		}
		name := fmt.Sprintf("%s/%s-%d%s", workspace.PlotsDir, r.id, n, ext)
		if _, err := s.Write(name, bytes.NewReader(data), workspace.WriteOptions{Quota: e.cfg.Quota}); err != nil {
			r.log.WarnContext(ctx, "cannot save an image that a run showed", "error", err)
			failed.count, failed.err = failed.count+1, err
			continue
		}
		d.File = name
	}
	return failed
}

// signOutput sets the links of a result's displays and of its whole output, as far as there are
// files of them.
func (e *Executor) signOutput(caller session.Caller, res *Result) {
	for i, d := range res.Displays {
		if d.File != "" {
			res.Displays[i].URL = e.url(caller, res.Session, d.File)
		}
	}
	if res.Spooled {
		res.OutputURL = e.url(caller, res.Session, outputName(res.RunID))
	}
}
