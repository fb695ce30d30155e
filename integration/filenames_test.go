//go:build linux

package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

// sign is contract 1's formula.
func sign(secret, id, name string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	io.WriteString(mac, id+"/"+name)
	return hex.EncodeToString(mac.Sum(nil))
}

// TestBadFileNames checks that no name leads out of the workspace by any way, and that each refusal
// says what is wrong.
func TestBadFileNames(t *testing.T) {
	const secret = "the-file-secret"
	s := serve(t, "FILE_SECRET="+secret)
	s.run(t, "names", "shell", `mkdir dir; echo inside > dir/f; echo inside > f; printf x > $'new\nline'; printf x > $'\xff'; printf x > 'back\slash'`)
	names := []struct {
		name string
		ok   bool // it can be a file's name
	}{
		{"..", false}, {"../f", false}, {"dir/../f", false}, {"dir/../../x", false}, {".", false}, {"./x", false}, {"dir/./x", false},
		{"/etc/passwd", false}, {"/x", false}, {"//x", false}, {"/data/../etc/passwd", false}, {"/data", false}, {"/data/", false}, {"dir//x", false},
		{"a\x00.txt", false}, {"\x00", false}, {"new\nname", false}, {"tab\tname", false}, {"\x1b[31m", false}, {"\x7f", false}, {"line\u2028end", false},
		{`..\f`, false}, {`C:\x`, false}, {"dir/", false}, {"x/", false}, {"/", false}, {"dir", false}, {"f/x", false},
		{strings.Repeat("a", 256), false}, {strings.Repeat("a", 4096), false}, {strings.Repeat("a/", 2048) + "a", false}, {strings.Repeat("../", 100) + "etc/passwd", false},
		{"%2e%2e", true}, {"%2e%2e%2fx", true}, {"%00", true}, {"-rf", true}, {"--help", true}, {"ünïcode 日本語 🎉.txt", true}, {"e\u0301", true}, {"...", true}, {".hidden", true},
		{"a b", true}, {"~root", true}, {"$(id)", true}, {"`id`", true}, {"a;b&c|d", true}, {"a?b#c", true}, {"'quoted\"", true}, {"new/deep/er/x", true}, {"/data/abs", true}, {"/mnt/data/abs2", true},
		{"/workspace/abs3", true}, {strings.Repeat("b", 255), true}, {"CON", true},
	}
	for _, tt := range names {
		t.Run(fmt.Sprintf("%.40q", tt.name), func(t *testing.T) {
			upload := s.answer(t, "upload_file", map[string]any{"conversationId": "names", "filename": tt.name, "content": "aGk="})
			link := s.answer(t, "upload_file", map[string]any{"conversationId": "names", "filename": tt.name, "overwrite": true})
			for door, got := range map[string]string{"upload": upload, "link": link} {
				refused := strings.HasPrefix(got, "invalid_path: ") || strings.HasPrefix(got, "file_exists: ") && tt.name == "dir"
				if door == "link" && (tt.name == "dir" || tt.name == "f/x") {
					continue // a link knows the name, not yet the workspace
				}
				if tt.ok != strings.HasPrefix(got, `result: `) || tt.ok == refused || len(got) > 3000 {
					t.Errorf("%s: %.1000s", door, got)
				}
				if !tt.ok && strings.ContainsAny(got, "\x00\x1b\n") {
					t.Errorf("%s: the refusal repeats control characters: %q", door, got)
				}
			}
			// Correctly signed, it still leads nowhere.
			for _, escaped := range []string{url.PathEscape(tt.name), strings.ReplaceAll(url.PathEscape(tt.name), "%2F", "/")} {
				got := s.raw(t, "GET /files/names/"+escaped+"?sig="+sign(secret, "names", tt.name)+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
				clean := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(tt.name, "/workspace/"), "/mnt/data/"), "/data/")
				switch {
				case tt.ok && clean == tt.name:
					if got != "HTTP/1.1 200 OK\nhi" {
						t.Errorf("GET %.60s: %.300q", escaped, got)
					}
				case !strings.HasPrefix(got, "HTTP/1.1 400") && !strings.HasPrefix(got, "HTTP/1.1 404"):
					t.Errorf("GET %.60s: %.300q", escaped, got)
				}
				for _, method := range []string{"GET", "HEAD", "PUT"} {
					for _, query := range []string{"", "?sig=", "?sig=" + strings.Repeat("0", 64), "?sig=" + sign(secret, "other", tt.name), "?upload=x&expires=99999999999&sig=" + sign(secret, "names", tt.name)} {
						got := s.raw(t, method+" /files/names/"+escaped+query+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
						if !strings.HasPrefix(got, "HTTP/1.1 403") && !strings.HasPrefix(got, "HTTP/1.1 400") {
							t.Errorf("%s %.60s%s: %.300q", method, escaped, query, got)
						}
					}
				}
			}
		})
	}
	// Odd names that a program chose get working links and break no line of the log.
	r := s.run(t, "odd-names", "python", `
import os
for n in (b"new\nline", b"\xff\xfe", b"back\\slash", b"tab\t", b"\x1b[31mred", b" ", b"-", b"%2e%2e", b"a" * 255): open(n, "wb").write(b"own")
os.makedirs(b"d\nir/\xff"); open(b"d\nir/\xff/f", "wb").write(b"own")
`)
	if len(r.Files) != 10 {
		t.Errorf("%d files: %+v", len(r.Files), r.Files)
	}
	for _, f := range r.Files {
		if status, body := s.fetch(t, http.MethodGet, f.URL, nil); status != http.StatusOK || string(body) != "own" {
			t.Errorf("%q at %s: %d %.100q", f.Name, f.URL, status, body)
		}
	}
	for line := range strings.Lines(s.log.String()) {
		if strings.HasPrefix(line, "line") || strings.HasPrefix(line, "ir/") || strings.ContainsAny(line, "\x1b\t\x00") || !utf8.ValidString(line) {
			t.Errorf("a file's name gets into the log as %q", line)
		}
	}
}

