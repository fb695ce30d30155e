package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/signedurl"
	"mcp-code-sandbox/internal/workspace"
)

// oneSession implements Files for one real workspace, that of the session "chat-1".
type oneSession struct {
	ws      *workspace.Workspace
	tickets map[string]bool
	max     int64
}

func (o *oneSession) OpenLink(id, name string) (*os.File, fs.FileInfo, error) {
	if id != "chat-1" {
		return nil, nil, &executor.Error{Code: executor.CodeSessionNotFound, Message: "There is no such session."}
	}
	return o.ws.Open(name)
}

func (o *oneSession) LinkCaller(id string) string { return "caller of " + id }

func (o *oneSession) ReceiveUpload(_ context.Context, ticket, id, name string, body io.Reader) (executor.FileLink, error) {
	if !o.tickets[ticket] {
		return executor.FileLink{}, &executor.Error{Code: executor.CodeLinkExpired, Message: "used"}
	}
	delete(o.tickets, ticket)
	f, err := o.ws.Write(name, body, workspace.WriteOptions{MaxBytes: o.max})
	if errors.Is(err, workspace.ErrExists) {
		err = &executor.Error{Code: executor.CodeFileExists, Message: "exists"}
	}
	return executor.FileLink{File: f}, err
}

type fileServer struct {
	http.Handler
	signer   *signedurl.Signer
	executor *oneSession
	dir      string
	log      *bytes.Buffer
}

func newFileServer(t *testing.T) *fileServer {
	dir := t.TempDir()
	ws, err := workspace.Open(dir, workspace.Owner{UID: -1, GID: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ws.Close() })
	s := &fileServer{signer: signedurl.New([]byte("file-secret"), "http://localhost:8080", 0, time.Now),
		executor: &oneSession{ws: ws, tickets: map[string]bool{"t1": true, "t2": true}, max: 1000}, dir: dir, log: new(bytes.Buffer)}
	s.Handler = httpapi.New(config(func(c *httpapi.Config) {
		c.Files, c.Signer, c.Logger = s.executor, s.signer, slog.New(slog.NewTextHandler(s.log, nil))
	}))
	return s
}

func (s *fileServer) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(s.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// target returns the link's path and query.
func target(link string) string { return strings.TrimPrefix(link, "http://localhost:8080") }

func TestDownload(t *testing.T) {
	s := newFileServer(t)
	for _, tc := range []struct{ name, contentType string }{
		{"result.csv", "text/csv; charset=utf-8"},
		{"plots/a b.png", "image/png"},
		{"übersicht 100%.txt", "text/plain; charset=utf-8"},
		{"page.HTML", "text/html; charset=utf-8"},
		{"vector.svg", "image/svg+xml"},
		{"report.pdf", "application/pdf"},
		{"book.xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"},
		{"no-extension", "application/octet-stream"},
		{"odd.zzzz", "application/octet-stream"},
		{"-rf", "application/octet-stream"},
		{`quote";filename=evil.exe`, "application/x-msdos-program|application/octet-stream|application/x-msdownload"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.write(t, tc.name, "0123456789")
			link := target(s.signer.FileURL("chat-1", tc.name))
			w := do(s, request("GET", link))
			if w.Code != 200 || w.Body.String() != "0123456789" {
				t.Fatalf("GET = %d %q", w.Code, w.Body)
			}
			h := w.Header()
			if got := h.Get("Content-Type"); !strings.Contains("|"+tc.contentType+"|", "|"+got+"|") {
				t.Errorf("Content-Type = %q, want %q", got, tc.contentType)
			}
			kind, params, err := mime.ParseMediaType(h.Get("Content-Disposition"))
			base := tc.name[strings.LastIndex(tc.name, "/")+1:]
			if err != nil || kind != "attachment" || params["filename"] != base {
				t.Errorf("Content-Disposition = %q: %v, %v", h.Get("Content-Disposition"), params, err)
			}
			if h.Get("X-Content-Type-Options") != "nosniff" || !strings.HasPrefix(h.Get("Content-Security-Policy"), "sandbox") || !strings.Contains(h.Get("Cache-Control"), "no-store") {
				t.Errorf("headers = %v", h)
			}
			if w := do(s, request("HEAD", link)); w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("Content-Length") != "10" {
				t.Errorf("HEAD = %d %v", w.Code, w.Header())
			}
			if w := do(s, request("GET", link, "Range", "bytes=2-4")); w.Code != 206 || w.Body.String() != "234" {
				t.Errorf("range = %d %q", w.Code, w.Body)
			}
			if w := do(s, request("GET", link, "Range", "bytes=50-")); w.Code != 416 {
				t.Errorf("range beyond the end = %d", w.Code)
			}
		})
	}
	if strings.Contains(s.log.String(), "sig=") {
		t.Errorf("the log has the query of a link:\n%s", s.log)
	}
}

