package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/httpconn"
)

// TestFoldedName: a name whose other letters fold to ASCII is another name.
func TestFoldedName(t *testing.T) {
	for name, ok := range map[string]bool{"key.example.com": true, "KEY.example.com": true, "\u212aey.example.com": false} {
		code, codeEnd := net.Pipe()
		hello := clientHello(t, &tls.Config{ServerName: name})
		go func() {
			defer codeEnd.Close()
			_, _ = codeEnd.Write(hello)
		}()
		if _, err := readHello(code, "key.example.com"); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
		code.Close()
	}
}

// TestUnreadRefusal: code that never reads why it may not connect keeps its connection for a while
// only.
func TestUnreadRefusal(t *testing.T) {
	e := newEgress(t, Config{})
	synctest.Test(t, func(t *testing.T) {
		e.Grant("ann", "run_1", "sb", []string{"api.example.com:443"})
		code, conn := net.Pipe() // a write waits for a read
		served := make(chan struct{})
		go func() {
			defer close(served)
			httpconn.Serve(t.Context(), conn, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.ServeSandbox(w, r, "sb") }), slog.New(slog.DiscardHandler))
		}()
		start := time.Now()
		fmt.Fprint(code, "CONNECT evil.example.com:443 HTTP/1.1\r\nHost: evil.example.com:443\r\n\r\n")
		<-served
		if took := time.Since(start); took != refusalTimeout { // in the bubble's time
			t.Errorf("it took %v", took)
		}
		e.Release("run_1")
		code.Close()
	})
}

// TestUnreadAnswer: so does code that never reads the answers to its plain requests.
func TestUnreadAnswer(t *testing.T) {
	e := newEgress(t, Config{})
	synctest.Test(t, func(t *testing.T) {
		e.Grant("ann", "run_1", "sb", []string{"api.example.com:443"})
		code, conn := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			httpconn.Serve(t.Context(), conn, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.ServeSandbox(w, r, "sb") }), slog.New(slog.DiscardHandler))
		}()
		start := time.Now()
		fmt.Fprint(code, "GET http://evil.example.com/ HTTP/1.1\r\nHost: evil.example.com\r\n\r\n")
		<-served
		if took := time.Since(start); took < refusalTimeout || took > 2*refusalTimeout {
			t.Errorf("it took %v", took)
		}
		e.Release("run_1")
		code.Close()
	})
}

// halfConn is one end of two pipes, so that each direction ends on its own.
type halfConn struct {
	net.Conn // in
	out      net.Conn
}

func (c halfConn) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c halfConn) CloseWrite() error                { return c.out.Close() }
func (c halfConn) SetWriteDeadline(time.Time) error { return nil }
func (c halfConn) Close() error                     { return errors.Join(c.Conn.Close(), c.out.Close()) }

func halfConns() (a, b halfConn) {
	in, inEnd := net.Pipe()
	out, outEnd := net.Pipe()
	return halfConn{in, outEnd}, halfConn{out, inEnd}
}

// TestCodeHasLeft: a connection whose code has sent its end lasts while the host sends, and ends
// when the host has been silent for a while.
func TestCodeHasLeft(t *testing.T) {
	e := newEgress(t, Config{})
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		code, codeEnd := halfConns()
		conn, host := halfConns()
		go func() { _, _ = io.Copy(io.Discard, code) }()
		tun := &tunnel{Conn: conn, e: e, runs: []*run{{}}, to: target{"api.example.com", 7000}, ctx: ctx, cancel: cancel}
		tun.runs[0].upload.Store(1 << 20)
		carried := make(chan struct{})
		start := time.Now()
		go func() {
			defer close(carried)
			tun.carry(codeEnd)
		}()
		go func() { _, _ = io.Copy(io.Discard, host) }()
		_ = code.CloseWrite()
		for range 3 {
			time.Sleep(halfTimeout - time.Second)
			if _, err := host.Write([]byte("still here")); err != nil {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		last := time.Now()
		<-carried
		if silent := time.Since(last); silent != halfTimeout {
			t.Errorf("it ended %v after the host's last byte", silent)
		}
	})
}

// before are what some servers skip before a ClientHello.
var before = map[string][]byte{
	"a warning":                   {21, 3, 1, 0, 2, 1, 0x5a},
	"an alert of no known level":  {21, 3, 3, 0, 2, 7, 0x5a},
	"a warning of no TLS version": {21, 0x7f, 0x7f, 0, 2, 1, 0x5a},
	"half a warning":              {21, 3, 3, 0, 1, 1},
	"two warnings":                {21, 3, 3, 0, 4, 1, 0x5a, 1, 0x5a},
	"a change_cipher_spec":        {20, 3, 3, 0, 1, 1},
	"an empty record":             {22, 3, 1, 0, 0},
	"an empty change_cipher_spec": {20, 3, 1, 0, 0},
	"empty records and an alert":  {22, 3, 1, 0, 0, 22, 3, 1, 0, 0, 21, 3, 1, 0, 2, 1, 0x5a},
}

