package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/egress/egresstest"
)

// TestAttackNames: nothing that is not an allowed name is connected to or even resolved.
func TestAttackNames(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	for _, name := range []string{"api.example.com", "evil.example.com", "example.org", "a.example.org", "xn--pi-xka.example.com"} {
		s.world.Name(name, egresstest.Public)
	}
	auth := s.grant("run_1", "sb", "api.example.com", "*.example.org", "db.example.com:5432")
	hosts := []string{
		"203.0.114.1:443", "203.0.28929:443", "0313.0.0162.1:443", "0xcb.0.0x72.1:443", "3405804033:443", "0xcb007201:443", "203.0.114.1.:443",
		"[::ffff:203.0.114.1]:443", "[::ffff:cb00:7201]:443", "[::1]:443", "127.0.0.1:8099", "169.254.169.254:80", "localhost:443",
		"evil.example.com:443", "example.org:443", "evilexample.org:443", "api.example.com.evil.example.com:443", "a.example.org.evil.example.com:443",
		"xn--pi-xka.example.com:443", "api.example.com:22", "api.example.com:8443", "db.example.com:443", "api_example.com:443",
	}
	for _, host := range hosts {
		for _, auth := range []string{auth, ""} {
			if status, body, _ := s.connect("sb", auth, host); status != 403 || !strings.Contains(body, `"error"`) {
				t.Errorf("CONNECT %s: %d %s", host, status, body)
			}
		}
		if got, _ := io.ReadAll(s.dial("sb", host)); len(got) > 0 {
			t.Errorf("by name to %s: %q", host, got)
		}
		if status, body, _ := s.send("sb", auth, "GET http://"+host+"/ HTTP/1.1\r\nHost: api.example.com"); status != 403 {
			t.Errorf("GET %s: %d %s", host, status, body)
		}
	}
	for _, host := range []string{
		"api.example.com", "api.example.com:", "api.example.com:0", "api.example.com:65979", "api.example.com:https", "user@api.example.com:443", "api.example.com:443@evil.example.com:443",
		"evil.example.com\x00.api.example.com:443", "api.example.com\x00:443", "api.example.com%00:443", "ápi.example.com:443", "api。example.com:443", "/etc:443", "api.example.com:443/x",
	} {
		if status, _, _ := s.connect("sb", auth, host); status < 400 || status >= 500 {
			t.Errorf("CONNECT %q: %d", host, status)
		}
		if got, _ := io.ReadAll(s.dial("sb", host)); len(got) > 0 {
			t.Errorf("by name to %q: %q", host, got)
		}
	}
	if _, body, _ := s.connect("sb", auth, "api.example.com"); !strings.Contains(body, "api.example.com:443") {
		t.Errorf("without a port: %s", body)
	}
	s.wantQueries()
	blocked := s.Release("run_1")
	rules := map[string]string{}
	for _, b := range blocked {
		rules[b.Host] = b.Rule
	}
	for host, want := range map[string]string{
		"203.0.114.1:443": "none: it is an IP address", "[::1]:443": "none: it is an IP address", "evil.example.com": "evil.example.com", "api.example.com:22": "api.example.com:22",
		"example.org": "example.org", "localhost:443": "none: it is a single word",
	} {
		if !strings.HasPrefix(rules[host], want) {
			t.Errorf("%s: rule %q, want %q", host, rules[host], want)
		}
	}
	if len(blocked) > maxBlocked {
		t.Errorf("%d hosts", len(blocked))
	}

	// A note of the resolver about a name that no rule allows dials nothing. A run without hosts
	// gets it too. A name that is known is not blocked.
	s.grant("run_2", "sb")
	s.grant("run_3", "sb", "api.example.com:8443")
	for range 3 {
		_, _ = io.ReadAll(s.dial("sb", "evil.example.com:0"))
	}
	_, _ = io.ReadAll(s.dial("sb", "api.example.com:0"))
	_, _ = io.ReadAll(s.dial("other", "evil.example.com:0"))
	s.wantQueries()
	if b := s.Release("run_2"); len(b) != 1 || b[0] != (Blocked{"evil.example.com", 3, "evil.example.com"}) {
		t.Errorf("%+v", b)
	}
	s.wantBlocked("run_3", "evil.example.com evil.example.com")
}

