package jail_test

import (
	"bufio"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/wire"
)

// TestNameClients: clients without a proxy connect by name, each with its own resolver, and report
// a denied name in words that the hints know. Package forward has the test with Go's resolver.
func TestNameClients(t *testing.T) {
	dials := make(chan string, 100)
	accept := func(s *wire.Stream, f wire.Frame) {
		defer s.Close()
		dials <- f.Host
		if !strings.HasSuffix(f.Host, ":80") {
			_, _ = io.ReadFull(s, make([]byte, 8)) // of psql or redis-cli
			return
		}
		for r := bufio.NewReader(s); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			if line == "\r\n" {
				_, _ = io.WriteString(s, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
				return
			}
		}
	}
	b := sandboxtest.StartWith(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{Forward: true}, accept)
	for name, tc := range map[string]struct{ allowed, denied, says, refusal string }{
		"curl":   {"curl -sS http://web.example.com/", "curl -sS http://no.example.com/", "hello", "Could not resolve host"},
		"getent": {"getent ahosts web.example.com | cut -c 1-7 | head -1", "getent ahosts no.example.com || echo none >&2", "127.66.", "none"},
		"node": {
			`node -e 'fetch("http://web.example.com/").then(async r => console.log(await r.text()))'`,
			`node -e 'require("http").get("http://no.example.com/")'`, "hello", "ENOTFOUND",
		},
		"c-ares": {
			`node -e 'require("dns").resolve4("web.example.com", (e, a) => console.log(a[0].slice(0, 7)))'`,
			`node -e 'require("dns").resolve4("no.example.com", e => { throw e })'`, "127.66.", "ENOTFOUND",
		},
		"python3": {
			`python3 -c 'import urllib.request as u; print(u.urlopen("http://web.example.com/").read())'`,
			`python3 -c 'import urllib.request as u; u.urlopen("http://no.example.com/")'`, "hello", "Name or service not known",
		},
		"psql": {"psql -h db.example.com -U x 2>&1", "psql -h no.example.com -U x", "closed the connection", "Name or service not known"},
		"redis-cli": {
			"redis-cli -h db.example.com -p 5432 ping 2>&1", "redis-cli -h no.example.com ping", "closed the connection", "Name or service not known",
		},
	} {
		t.Run(name, func(t *testing.T) {
			program, _, _ := strings.Cut(tc.allowed, " ")
			if _, err := exec.LookPath(program); err != nil {
				sandboxtest.Skip(t, err.Error())
			}
			for script, want := range map[string]string{tc.allowed: tc.says, tc.denied: tc.refusal} {
				run := sandboxtest.Shell(script)
				run.Hosts = []string{"web.example.com:80", "db.example.com:5432"}
				run.Env = map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}
				if res := b.Run(t, run); !strings.Contains(string(slices.Concat(res.Stdout, res.Stderr)), want) {
					t.Errorf("%s: %s%s; want %q", script, res.Stdout, res.Stderr, want)
				}
			}
		})
	}
	close(dials)
	seen := map[string]bool{}
	for host := range dials {
		seen[host] = true
	}
	for _, host := range []string{"web.example.com:80", "no.example.com:0", "db.example.com:5432"} {
		if !seen[host] {
			t.Errorf("no dial to %s: %v", host, seen)
		}
	}
}