// TestCheckFirst: on any port, what servers take for TLS must name the host; all that was read is
// sent on.
func TestCheckFirst(t *testing.T) {
	hello, other := clientHello(t, &tls.Config{ServerName: "api.example.com"}), clientHello(t, &tls.Config{ServerName: "evil.example.com"})
	noVersion := bytes.Clone(other)
	noVersion[1], noVersion[2] = 0x7f, 0x7f // which s2n-tls accepts
	type test struct {
		first []byte
		want  string // the refusal, or "" if it is sent on
	}
	tests := map[string]test{
		"nothing":                  {nil, ""},
		"a hello":                  {hello, ""},
		"a hello and 3 KB":         {append(bytes.Clone(hello), bytes.Repeat([]byte{23}, 3<<10)...), ""},
		"a warning and a hello":    {append(bytes.Clone(before["a warning"]), hello...), ""},
		"another hello":            {other, "asks for evil.example.com"},
		"a hello of no version":    {noVersion, "must begin with a TLS handshake"},
		"a part of a record":       {hello[:5], "must begin with a TLS handshake"},
		"a ServerHello":            {[]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, ""},
		"SSH":                      {[]byte("SSH-2.0-x\r\n"), ""},
		"telnet":                   {[]byte{0xff, 0xfd, 1}, ""},
		"MySQL, 276 bytes":         {append([]byte{20, 1, 0, 1, 0x85, 0xa6, 0xff, 1}, make([]byte, 272)...), ""},
		"MySQL, 277 bytes":         {append([]byte{21, 1, 0, 1, 0x85, 0xa6, 0xff, 1}, make([]byte, 273)...), ""},
		"MySQL, 278 bytes":         {append([]byte{22, 1, 0, 1, 0x85, 0xa6, 0xff, 1}, make([]byte, 274)...), ""},
		"MySQL, 789 bytes":         {append([]byte{21, 3, 0, 1, 0x85, 0xa6, 0xff, 1}, make([]byte, 785)...), ""},
		"MySQL, 790 bytes":         {append([]byte{22, 3, 0, 1, 0x85, 0xa6, 0xff, 1}, make([]byte, 786)...), ""},
		"MongoDB, first request":   {append([]byte{22, 1, 0, 0, 1, 0, 0, 0}, make([]byte, 270)...), ""},
		"MongoDB, second request":  {append([]byte{21, 1, 0, 0, 2, 0, 0, 0}, make([]byte, 269)...), ""},
		"MongoDB, request 0":       {append([]byte{22, 1, 0, 0, 0, 0, 0, 0}, make([]byte, 270)...), ""},
		"a length and little else": {[]byte{20, 0, 0, 0, 9, 9}, ""},
	}
	for name, first := range before {
		want := "must begin with a TLS handshake"
		if name == "a warning" {
			want = "asks for evil.example.com"
		}
		tests[name+" and another hello"] = test{append(bytes.Clone(first), other...), want}
	}
	for name, tt := range tests {
		for way, pieces := range map[string][][]byte{"at once": {tt.first}, "its first byte alone": {tt.first[:min(1, len(tt.first))], tt.first[min(1, len(tt.first)):]},
			"in bytes": slices.Collect(slices.Chunk(tt.first, 1))} {
			code, codeEnd := net.Pipe() // a read returns what one write brought
			go func() {
				defer codeEnd.Close()
				for _, p := range pieces {
					if len(p) > 0 {
						_, _ = codeEnd.Write(p)
					}
				}
			}()
			tun := &tunnel{to: target{"api.example.com", 8443}}
			conn, err := tun.checkFirst(code)
			if got := ""; err != nil || tt.want != "" {
				if err != nil {
					got = err.Error()
				}
				if tt.want == "" || !strings.Contains(got, tt.want) {
					t.Errorf("%s, %s: %q, want %q", name, way, got, tt.want)
				}
			} else if all, err := io.ReadAll(conn); err != nil || !bytes.Equal(all, tt.first) {
				t.Errorf("%s, %s: %d of %d bytes are sent on, %v", name, way, len(all), len(tt.first), err)
			}
			code.Close()
		}
	}
}

