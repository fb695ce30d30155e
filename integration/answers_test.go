//go:build linux

package integration

import (
	"encoding/base64"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestWholeOutput checks that an answer stays short, and that the whole output can be read as a
// resource and by code, also after a single run.
func TestWholeOutput(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-11-25")
	const code = `
for i in range(60_000): print("line", i)
import sys; print("the end", file=sys.stderr)`
	for _, session := range []string{"long", ""} {
		args := map[string]any{"env": "python", "code": code}
		if session != "" {
			args["session"] = session
		}
		text := said(t, cs, "run", args)
		uri := regexp.MustCompile(`sandbox://runs/run_\w+/output`).FindString(text)
		if len(text) > 25<<10 || !strings.HasPrefix(text, "line 0\n") || !strings.Contains(text, "line 59999\n") || uri == "" {
			t.Fatalf("%d bytes, %s … %s", len(text), text[:100], text[len(text)-200:])
		}
		var whole strings.Builder
		for next := uri; next != ""; {
			res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: next})
			if err != nil {
				t.Fatal(err)
			}
			piece, note, _ := strings.Cut(res.Contents[0].Text, "\n[")
			whole.WriteString(piece)
			if _, next, _ = strings.Cut(strings.TrimSuffix(note, "]"), "the next piece is "); next == "" {
				break
			}
		}
		if got := whole.String(); strings.Count(got, "\n") != 60_001 || !strings.HasSuffix(strings.Replace(got, "the end\n", "", 1), "line 59999\n") {
			t.Errorf("session %q: %d bytes, %d lines", session, len(got), strings.Count(got, "\n"))
		}
	}
	if r := s.cell(t, "long", "shell", "cat .outputs/*.txt | wc -l; ls -A"); r.Stdout != "60001\n.outputs\n" {
		t.Errorf("for code: %+v", r)
	}
	if got := said(t, cs, "list_artifacts", map[string]any{"session_id": "long"}); strings.Contains(got, ".outputs") {
		t.Errorf("listed: %s", got)
	}
}

// TestUnsavedFigure checks that a figure that was shown and not saved is in no list, and that its
// link works.
func TestUnsavedFigure(t *testing.T) {
	s := serve(t)
	r := s.run(t, "figure", "python", "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
	if len(r.Files) != 0 || len(r.Images) != 1 || !strings.HasPrefix(r.Images[0].Name, ".plots/") {
		t.Fatalf("%+v", r)
	}
	resp, err := http.Get(r.Images[0].URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "\x89PNG") {
		t.Errorf("%s, %d bytes, %v", resp.Status, len(body), err)
	}
	if got := s.call(t, "list_artifacts", map[string]any{"session_id": "figure"}).Content[0].Text; strings.Contains(got, "plots") {
		t.Errorf("listed: %s", got)
	}
	// The next run does not list it either.
	if r := s.run(t, "figure", "shell", "ls -A"); r.Output != ".plots\n" || len(r.Files) != 0 {
		t.Errorf("the next run: %+v", r)
	}
}

// TestPDFText checks that a model reads the text of a PDF, that a hostile file harms nobody, and
// that reading leaves no trace in the list of runs.
func TestPDFText(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-11-25")
	made := s.run(t, "pdf", "python", `
import zlib
from reportlab.pdfgen import canvas
c = canvas.Canvas("good.pdf")
for text in ("First page", "Second page"):
    c.drawString(72, 720, text); c.showPage()
c.save()
def pdf(name, stream, entries):
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << >> /MediaBox [0 0 9 9] >>",
        b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(stream), entries, stream)]
    out, at = b"%PDF-1.4\n", []
    for n, body in enumerate(objects, 1):
        at.append(len(out)); out += b"%d 0 obj\n%s\nendobj\n" % (n, body)
    xref = len(out)
    out += b"xref\n0 5\n0000000000 65535 f \n" + b"".join(b"%010d 00000 n \n" % p for p in at)
    out += b"trailer << /Root 1 0 R /Size 5 >>\nstartxref\n%d\n%%%%EOF" % xref
    open(name, "wb").write(out)
z = zlib.compressobj(1)
pdf("bomb.pdf", b"".join(z.compress(bytes(1 << 20)) for _ in range(200)) + z.flush(), b"/Filter /FlateDecode")
open("garbage.pdf", "wb").write(b"%PDF-1.4\n" + bytes(range(256)) * 100)
open("loop.pdf", "wb").write(b"%PDF-1.4\n\xff\n1 0 obj << /Type /Catalog /Pages 1 0 R /Kids [1 0 R] /Count 9 >> endobj\ntrailer << /Root 1 0 R /Prev 9 >>\nstartxref\n9\n%%EOF")
# A module of the session is not imported.
open("pypdf.py", "w").write("raise SystemExit('mine')")`)
	if !made.Success {
		t.Fatalf("%+v", made)
	}
	read := func(name string) []mcp.Content {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "read_artifact", Arguments: map[string]any{"session_id": "pdf", "path": name}})
		if err != nil || res.IsError {
			t.Fatalf("%s: %+v, %v", name, res, err)
		}
		return res.Content
	}
	if got := read("good.pdf"); len(got) != 3 || got[1].(*mcp.TextContent).Text != "[page 1]\nFirst page\n[page 2]\nSecond page" {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"bomb.pdf", "garbage.pdf", "loop.pdf"} {
		if got := read(name); len(got) != 1 || !strings.Contains(got[0].(*mcp.TextContent).Text, base64.StdEncoding.EncodeToString([]byte("%PDF-1"))[:6]) {
			t.Errorf("%s: %d items", name, len(got))
		}
	}
	list, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_artifacts", Arguments: map[string]any{"session_id": "pdf"}, Meta: mcp.Meta{"mcp-code-sandbox/details": true}})
	if err != nil {
		t.Fatal(err)
	}
	if runs, ok := list.Meta["mcp-code-sandbox/runs"].([]any); !ok || len(runs) != 1 {
		t.Errorf("runs: %+v", list.Meta)
	}
}

// TestValueOfFreshRun checks that a model that expects a notebook learns why it sees nothing.
func TestValueOfFreshRun(t *testing.T) {
	s := serve(t)
	cs := s.client(t, "2025-11-25")
	if got := said(t, cs, "run", map[string]any{"env": "python", "code": "7*6"}); !strings.Contains(got, "does not show the value of the last line: print it") {
		t.Errorf("a value: %s", got)
	}
	for _, code := range []string{"x = 7*6", "open('/data/x', 'w').write('x')", "import os"} {
		if r := s.run(t, "silent", "python", code); r.Hint != "" || r.Output != "" {
			t.Errorf("%s: %+v", code, r)
		}
	}
}
