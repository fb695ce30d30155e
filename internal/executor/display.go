package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// imageExtensions are the image types that a display may have.
var imageExtensions = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}

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
	Data  []byte `json:",omitempty"`
	File  string `json:",omitempty"` // the name of the image's file in the workspace, if it was saved
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

	current *shown // the incomplete display, if any
	list    []Display
	dropped int // for lack of memory
	beyond  int // because a run may show no more
}

func (d *displays) add(part session.Display) {
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
	case kept && d.finish(part.MIME, s):
	default:
		d.dropped++
	}
}

// finish lists a complete display. Without memory for it, it reports false.
func (d *displays) finish(mime string, s *shown) bool {
	s.mu.Lock()
	data := s.data
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
	d.list = append(d.list, Display{MIME: mime, kept: s})
	return true
}

// unbundle splits a display with a text version.
func unbundle(data []byte) (mime string, markup, plain []byte) {
	var bundle map[string]string
	if json.Unmarshal(data, &bundle) == nil {
		for _, mime := range []string{"text/html", "text/markdown"} {
			if text := bundle[mime]; text != "" {
				return mime, []byte(text), []byte(bundle["text/plain"])
			}
		}
	}
	return bundleMIME, data, nil
}

// images are the images that a run showed.
type images struct {
	files  []workspace.File // those that were saved, last one first
	failed int              // how many were not saved
	err    error            // why the last of them was not
}

// saveImages saves the images that a run showed as files named after the run, and sets their names
// in the displays. If the workspace is full, the result lacks only the file.
func (e *Executor) saveImages(ctx context.Context, r *run, s *session.Session, list []Display) (saved images) {
	n := 0
	for i, d := range list {
		ext, ok := imageExtensions[d.MIME]
		if !ok {
			continue
		}
		n++
		data, _ := d.Content()
		if d.Dropped() {
			continue
		}
		name := fmt.Sprintf("%s-%d%s", r.id, n, ext)
		f, err := s.Write(name, bytes.NewReader(data), workspace.WriteOptions{Quota: e.cfg.Quota})
		if err != nil {
			r.log.WarnContext(ctx, "cannot save an image that a run showed", "error", err)
			saved.failed, saved.err = saved.failed+1, err
			continue
		}
		list[i].File = f.Name
		saved.files = slices.Insert(saved.files, 0, f)
	}
	return saved
}