func TestEscapedSlashIsASeparator(t *testing.T) {
	s := newFileServer(t)
	s.write(t, "plots/a.png", "x")
	link := strings.Replace(target(s.signer.FileURL("chat-1", "plots/a.png")), "plots/a.png", "plots%2Fa.png", 1)
	if w := do(s, request("GET", link)); w.Code != 200 || w.Body.String() != "x" {
		t.Fatalf("%s = %d %s", link, w.Code, w.Body)
	}
}

// A complete link is refused if it was made before links had to expire or before the secret
// changed.
func TestLinkOfEarlierSettings(t *testing.T) {
	s := newFileServer(t)
	s.write(t, "a.txt", "x")
	link := target(s.signer.FileURL("chat-1", "a.txt"))
	if w := do(s, request("GET", link)); w.Code != 200 {
		t.Fatalf("at first: %d %s", w.Code, w.Body)
	}
	for name, signer := range map[string]*signedurl.Signer{
		"SANDBOX_URL_TTL": signedurl.New([]byte("file-secret"), "http://localhost:8080", time.Hour, time.Now),
		"FILE_SECRET":     signedurl.New([]byte("new-secret"), "http://localhost:8080", 0, time.Now),
	} {
		later := httpapi.New(config(func(c *httpapi.Config) { c.Files, c.Signer = s.executor, signer }))
		w := do(later, request("GET", link))
		if w.Code != 403 || !strings.Contains(w.Body.String(), "from earlier settings or an earlier release of the server: ask for a new one") {
			t.Errorf("with another %s: %d %s", name, w.Code, w.Body)
		}
	}
}