// TestUploadLinks checks that a link takes one file, once, of the right size.
func TestUploadLinks(t *testing.T) {
	s := serve(t, "SANDBOX_MAX_UPLOAD_BYTES=1000")
	link := func(name string, overwrite bool) string {
		got := s.answer(t, "upload_file", map[string]any{"conversationId": "up", "filename": name, "overwrite": overwrite})
		var v struct {
			UploadURL string `json:"upload_url"`
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(got, "result: ")), &v); err != nil || v.UploadURL == "" {
			t.Fatalf("no link: %s", got)
		}
		return v.UploadURL
	}
	put := func(what, url string, body []byte, want int) {
		t.Helper()
		if status, answer := s.fetch(t, http.MethodPut, url, body); status != want {
			t.Errorf("%s: %d %.300s, want %d", what, status, answer, want)
		}
	}
	a := link("a.txt", false)
	put("another name", strings.Replace(a, "/a.txt", "/b.txt", 1), []byte("x"), http.StatusForbidden)
	put("another session", strings.Replace(a, "/up/", "/down/", 1), []byte("x"), http.StatusForbidden)
	put("a later expiry", strings.Replace(a, "expires=", "expires=9", 1), []byte("x"), http.StatusForbidden)
	put("another ticket", strings.Replace(a, "upload=", "upload=0", 1), []byte("x"), http.StatusForbidden)
	put("too large", a, make([]byte, 1001), http.StatusRequestEntityTooLarge)
	put("the right one", a, []byte("first"), http.StatusCreated)
	put("again", a, []byte("second"), http.StatusGone)
	put("over a file", link("a.txt", false), []byte("third"), http.StatusConflict)
	put("over a file, as asked", link("a.txt", true), []byte("fourth"), http.StatusCreated)
	put("a download link", s.run(t, "up", "shell", "cat a.txt").Files[0].URL, []byte("x"), http.StatusForbidden)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if status, _ := s.fetch(t, method, link("b.txt", false), nil); status != http.StatusForbidden && status != http.StatusMethodNotAllowed {
			t.Errorf("%s with an upload link: %d", method, status)
		}
	}

	// Ten at once: one wins, and its file is complete.
	race := func(what string, try func(i int) bool) {
		var won atomic.Int32
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if try(i) {
					won.Add(1)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Errorf("%d of ten %s succeeded", won.Load(), what)
		}
	}
	once := link("once.txt", false)
	race("uses of one link", func(i int) bool {
		status, _ := s.fetch(t, http.MethodPut, once, []byte(strings.Repeat(fmt.Sprint(i), 500)))
		return status == http.StatusCreated
	})
	race("uploads of one name", func(i int) bool {
		got := s.answer(t, "upload_file", map[string]any{"conversationId": "up", "filename": "same.txt", "content": "aGVsbG8="})
		return strings.HasPrefix(got, "result: ")
	})
	if r := s.run(t, "up", "shell", "fold -w1 once.txt | sort -u | wc -l; wc -c < once.txt; rm once.txt same.txt"); r.Output != "1\n500\n" {
		t.Errorf("the file of the link that ten used: %q", r.Output)
	}

	// Uploads of an unknown length and of a false one.
	u, err := url.Parse(link("c.txt", false))
	if err != nil {
		t.Fatal(err)
	}
	head := "PUT " + u.RequestURI() + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
	chunk := "100\r\n" + strings.Repeat("x", 256) + "\r\n"
	if got := s.raw(t, head+"Transfer-Encoding: chunked\r\n\r\n"+strings.Repeat(chunk, 10)+"0\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 413") {
		t.Errorf("too many chunks: %.200q", got)
	}
	u, _ = url.Parse(link("d.txt", false))
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\nonly this", u.RequestURI())
	conn.Close()

	eventually(t, 10*time.Second, "nothing but a.txt to be there", func() bool {
		r := s.run(t, "up", "shell", "ls -A; cat a.txt")
		return r.Output == "a.txt\nfourth"
	})
}
