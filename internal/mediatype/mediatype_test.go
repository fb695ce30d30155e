package mediatype_test

import (
	"mime"
	"testing"

	"mcp-code-sandbox/internal/mediatype"
)

func TestTypes(t *testing.T) {
	for name, want := range map[string]string{
		"a.csv": "text/csv; charset=utf-8", "dir.png/notes.TXT": "text/plain; charset=utf-8", "a.md": "text/markdown; charset=utf-8",
		"index.html": "text/html; charset=utf-8", "a.json": "application/json", "n.ipynb": "application/x-ipynb+json",
		"chart.png": "image/png", "A.JPG": "image/jpeg", "b.jpeg": "image/jpeg", "v.svg": "image/svg+xml",
		"report.pdf": "application/pdf", "t.zip": "application/zip", "x.tar.gz": "application/gzip", "d.parquet": "application/vnd.apache.parquet",
		"s.xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
		"s.docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
		"":       mediatype.Unknown, "Makefile": mediatype.Unknown, "a.": mediatype.Unknown, "a.csv/": mediatype.Unknown, "a.csv\x00": mediatype.Unknown,
	} {
		got := mediatype.ContentType(name)
		if got != want {
			t.Errorf("%q is %s, want %s", name, got, want)
		}
		if plain, _, err := mime.ParseMediaType(got); err != nil || plain != mediatype.ByName(name) {
			t.Errorf("%q is %s, and by name %s: %v", name, got, mediatype.ByName(name), err)
		}
	}
}