// FuzzHello: what crypto/tls takes for a ClientHello begins TLS for us too, names the host in the
// clear, and is sent on as it is.
func FuzzHello(f *testing.F) {
	const name = "api.example.com"
	hello := clientHello(f, &tls.Config{ServerName: name})
	f.Add(hello)
	f.Add(clientHello(f, &tls.Config{ServerName: "evil.example.com"}))
	f.Add(withExtension(hello, extensionECH))
	f.Add(append(bytes.Clone(hello), 20, 3, 3, 0, 1, 1))
	f.Add(append([]byte{22, 3, 1, 0, 1, 1, 22, 3, 1}, append([]byte{byte((len(hello) - 6) >> 8), byte(len(hello) - 6)}, hello[6:]...)...))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	for _, first := range before {
		f.Add(append(bytes.Clone(first), hello...))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		rest := bytes.NewReader(sent)
		read, err := readHello(readOnly{Reader: rest}, name)
		if err != nil {
			return
		}
		if !beginsTLS(sent[:min(recordStart, len(sent))]) {
			t.Errorf("% x is a ClientHello, but would not be checked", sent)
		}
		left, _ := io.ReadAll(rest)
		if all := append(read, left...); !bytes.Equal(all, sent) || !bytes.Contains(bytes.ToLower(read), []byte(name[4:])) {
			t.Errorf("% x became % x", sent, all)
		}
	})
}

// readOnly is a connection that ends.
type readOnly struct {
	net.Conn
	io.Reader
}

func (c readOnly) Read(p []byte) (int, error) { return c.Reader.Read(p) }

// clientHello returns the first bytes of a TLS client.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	c := &captured{}
	_ = tls.Client(c, cfg).Handshake()
	if c.Len() == 0 {
		t.Fatal("the client sent nothing")
	}
	return c.Bytes()
}

// captured keeps what is written and ends there.
type captured struct {
	net.Conn
	bytes.Buffer
}

func (c *captured) Read([]byte) (int, error)    { return 0, io.EOF }
func (c *captured) Write(p []byte) (int, error) { return c.Buffer.Write(p) }
func (c *captured) Close() error                { return nil }

// withExtension adds an extension to a ClientHello in one record.
func withExtension(hello []byte, id uint16) []byte {
	out := bytes.Clone(hello)
	at := 5 + 4 + 2 + 32 // record, message, version, random
	at += 1 + int(out[at])
	at += 2 + int(out[at])<<8 + int(out[at+1])
	at += 1 + int(out[at])
	// An outer ECH extension: type, KDF and AEAD, config, key and payload.
	data := []byte{0, 0, 1, 0, 1, 7, 0, 1, 9, 0, 1, 9}
	ext := append([]byte{byte(id >> 8), byte(id), 0, byte(len(data))}, data...)
	grow := func(at, size int) {
		n := 0
		for _, b := range out[at : at+size] {
			n = n<<8 | int(b)
		}
		n += len(ext)
		for i := size - 1; i >= 0; i-- {
			out[at+i] = byte(n)
			n >>= 8
		}
	}
	grow(3, 2)
	grow(6, 3)
	grow(at, 2)
	rest := bytes.Clone(out[at+2:])
	return append(append(out[:at+2], ext...), rest...)
}

// TestHelloTimeout: code that opens a connection and sends no whole ClientHello loses it. On ports
// other than 443, that goes for what may become one.
func TestHelloTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		port  uint16
		first string
	}{
		"nothing": {443, ""}, "a byte": {443, "\x16"}, "a part": {443, "\x16\x03\x01\x02\x00\x01"},
		"a byte to 8443": {8443, "\x15"}, "a header to 8443": {8443, "\x16\x03\x01\x00\x00"}, "a part to 8443": {8443, "\x16\x03\x01\x02\x00\x01"},
	} {
		e := newEgress(t, Config{})
		synctest.Test(t, func(t *testing.T) {
			code, codeEnd := net.Pipe()
			host, hostEnd := net.Pipe()
			defer hostEnd.Close()
			r := &run{id: "run_1", caller: "ann"}
			ctx, cancel := context.WithCancelCause(t.Context())
			lease, err := e.tunnels.TryAcquire("ann", 1)
			if err != nil {
				t.Fatal(err)
			}
			tun := &tunnel{Conn: host, e: e, runs: []*run{r}, to: target{"api.example.com", tt.port}, ctx: ctx, cancel: cancel, lease: lease}
			done := make(chan struct{})
			go func() {
				defer close(done)
				tun.carry(code)
				tun.finish()
			}()
			if tt.first != "" {
				_, _ = codeEnd.Write([]byte(tt.first))
			}
			<-done // in the bubble's time
			if len(r.blocked) != 1 || !strings.Contains(r.blocked[0].Rule, "TLS") {
				t.Errorf("%s: %+v", name, r.blocked)
			}
		})
	}
}