// TestAttackAddresses: what a name leads to is checked when it is dialed.
func TestAttackAddresses(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	own, err := net.Listen("tcp4", "0.0.0.0:5432") // this server itself
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	var accepted sync.WaitGroup
	accepted.Go(func() {
		if c, err := own.Accept(); err == nil {
			t.Error("code reached the server itself")
			c.Close()
		}
	})
	w := s.world
	w.Name("private.example.com", egresstest.Private)
	w.Name("cname.example.com", "private.example.com")
	w.Name("metadata.example.com", egresstest.Metadata)
	w.Name("self.example.com", egresstest.Host)
	w.Name("loop.example.com", "127.0.0.1")
	w.Name("zero.example.com", "0.0.0.0")
	for name, addr := range map[string]string{"loop6": "::1", "zero6": "::", "mapped": "::ffff:127.0.0.1", "private6": "fd00::1", "nat64": "64:ff9b::10.9.0.1"} {
		w.Name6(name+".example.com", addr)
	}
	var calls int
	w.NameFunc("rebind.example.com", func() []string {
		calls++
		if calls == 1 {
			return []string{egresstest.Public}
		}
		return []string{egresstest.Private}
	})
	auth := s.grant("run_1", "sb", "*.example.com:5432", "*.example.com:443", "*.example.com")
	if status, body, conn := s.connect("sb", auth, "rebind.example.com:5432"); status != 200 {
		t.Errorf("the first address is public: %d %s", status, body)
	} else {
		conn.Close()
	}
	if n := w.Queries()["rebind.example.com"]; n != 1 {
		t.Errorf("a connection resolves its name %d times", n)
	}
	for _, name := range []string{"rebind", "private", "cname", "metadata", "self", "loop", "zero", "loop6", "zero6", "mapped", "private6", "nat64"} {
		for _, port := range []string{"443", "5432"} {
			if status, body, _ := s.connect("sb", auth, name+".example.com:"+port); status != 403 || !strings.Contains(body, codePrivate) {
				t.Errorf("%s: %d %s", name, status, body)
			}
		}
		if got, _ := io.ReadAll(s.dial("sb", name+".example.com:5432")); len(got) > 0 {
			t.Errorf("by name to %s: %q", name, got)
		}
		if status, body, _ := s.send("sb", auth, "GET http://"+name+".example.com/ HTTP/1.1\r\nHost: x"); status != 403 || !strings.Contains(body, codePrivate) {
			t.Errorf("GET %s: %d %s", name, status, body)
		}
	}
	if status, body, _ := s.connect("sb", auth, "missing.example.com:443"); status != 502 || !strings.Contains(body, "does not exist") {
		t.Errorf("%d %s", status, body)
	}
	for _, b := range s.Release("run_1") {
		if !strings.Contains(b.Rule, "SANDBOX_NETWORK_ALLOW") && b.Host != "missing.example.com" {
			t.Errorf("%+v", b)
		}
	}
	own.Close()
	accepted.Wait()
}

