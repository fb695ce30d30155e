package executor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// imageExtensions are the images that displays may be.
var imageExtensions = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}

// bundleMIME is the type of a display that has its text as well: a JSON object of a type of markup and of text/plain.
const bundleMIME = "application/vnd.mcp-code-sandbox.bundle+json"

// smallDisplay is how much is asked for when a display begins, displayStep at most when it goes on: what is asked for in
// advance is another display's room.
const (
	smallDisplay = 64 << 10
	displayStep  = 1 << 20
)

// shown is the content of a display. All copies of a Result have the same one, so that its memory
// can be taken back.
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

// write adds p, for which it asks in steps. It reports false when there is no memory, and what has
// been written is gone.
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

// displays collects what a run shows, as its parts come.
type displays struct {
	memory *memory
	redact func([]byte) []byte

	current *shown // the one that is not complete; nil: none
	list    []Display
	dropped int // for lack of memory
	beyond  int // what one run may show
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

// finish lists a complete display. It reports false when there is no memory for it.
func (d *displays) finish(mime string, s *shown) bool {
	s.mu.Lock()
	data := s.data
	s.mu.Unlock()
	var plain []byte
	if mime == bundleMIME {
		work := d.memory.hold(func() {}) // to take it apart
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

// unbundle takes a display apart that has its text as well.
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

// images are those that a run showed.
type images struct {
	files  []workspace.File // the last one first
	failed int              // how many are not files
	err    error            // why the last of those is not
}

// keepImages makes files of the images that a run showed, named after the run, and notes their names in the displays. A full
// workspace costs the file, not the result.
func (e *Executor) keepImages(ctx context.Context, log *slog.Logger, s *session.Session, runID string, shown []Display) (kept images) {
	n := 0
	for i, d := range shown {
		ext, ok := imageExtensions[d.MIME]
		if !ok {
			continue
		}
		n++
		data, _ := d.Content()
		if d.Dropped() {
			continue
		}
		name := fmt.Sprintf("%s-%d%s", runID, n, ext)
		f, err := s.Write(name, bytes.NewReader(data), workspace.WriteOptions{Quota: e.cfg.Quota})
		if err != nil {
			log.WarnContext(ctx, "cannot keep an image that a run showed", "err", err)
			kept.failed, kept.err = kept.failed+1, err
			continue
		}
		shown[i].File = f.Name
		kept.files = slices.Insert(kept.files, 0, f)
	}
	return kept
}
