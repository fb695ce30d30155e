package httpapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/httpapi"
)

// TestAmbiguousLength: an attacker sends a request whose end a proxy and the server may see at
// different places, with another one in its body. The server does not answer that.
func TestAmbiguousLength(t *testing.T) {
	srv := httpapi.NewServer(httpapi.New(config(nil)), nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(httpapi.Limit(l, 100))
	t.Cleanup(func() { srv.Close() })

	const auth = "Authorization: Bearer " + token + "\r\n"
	post := func(headers, body string) string {
		return "POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + headers + "\r\n" + body
	}
	const chunked, chunks = "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"
	get := "GET /mcp HTTP/1.1\r\nHost: localhost\r\n" + auth + "\r\n"
	for _, tt := range []struct {
		name     string
		requests []string // each sent when the one before was answered
		answers  int
	}{
		{"length alone", []string{post("Content-Length: 3\r\n", "abc"), get}, 2},
		{"chunked alone", []string{post(chunked, chunks), post(chunked, chunks), get}, 3},
		{"many", []string{get, get, post(chunked, chunks), get}, 4},
		{"a long head", []string{post("X-Long: "+strings.Repeat("x", 20<<10)+"\r\n"+chunked, chunks), get}, 2},
		{"a body that speaks of a length", []string{post(chunked, "14\r\nContent-Length: 5\r\n\r\r\n0\r\n\r\n"), get}, 2},

		{"both", []string{post("Content-Length: 3\r\n"+chunked, chunks), get}, 1},
		{"both, the other way round", []string{post(chunked+"content-length:3\r\n", chunks), get}, 1},
		{"both, later", []string{get, post(chunked, chunks), post(chunked+"Content-Length: 3\r\n", chunks), get}, 3},
		{"both, and another inside", []string{post("Content-Length: 4\r\n"+chunked, "0\r\n\r\n"+get)}, 1},
		{"both, sent ahead", []string{get + post("Content-Length: 3\r\n"+chunked, chunks) + get}, 2},
		{"both, after a long head", []string{post("X-Long: "+strings.Repeat("x", 20<<10)+"\r\nContent-Length: 3\r\n"+chunked, chunks), get}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			read := bufio.NewReader(c)
			answers, last := 0, false
			answer := func() bool {
				resp, err := http.ReadResponse(read, nil)
				if err != nil {
					return false
				}
				body, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != 200 || string(body) != "local" {
					t.Errorf("%d %q, %v", resp.StatusCode, body, err)
				}
				answers, last = answers+1, resp.Close
				return true
			}
			for _, r := range tt.requests {
				if _, err := fmt.Fprint(c, r); err != nil {
					break // the server has closed
				}
				answer()
			}
			closes := tt.answers < len(tt.requests) || strings.HasSuffix(tt.name, "inside") || strings.HasSuffix(tt.name, "ahead")
			for closes && answer() {
			}
			if answers != tt.answers || last != closes {
				t.Errorf("%d answers, the last with Connection: close: %t; want %d, %t", answers, last, tt.answers, closes)
			}
		})
	}
}