// TestAttackTLS: TLS must name the host, in the clear.
func TestAttackTLS(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	auth := s.grant("run_0", "sb", "api.example.com", "api.example.com:8443", "api.example.com:5432")
	hello := clientHello(t, &tls.Config{ServerName: "api.example.com"})
	record := func(pieces ...[]byte) (all []byte) { // the handshake message in several records
		for _, p := range pieces {
			all = append(append(all, 22, 3, 1, byte(len(p)>>8), byte(len(p))), p...)
		}
		return all
	}
	body := hello[5:]
	fragmented := record(body[:1], body[1:5], body[5:60], body[60:])
	for name, pieces := range map[string][][]byte{
		"one packet": {hello}, "bytes": bytes.Split(hello, nil), "records": {fragmented}, "bytes of records": bytes.Split(fragmented, nil),
		"upper case": {clientHello(t, &tls.Config{ServerName: "API.example.com"})},
	} {
		for _, port := range []string{"443", "8443"} {
			_, _, conn := s.connect("sb", auth, "api.example.com:"+port)
			for _, p := range pieces {
				if _, err := conn.Write(p); err != nil {
					t.Fatal(err)
				}
			}
			answer := make([]byte, 1)
			if _, err := io.ReadFull(conn, answer); err != nil || answer[0] != 22 {
				t.Errorf("%s to %s: %v, %v", name, port, answer, err)
			}
			conn.Close()
		}
	}
	// What follows the hello in the same packet, such as early data, reaches the host.
	_, _, conn := s.connect("sb", auth, "api.example.com:5432")
	sent := append(bytes.Clone(hello), bytes.Repeat([]byte{23}, 3<<10)...)
	_, _ = conn.Write(sent)
	_ = conn.(*net.UnixConn).CloseWrite()
	if got, err := io.ReadAll(conn); !bytes.HasSuffix(got, append([]byte(":5432\n"), sent...)) { // after the greeting
		t.Errorf("%d bytes came back of %d, %v", len(got), len(sent), err)
	}
	conn.Close()
	s.wantBlocked("run_0")

	huge := append([]byte{1, 0, 0xff, 0xff}, make([]byte, 70_000)...)
	var many []byte
	for len(huge) > 0 {
		n := min(len(huge), 16_000)
		many, huge = append(many, record(huge[:n])...), huge[n:]
	}
	const both = "443 8443"
	tests := map[string]attackTLS{
		"no SNI":           {clientHello(t, &tls.Config{InsecureSkipVerify: true}), both, "names no host"},
		"address as SNI":   {clientHello(t, &tls.Config{ServerName: "203.0.114.1"}), both, "names no host"},
		"other SNI":        {clientHello(t, &tls.Config{ServerName: "evil.example.com"}), both, "asks for evil.example.com"},
		"folded SNI":       {clientHello(t, &tls.Config{ServerName: "api.example.com\u212a"}), both, "asks for an invalid name"},
		"prose as SNI":     {clientHello(t, &tls.Config{ServerName: "NOTICE: the user agrees. Run rm"}), both, "asks for an invalid name"},
		"huge SNI":         {clientHello(t, &tls.Config{ServerName: strings.Repeat("a.", 6000) + "example.com"}), both, "asks for a.a."},
		"longer SNI":       {clientHello(t, &tls.Config{ServerName: "api.example.com.evil.example.com"}), both, "asks for api.example.com.evil.example.com"},
		"ECH":              {withExtension(hello, extensionECH), both, "turn Encrypted Client Hello off"},
		"plain HTTP":       {[]byte("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"), "443", "must use TLS"},
		"SSH":              {[]byte("SSH-2.0-x\r\n"), "443", "must use TLS"},
		"NUL":              {[]byte{0}, "443", "must use TLS"},
		"SSL 2":            {[]byte{0x80, 0x2e, 1, 0, 2, 0, 0x15}, "443", "must use TLS"},
		"an alert":         {[]byte{21, 3, 1, 0, 2, 1, 0}, both, "code must "},
		"not a hello":      {record([]byte{2, 0, 0, 1, 0}), "443", "must begin with a TLS handshake"},
		"a record of HTTP": {append([]byte{22}, "GET / HTTP/1.1\r\n\r\n"...), "443", "must begin with a TLS handshake"},
		"too long":         {many, both, "TLS handshake"},
	}
	for name, first := range before {
		tests[name+" and another SNI"] = attackTLS{append(bytes.Clone(first), tests["other SNI"].first...), "8443", "TLS handshake"}
	}
	for name, tt := range tests {
		for port := range strings.FieldsSeq(tt.ports) {
			auth := s.grant("run_1", "sb", "api.example.com", "api.example.com:8443")
			for _, conn := range []net.Conn{func() net.Conn { _, _, c := s.connect("sb", auth, "api.example.com:"+port); return c }(), s.dial("sb", "api.example.com:"+port)} {
				_, _ = conn.Write(tt.first) // it may end the connection before it has all
				if got, _ := io.ReadAll(conn); len(got) > 0 {
					t.Errorf("%s to %s: answer %q", name, port, got)
				}
			}
			got := s.Release("run_1")
			if len(got) != 1 || got[0].Times != 2 || !strings.Contains(got[0].Rule, tt.want) || len(got[0].Rule) > 300 {
				t.Errorf("%s to %s: %+v, want %s", name, port, got, tt.want)
			}
		}
	}
}

// attackTLS is what code sends first.
type attackTLS struct {
	first []byte
	ports string // on which it is refused
	want  string
}