func TestDownloadAttacks(t *testing.T) {
	s := newFileServer(t)
	s.write(t, "a.txt", "mine")
	s.write(t, "b.txt", "mine too")
	s.write(t, "dir/inner.txt", "x")
	outside := filepath.Join(t.TempDir(), "host-secret")
	if err := os.WriteFile(outside, []byte("HOST SECRET"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": outside, "dirlink": filepath.Dir(outside), "up": "../../../../etc/passwd", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(s.dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	makeFIFO(t, filepath.Join(s.dir, "fifo.txt"))

	signed := func(id, name string) string { return target(s.signer.FileURL(id, name)) }
	sig := func(id, name string) string {
		_, q, _ := strings.Cut(signed(id, name), "?")
		return "?" + q
	}
	for _, tc := range []struct {
		name   string
		target string
		status int
	}{
		{"no signature", "/files/chat-1/a.txt", 403},
		{"empty signature", "/files/chat-1/a.txt?sig=", 403},
		{"wrong signature", "/files/chat-1/a.txt?sig=" + strings.Repeat("0", 64), 403},
		{"another file's signature", "/files/chat-1/a.txt" + sig("chat-1", "b.txt"), 403},
		{"another session's signature", "/files/chat-1/a.txt" + sig("chat-2", "a.txt"), 403},
		{"first of two signatures wrong", "/files/chat-1/a.txt?sig=0&" + sig("chat-1", "a.txt")[1:], 403},
		{"damaged query", "/files/chat-1/a.txt?sig=%zz", 403},
		{"missing file", signed("chat-1", "gone.txt"), 404},
		{"missing session", signed("chat-9", "a.txt"), 404},
		{"directory", signed("chat-1", "dir"), 404},
		{"symlink out", signed("chat-1", "link"), 404},
		{"symlinked directory out", signed("chat-1", "dirlink/host-secret"), 404},
		{"relative symlink out", signed("chat-1", "up"), 404},
		{"symlink loop", signed("chat-1", "loop"), 404},
		{"FIFO", signed("chat-1", "fifo.txt"), 404},
		{"a file as a directory", signed("chat-1", "a.txt/x"), 404},
		{"dots", "/files/chat-1/../../etc/passwd" + sig("chat-1", "../../etc/passwd"), 400},
		{"escaped dots", "/files/chat-1/%2e%2e/%2e%2e/etc/passwd" + sig("chat-1", "../../etc/passwd"), 400},
		{"escaped slash and dots", "/files/chat-1/..%2f..%2fetc%2fpasswd" + sig("chat-1", "../../etc/passwd"), 400},
		{"twice escaped dots are a name", "/files/chat-1/%252e%252e/x" + sig("chat-1", "%2e%2e/x"), 404},
		{"dots as the session", "/files/../a.txt" + sig("..", "a.txt"), 400},
		{"absolute", "/files/chat-1//etc/passwd" + sig("chat-1", "/etc/passwd"), 400},
		{"NUL", "/files/chat-1/a.txt%00.png" + sig("chat-1", "a.txt\x00.png"), 400},
		{"trailing slash", "/files/chat-1/a.txt/" + sig("chat-1", "a.txt/"), 400},
		{"no name", "/files/chat-1/" + sig("chat-1", ""), 400},
		{"no id", "/files/", 400},
		{"a very long name", signed("chat-1", strings.Repeat("n", 4096)), 404},
		{"backslashes", signed("chat-1", `..\..\etc\passwd`), 404},
		{"newline", signed("chat-1", "a\nb"), 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, method := range []string{"GET", "HEAD"} {
				w := do(s, request(method, tc.target))
				if w.Code != tc.status || strings.Contains(w.Body.String(), "SECRET") || strings.Contains(w.Body.String(), "root:") {
					t.Errorf("%s %s = %d %q, want %d", method, tc.target, w.Code, w.Body, tc.status)
				}
			}
		})
	}
	for _, method := range []string{"POST", "DELETE", "OPTIONS"} {
		if w := do(s, request(method, signed("chat-1", "a.txt"))); w.Code != 405 || w.Header().Get("Allow") == "" {
			t.Errorf("%s = %d", method, w.Code)
		}
	}
}

func TestUpload(t *testing.T) {
	s := newFileServer(t)
	future := time.Now().Add(time.Minute)
	put := func(link, body string, length int64) *httptest.ResponseRecorder {
		r := httptest.NewRequest("PUT", target(link), strings.NewReader(body))
		r.Host, r.ContentLength = "localhost", length
		return do(s, r)
	}
	link := s.signer.UploadURL("chat-1", "up/data.csv", "t1", future)

	// None of these may use up the ticket.
	for _, tc := range []struct {
		name   string
		link   string
		length int64
		status int
	}{
		{"too large, and says so", link, 1001, 413},
		{"another name", strings.Replace(link, "data.csv", "evil.csv", 1), 3, 403},
		{"another ticket", strings.Replace(link, "t1", "t2", 1), 3, 403},
		{"a download link", s.signer.FileURL("chat-1", "up/data.csv"), 3, 403},
		{"expired", s.signer.UploadURL("chat-1", "up/data.csv", "t1", time.Now().Add(-time.Second)), 3, 403},
	} {
		if w := put(tc.link, "a,b", tc.length); w.Code != tc.status {
			t.Errorf("%s: %d %s, want %d", tc.name, w.Code, w.Body, tc.status)
		}
	}
	// An upload link does not work for downloads.
	if w := do(s, request("GET", target(link))); w.Code != 403 {
		t.Errorf("GET of an upload link = %d", w.Code)
	}

	if w := put(link, "a,b", 3); w.Code != 201 || !strings.Contains(w.Body.String(), `"size_bytes":3`) {
		t.Fatalf("PUT = %d %s", w.Code, w.Body)
	}
	if got, err := os.ReadFile(filepath.Join(s.dir, "up", "data.csv")); err != nil || string(got) != "a,b" {
		t.Fatalf("stored %q, %v", got, err)
	}
	if w := put(link, "again", 5); w.Code != http.StatusGone {
		t.Errorf("second PUT = %d %s", w.Code, w.Body)
	}
	if w := put(s.signer.UploadURL("chat-1", "big", "t2", future), strings.Repeat("x", 1001), -1); w.Code != 413 || !strings.Contains(w.Body.String(), "larger than 1000 bytes") {
		t.Errorf("PUT over the limit without a length = %d %s", w.Code, w.Body)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "big")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused upload left a file: %v", err)
	}
	s.Handler = httpapi.New(config(func(c *httpapi.Config) {
		c.Files, c.Signer, c.MaxUploadBytes = s.executor, s.signer, 20_000<<20+500<<10
	}))
	if w := put(link, "", 1<<40); w.Code != 413 || !strings.Contains(w.Body.String(), "larger than 20000.48 MB") {
		t.Errorf("a large limit: %d %s", w.Code, w.Body)
	}
	if u, err := url.Parse(link); err != nil || strings.Contains(s.log.String(), u.Query().Get("sig")) {
		t.Errorf("the log has a signature (%v)", err)
	}
}
