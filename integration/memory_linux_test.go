//go:build linux

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// wantNoneHeld waits until results hold no memory.
func (s *server) wantNoneHeld(t *testing.T) {
	t.Helper()
	eventually(t, 40*time.Second, "the memory of results to be released", func() bool {
		return s.metric(t, `sandbox_share_used{caller="others",resource="result_bytes"}`) == 0
	})
}

// showMany shows a 4 MB image many times and waits for the file go.
const showMany = `
import os, struct, time, zlib
def chunk(kind, data): return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 1024, 1024, 8, 6, 0, 0, 0)) + \
    chunk(b"IDAT", zlib.compress(b"".join(b"\0" + os.urandom(4096) for _ in range(1024)), 0)) + chunk(b"IEND", b"")
class Picture:
    def _repr_png_(self): return png
for _ in range(TIMES): display(Picture())
print("shown", flush=True)
while not os.path.exists("/data/go"): time.sleep(0.05)
`

// TestDisplaysTakeBoundedMemory lets a user show large images many times in eight sessions at once.
// The server stays within its budget, keeps another user's image, and holds nothing at the end.
func TestDisplaysTakeBoundedMemory(t *testing.T) {
	const rounds, sessions, budget = 2, 8, 24 << 20
	p := serveProxied(t, fmt.Sprint("SANDBOX_RESULT_MEMORY=", budget), fmt.Sprint("SANDBOX_MAX_SESSIONS=", sessions+2), "SANDBOX_HANDOVER_S=0")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	asBob.cell(t, "b", "python", "1")
	before := p.memory(t)
	for round := range rounds {
		var started []runState
		for i := range sessions {
			id := fmt.Sprintf("a%d", i)
			started = append(started, asAnn.state(t, "run", map[string]any{"env": "python", "session": id, "background": true,
				"code": strings.Replace("import os\nif os.path.exists('/data/go'): os.remove('/data/go')\n"+showMany, "TIMES", "16", 1)}))
		}
		for i, st := range started {
			cursor := st.Cursor
			eventually(t, 60*time.Second, fmt.Sprintf("session %d to have shown all", i), func() bool {
				now := asAnn.state(t, "wait_run", map[string]any{"run_id": st.RunID, "timeout_seconds": 1, "cursor": cursor})
				return strings.Contains(now.Output, "shown") || now.Status != "running"
			})
		}
		if held := p.metric(t, `sandbox_share_used{caller="others",resource="result_bytes"}`); held < budget/2 || held > budget {
			t.Errorf("round %d: results hold %v bytes", round, held)
		}
		r := asBob.cell(t, "b", "python", "open('/data/go', 'w').close()\n"+strings.Replace(showMany, "TIMES", "1", 1))
		if len(r.Images) != 1 {
			t.Errorf("round %d: the other user's image is lost: %+v", round, r)
		}
		for i, st := range started {
			asAnn.upload(t, fmt.Sprintf("a%d", i), "go", "x")
			if end := asAnn.state(t, "wait_run", map[string]any{"run_id": st.RunID, "timeout_seconds": 50}); end.Status != "completed" {
				t.Errorf("session %d: %+v", i, end)
			}
		}
	}
	grown := p.memory(t) - before
	t.Logf("the server grew by %d MB", grown>>20)
	if most := int64(5 * budget); grown > most {
		t.Errorf("the server grew by %d MB, want %d at most", grown>>20, most>>20)
	}
	p.wantNoneHeld(t)
}

// TestStalledAnswersTakeBoundedMemory lets a user request a large file on many connections and read
// nothing. The server stays within its budget, and another user gets the same file at once.
func TestStalledAnswersTakeBoundedMemory(t *testing.T) {
	const connections, size = 24, 6 << 20
	p := serveProxied(t, "SANDBOX_RESULT_MEMORY=64MB")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	for _, s := range []*server{asAnn, asBob} {
		s.run(t, "s", "python", fmt.Sprintf("open('/data/f', 'wb').write(bytes(%d))", size))
	}
	before := p.memory(t)
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 7, "method": "tools/call",
		"params": map[string]any{"name": "read_artifact", "arguments": map[string]any{"session_id": "s", "path": "f"}}})
	if err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
	}}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range connections {
		c, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(p.URL, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if _, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", c.RemoteAddr(), asAnn.Token, len(body), body); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 20*time.Second, "answers that are not read", func() bool {
		return p.metric(t, `sandbox_share_used{caller="others",resource="result_bytes"}`) >= 48<<20
	})
	start := time.Now()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/mcp", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+asBob.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	// Unread answers are cut after 30 s in any case.
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n < size || time.Since(start) > 25*time.Second {
		t.Errorf("another user gets %d bytes after %v: %v", n, time.Since(start), err)
	}
	grown := p.memory(t) - before
	t.Logf("the server grew by %d MB", grown>>20)
	if grown > 400<<20 {
		t.Errorf("the server grew by %d MB", grown>>20)
	}
	for _, c := range conns {
		c.Close()
	}
	p.wantNoneHeld(t)
}

// TestManyResultsKept lets many background runs print as much as is kept. The server stays within
// its budget and counts what it leaves out.
func TestManyResultsKept(t *testing.T) {
	const runs, printed = 12, 8 << 20
	s := serve(t, "SANDBOX_RESULT_MEMORY=16MB", "SANDBOX_MAX_OUTPUT_BYTES=8MB", fmt.Sprint("SANDBOX_MAX_RUNS_PER_SESSION=", runs))
	s.run(t, "s", "shell", ":")
	before := s.memory(t)
	var started []runState
	for i := range runs {
		started = append(started, s.state(t, "run_code", map[string]any{"conversationId": "s", "language": "shell", "background": true,
			"code": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo 1 > printed%d; until [ -e go ]; do sleep 0.1; done", printed, i)}))
	}
	for i := range started {
		s.file(t, "s", fmt.Sprint("printed", i))
	}
	s.upload(t, "s", "go", "x")
	for _, st := range started {
		end := s.state(t, "wait_run", map[string]any{"run_id": st.RunID, "timeout_seconds": 50, "cursor": printed - 10})
		if end.Status != "completed" || end.Cursor != printed {
			t.Errorf("%s, cursor %d", end.Status, end.Cursor)
		}
	}
	grown := s.memory(t) - before
	t.Logf("the server grew by %d MB", grown>>20)
	if grown > 150<<20 {
		t.Errorf("the server grew by %d MB", grown>>20)
	}
	eventually(t, 20*time.Second, "the memory of results to be released", func() bool {
		return s.metric(t, `sandbox_share_used{caller="local",resource="result_bytes"}`) == 0
	})
}

// TestSoftMemoryLimit checks that the server sets a limit if the operator has not.
func TestSoftMemoryLimit(t *testing.T) {
	const name = "go_gc_gomemlimit_bytes"
	total := serve(t).metric(t, name)
	if total < 256<<20 || total > 1<<45 {
		t.Errorf("the limit is %v", total)
	}
	if got := serve(t, "GOMEMLIMIT=3GiB").metric(t, name); got != 3<<30 {
		t.Errorf("the operator's limit became %v", got)
	}
}