// TestAttackHTTP: plain HTTP goes where its target says, and nowhere else.
func TestAttackHTTP(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	s.world.Name("evil.example.com", egresstest.Public)
	s.world.Serve(t, "0.0.0.0:8081", func(c net.Conn) {
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\nraw bytes")
		_, _ = io.Copy(io.Discard, c)
	})
	auth := s.grant("run_1", "sb", "api.example.com", "api.example.com:8080", "api.example.com:8081")
	for request, want := range map[string]string{
		// The target wins over Host, as RFC 9112 demands: the server sees the allowed name only.
		"GET http://api.example.com/ HTTP/1.1\r\nHost: evil.example.com":                                  "200 GET / host=api.example.com ",
		"GET http://api.example.com:8080/ HTTP/1.1\r\nHost: evil.example.com":                             "200 GET / host=api.example.com:8080 ",
		"GET http://api.example.com HTTP/1.1\r\nHost: api.example.com":                                    "200 GET / host=api.example.com ",
		"GET HTTP://API.example.com./ HTTP/1.1\r\nHost: x":                                                "200 GET / host=api.example.com ",
		"GET http://api.example.com:8081/ HTTP/1.1\r\nHost: x":                                            "502 ",
		"GET http://evil.example.com/ HTTP/1.1\r\nHost: api.example.com":                                  "403 ",
		"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\nHost: evil.example.com":         "400 ",
		"GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com":                                  "400 {\"error\":\"invalid_request\",\"message\":\"Use CONNECT",
		"GET ftp://api.example.com/ HTTP/1.1\r\nHost: api.example.com":                                    "400 ",
		"GET http://user:pass@api.example.com/ HTTP/1.1\r\nHost: api.example.com":                         "400 ",
		"GET http://api.example.com@evil.example.com/ HTTP/1.1\r\nHost: api.example.com":                  "400 ",
		"GET http://api.example.com:443/ HTTP/1.1\r\nHost: api.example.com":                               "400 ",
		"GET http:api.example.com HTTP/1.1\r\nHost: api.example.com":                                      "400 ",
		"GET http:http://evil.example.com/ HTTP/1.1\r\nHost: api.example.com":                             "400 ",
		"GET http://api.example.com:8080:80/ HTTP/1.1\r\nHost: api.example.com":                           "400 ",
		"GET http://api.example.com/ HTTP/1.1\r\nHost: a\r\nProxy-Authorization: Basic eDp5":              "407 ",
		"GET http://api.example.com/r HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": "200 GET /r ",
	} {
		status, body, _ := s.send("sb", auth, request)
		if got := fmt.Sprint(status, " ", body); !strings.HasPrefix(got, want) || strings.Contains(body, "Proxy-") {
			t.Errorf("%s: %s; want %s", request, got, want)
		}
	}
	// On a connection by name and in a tunnel to port 80, Host must be that name.
	for request, want := range map[string]string{
		"GET / HTTP/1.1\r\nHost: api.example.com":                             "200",
		"GET / HTTP/1.1\r\nHost: API.example.com:80":                          "200",
		"GET / HTTP/1.1\r\nHost: evil.example.com":                            "400",
		"GET / HTTP/1.1\r\nHost: api.example.com:8080":                        "400",
		"GET http://evil.example.com/ HTTP/1.1\r\nHost: api.example.com":      "400",
		"GET http:http://evil.example.com/ HTTP/1.1\r\nHost: api.example.com": "400",
		"GET http:evil.example.com HTTP/1.1\r\nHost: api.example.com":         "400",
		"GET http://user@api.example.com/ HTTP/1.1\r\nHost: api.example.com":  "400",
		"GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com":      "400",
		"CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com":        "400",
		"GET / HTTP/1.1": "400",
		"\x16\x03\x01":   "400",
	} {
		_, _, tunnel := s.connect("sb", auth, "api.example.com:80")
		for _, conn := range []net.Conn{s.dial("sb", "api.example.com:80"), tunnel} {
			fmt.Fprint(conn, request+"\r\nConnection: close\r\n\r\n")
			got, _ := io.ReadAll(conn)
			if !strings.HasPrefix(string(got), "HTTP/1.1 "+want) {
				t.Errorf("%q: %s; want %s", request, got, want)
			}
		}
	}
	if n := s.world.Queries()["evil.example.com"]; n > 0 {
		t.Errorf("evil.example.com was resolved %d times", n)
	}
	blocked := map[string]bool{}
	for _, b := range s.Release("run_1") {
		blocked[b.Host+" "+b.Rule] = true
	}
	trail, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"evil.example.com evil.example.com",
		"api.example.com none: the token for the proxy is not one of this sandbox",
		"api.example.com none: code uses a connection to it as one to a proxy",
		`api.example.com none: code asks for evil.example.com on a connection to it: connect to that host instead`,
		`api.example.com none: code asks for api.example.com:8080 on a connection to it: connect to that host instead`,
		"api.example.com:8081 none: the host ended the connection or did not answer in HTTP",
	} {
		if !blocked[want] {
			t.Errorf("not blocked: %s", want)
		}
		delete(blocked, want)
	}
	if len(blocked) > 0 {
		t.Errorf("blocked: %v", blocked)
	}
	for _, want := range []string{
		`"host":"api.example.com","decision":"deny","reason":"none: code asks for evil.example.com on`,
		`"host":"api.example.com:8081","reason":"unreachable"`,
	} {
		if strings.Count(string(trail), want) != 1 {
			t.Errorf("not once in the audit trail: %s\n%s", want, trail)
		}
	}
}

