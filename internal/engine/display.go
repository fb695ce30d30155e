package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// imageExtensions are the images that displays may be.
var imageExtensions = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg"}

// bundleMIME is the type of a display that has its text as well: a JSON object of a type of markup and of text/plain.
const bundleMIME = "application/vnd.mcp-code-sandbox.bundle+json"

// newDisplay makes a Display of what a driver sent, with redact applied to every text in it.
func newDisplay(mime string, data []byte, redact func([]byte) []byte) Display {
	var bundle map[string]string
	if mime == bundleMIME && json.Unmarshal(data, &bundle) == nil {
		for _, markup := range []string{"text/html", "text/markdown"} {
			if text := bundle[markup]; text != "" {
				return Display{MIME: markup, Data: redact([]byte(text)), Plain: redact([]byte(bundle["text/plain"]))}
			}
		}
	}
	return Display{MIME: mime, Data: redact(data)}
}

// keepImages makes files of the images that a run showed, named after the run, notes their names in the displays, and returns
// them, the last one first. A full workspace costs the file, not the result.
func (e *Engine) keepImages(ctx context.Context, log *slog.Logger, s *session.Session, res Result) (files []workspace.File) {
	n := 0
	for i, d := range res.Displays {
		ext, ok := imageExtensions[d.MIME]
		if !ok {
			continue
		}
		n++
		name := fmt.Sprintf("%s-%d%s", res.RunID, n, ext)
		f, err := s.Workspace().Write(name, bytes.NewReader(d.Data), workspace.WriteOptions{Quota: e.cfg.Quota})
		if err != nil {
			log.WarnContext(ctx, "[MCP] Cannot keep an image that a run showed", "err", err)
			continue
		}
		res.Displays[i].File = f.Name
		files = slices.Insert(files, 0, f)
	}
	return files
}