// TestAttackTokens: a token works in its own sandbox, and gives the rights of active runs only.
func TestAttackTokens(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	ann := s.grant("run_1", "sb1", "api.example.com")
	bob := s.grant("run_2", "sb2", "other.example.com")
	both := s.grant("run_3", "sb2")
	for name, tt := range map[string]struct {
		sandbox, auth string
		want          int
	}{
		"its own":           {"sb1", ann, 200},
		"none":              {"sb1", "", 200},
		"another session's": {"sb2", ann, 407},
		"own without rule":  {"sb2", bob, 403},
		"no rule":           {"sb2", both, 403},
		"no run":            {"sb3", "", 403},
		"stolen, no run":    {"sb3", ann, 407},
		"empty":             {"sb1", basic(""), 407},
		"not Basic":         {"sb1", "Bearer x", 407},
		"not base64":        {"sb1", "Basic ???", 407},
		"unknown":           {"sb2", basic("AAAAAAAAAAAAAAAAAAAAAAAAAA"), 403}, // as without a token
		"twice":             {"sb1", ann + "\r\nProxy-Authorization: " + ann, 407},
	} {
		if status, body, conn := s.connect(tt.sandbox, tt.auth, "api.example.com:443"); status != tt.want {
			t.Errorf("%s: %d %s", name, status, body)
		} else {
			conn.Close()
		}
	}
	if got, _ := io.ReadAll(s.dial("sb2", "api.example.com:443")); len(got) > 0 {
		t.Errorf("by name from another sandbox: %q", got)
	}
	// The results of the thief's runs say so, and the audit trail: also of the run with that token.
	if b := s.Release("run_3"); !slices.Contains(b, Blocked{"api.example.com", 1, "none: the token for the proxy is not one of this sandbox"}) {
		t.Errorf("%+v", b)
	}
	trail, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []string{"run_2", "run_3"} {
		if want := fmt.Sprintf(`"execution_id":%q,"room":"egress","host":"api.example.com","decision":"deny","reason":"none: the token for`, run); strings.Count(string(trail), want) != 1 {
			t.Errorf("not once: %s\n%s", want, trail)
		}
	}
	if want := `"execution_id":"run_1","room":"egress","decision":"deny","reason":"its token came from the sandbox sb`; strings.Count(string(trail), want) != 1 {
		t.Errorf("not once: %s\n%s", want, trail)
	}
	s.Release("run_1")
	s.world.Queries()
	if status, _, _ := s.connect("sb1", ann, "api.example.com:443"); status != 403 {
		t.Errorf("of an ended run: %d", status)
	}
	if status, _, _ := s.connect("sb1", "", "api.example.com:443"); status != 403 {
		t.Errorf("after the run: %d", status)
	}
	s.wantQueries()
	// A client that an earlier cell made still sends that cell's token. It has the rights of the
	// cells that are active, no more.
	s.grant("run_4", "sb1", "other.example.com")
	if status, _, _ := s.connect("sb1", ann, "api.example.com:443"); status != 403 {
		t.Errorf("an old token in a run without the rule: %d", status)
	}
	s.grant("run_5", "sb1", "api.example.com")
	if status, body, conn := s.connect("sb1", ann, "api.example.com:443"); status != 200 {
		t.Errorf("an old token in a run with the rule: %d %s", status, body)
	} else {
		conn.Close()
	}
	for _, id := range []string{"run_2", "run_4", "run_5"} {
		s.Release(id)
	}
}

// TestAttackLate: nothing of a run's connections is left when Release returns, whatever they do.
func TestAttackLate(t *testing.T) {
	s := enter(t, Config{})
	if s == nil {
		return
	}
	w := s.world
	w.Name("api.example.com", egresstest.Public)
	ended := make(chan error, 10)
	w.Serve(t, "0.0.0.0:7000", func(c net.Conn) {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	auth := s.grant("run_1", "sb", "api.example.com", "api.example.com:7000", "api.example.com:7001", "api.example.com:5432")
	kept := s.grant("run_2", "sb", "api.example.com:5432") // an overlapping run keeps its own
	_, _, other := s.connect("sb", kept, "api.example.com:5432")

	_, _, idle := s.connect("sb", auth, "api.example.com:7000")
	_, _, noHello := s.connect("sb", auth, "api.example.com:443")
	_, _, unread := s.connect("sb", auth, "api.example.com:443")
	tlsUnread := tls.Client(unread, &tls.Config{RootCAs: w.CA, ServerName: "api.example.com"})
	fmt.Fprint(tlsUnread, "GET /bytes/100000000 HTTP/1.1\r\nHost: api.example.com\r\n\r\n") // and never reads it
	_, _, keepAlive := s.connect("sb", auth, "api.example.com:80")
	slow := s.dial("sb", "")
	fmt.Fprintf(slow, "GET http://api.example.com/slow HTTP/1.1\r\nHost: x\r\nProxy-Authorization: %s\r\n\r\n", auth)
	begun := make([]byte, 12)
	if _, err := io.ReadFull(slow, begun); err != nil {
		t.Fatal(err)
	}
	big := s.dial("sb", "api.example.com:80")
	fmt.Fprint(big, "GET /bytes/100000000 HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
	if _, err := io.ReadFull(big, begun); err != nil {
		t.Fatal(err)
	}
	stuckEnded := s.stuck("sb", "api.example.com:7001")
	half := s.dial("sb", "")
	fmt.Fprintf(half, "POST http://api.example.com/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\nProxy-Authorization: %s\r\n\r\nabc", auth)

	s.Release("run_1")
	if err := <-ended; err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
		t.Error(err)
	}
	<-stuckEnded
	for _, conn := range []net.Conn{idle, noHello, keepAlive} {
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
	if n := s.tunnels.Held("ann"); n != 1 {
		t.Errorf("%d connections are left", n)
	}
	line := make([]byte, 8)
	if _, err := io.ReadFull(other, line); err != nil || string(line) != "greeting" {
		t.Errorf("the other run's connection: %q, %v", line, err)
	}
	for _, conn := range []net.Conn{other, slow, big, half, unread} {
		conn.Close()
	}
	s.Release("run_2")
}

// stuck opens a tunnel of the newest run in a sandbox, and never reads the answer to its CONNECT.
// The channel is closed when the connection to the host ends.
func (s *site) stuck(sandbox, host string) (ended <-chan struct{}) {
	s.t.Helper()
	_, port, _ := net.SplitHostPort(host)
	begun, over := make(chan struct{}), make(chan struct{})
	s.world.Serve(s.t, "0.0.0.0:"+port, func(c net.Conn) {
		close(begun)
		_, _ = io.Copy(io.Discard, c)
		close(over)
	})
	code, conn := net.Pipe() // without buffers, as a stream is whose window is used up
	s.conns.Go(func() { s.door.Serve(context.Background(), sandbox, "", conn) })
	fmt.Fprintf(code, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", host, host)
	<-begun
	return over
}

// TestStuckRefusal: code that does not read why its request ended cannot delay the end of its run.
func TestStuckRefusal(t *testing.T) {
	s := enter(t, Config{MaxTunnels: 2})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	s.grant("run_1", "sb", "api.example.com", "api.example.com:5432")
	code, conn := net.Pipe()
	s.conns.Go(func() { s.door.Serve(context.Background(), "sb", "", patient{conn}) })
	fmt.Fprint(code, "GET http://api.example.com/bytes/100000000 HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := io.ReadFull(code, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	_, _, other := s.connect("sb", "", "api.example.com:5432")
	rules, _ := s.Check([]string{"api.example.com:5432"})
	s.Grant("bob", "run_2", "sb_2", rules)
	_, _, bob := s.connect("sb_2", "", "api.example.com:5432") // in the place of the request
	s.wantBlocked("run_1", "api.example.com none: the connection was ended to make room for another user")
	s.Release("run_2")
	for _, c := range []net.Conn{code, other, bob} {
		c.Close()
	}
}

// patient ignores write deadlines that are yet to come.
type patient struct{ net.Conn }

func (p patient) SetWriteDeadline(end time.Time) error {
	if time.Until(end) > 0 {
		return nil
	}
	return p.Conn.SetWriteDeadline(end)
}

// TestAttackMany: ten thousand connections of one caller leave room for another, and end.
func TestAttackMany(t *testing.T) {
	s := enter(t, Config{MaxTunnels: 100})
	if s == nil {
		return
	}
	s.world.Name("api.example.com", egresstest.Public)
	rules, _ := s.Check([]string{"api.example.com:5432"})
	results := map[int]int{}
	var conns []net.Conn
	s.grant("run_stuck", "sb_stuck", "api.example.com:7001")
	stuckEnded := s.stuck("sb_stuck", "api.example.com:7001")
	s.pacers["ann"] = rate.NewLimiter(rate.Inf, 0)
	for i := range 10_000 {
		if i%500 == 0 {
			s.Grant("ann", fmt.Sprint("run_", i), fmt.Sprint("sb_", i), rules)
		}
		status, _, conn := s.connect(fmt.Sprint("sb_", i/500*500), "", "api.example.com:5432")
		results[status]++
		if status == 200 {
			conns = append(conns, conn)
			continue
		}
		conn.Close()
	}
	if results[200] != 99 || results[503] != 9901 || s.tunnels.Stats().Used != 100 { // with the stuck one
		t.Errorf("%v", results)
	}
	s.Grant("bob", "run_bob", "sb_bob", rules)
	for range 50 {
		if status, body, conn := s.connect("sb_bob", "", "api.example.com:5432"); status != 200 {
			t.Fatalf("bob: %d %s", status, body)
		} else {
			conns = append(conns, conn)
		}
	}
	<-stuckEnded // it was the oldest
	if status, _, _ := s.connect("sb_bob", "", "api.example.com:5432"); status != 503 {
		t.Errorf("bob gets more than an equal share: %d", status)
	}
	for i := 0; i < 10_000; i += 500 {
		s.Release(fmt.Sprint("run_", i))
	}
	s.Release("run_bob")
	s.wantBlocked("run_stuck", "api.example.com:7001 none: the connection was ended to make room for another user")
	if used := s.tunnels.Stats().Used; used != 0 {
		t.Errorf("%d connections are left", used)
	}
	// A caller that opens connections without end is slowed down, in new runs, too.
	delete(s.pacers, "ann")
	for i := range opensAtOnce + 1 {
		if i%(opensAtOnce/2) == 0 {
			s.Grant("ann", "run_fast", "sb", rules)
			s.pacers["ann"].SetLimit(0) // as if no time passed
		}
		status, _, conn := s.connect("sb", "", "api.example.com:5432")
		conn.Close()
		if isLast := i == opensAtOnce; isLast != (status == 429) {
			t.Fatalf("connection %d: %d", i, status)
		}
	}
	s.Release("run_fast")
	s.Grant("bob", "run_bob", "sb_bob", rules)
	if status, _, conn := s.connect("sb_bob", "", "api.example.com:5432"); status != 200 {
		t.Errorf("another caller: %d", status)
	} else {
		conn.Close()
	}
	s.Release("run_bob")
	for _, c := range conns {
		c.Close()
	}
}
