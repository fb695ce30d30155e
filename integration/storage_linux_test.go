package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hoards are ways to fill the disk with files that no listing shows. Each writes 60 MB, 3 MB per
// file, and waits.
var hoards = map[string]string{
	"open": `
for i in range(20):
    f = os.open("x", os.O_CREAT | os.O_WRONLY); os.unlink("x"); keep.append(f)
    for _ in range(3): os.write(f, bytes(1 << 20))
`,
	"without a name": `
for i in range(20):
    f = os.open(".", os.O_TMPFILE | os.O_WRONLY); keep.append(f)
    for _ in range(3): os.write(f, bytes(1 << 20))
`,
	"of a process that cannot be read": `
import ctypes
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
for i in range(20):
    f = os.open("x", os.O_CREAT | os.O_WRONLY); os.unlink("x"); keep.append(f)
    for _ in range(3): os.write(f, bytes(1 << 20))
`,
	"mapped": `
import mmap
for i in range(20):
    f = os.open("x", os.O_CREAT | os.O_RDWR); os.unlink("x")
    for _ in range(3): os.write(f, bytes(1 << 20))
    keep.append(mmap.mmap(f, 4096)); os.close(f)
`,
	"in a socket": `
a, b = socket.socketpair()
for i in range(20):
    f = os.open("x", os.O_CREAT | os.O_WRONLY); os.unlink("x")
    for _ in range(3): os.write(f, bytes(1 << 20))
    socket.send_fds(a, [b"x"], [f]); os.close(f)
`,
}

// TestUnlinkedFilesCount checks that deleted but open files count towards a run's quota, on a disk
// with plenty of room. It is the server's own: what a socket hides is estimated by what the disk
// has lost, and other tests free much at a time.
func TestUnlinkedFilesCount(t *testing.T) {
	s := serve(t, "SANDBOX_ROOT="+smallRoot(t, "size=8g"), "SANDBOX_WORKSPACE_BYTES=20MB", "SANDBOX_EXEC_TIMEOUT_S=20")
	for name, code := range hoards {
		t.Run(name, func(t *testing.T) {
			session := strings.ReplaceAll(name, " ", "-")
			code = "import os, socket, time\nkeep = []\n" + code + "print('hidden', flush=True)\ntime.sleep(60)"
			// The fresh run comes first: the kernel frees late what a dead interpreter's
			// socket held, and the estimate for the next run would miss as much.
			if r := s.run(t, session, "python", code); r.Cause != "disk_quota" {
				t.Errorf("fresh: %s %s", r.Cause, r.Output)
			}
			if r := s.cell(t, session, "python", code); r.Cause != "disk_quota" {
				t.Errorf("cell: %s %s", r.Cause, r.Stdout+r.Stderr)
			}
			if r := s.run(t, session, "python", "import os\nf = os.open('y', os.O_CREAT | os.O_WRONLY); os.unlink('y'); os.write(f, bytes(1 << 20)); print('fine')"); r.Output != "fine\n" {
				t.Errorf("a run that hides little: %+v", r)
			}
		})
	}
}

// TestWritesBetweenCells checks that an interpreter that keeps writing after its cell is stopped.
func TestWritesBetweenCells(t *testing.T) {
	s := serve(t, "SANDBOX_WORKSPACE_BYTES=20MB")
	r := s.cell(t, "late", "python", `
import os, threading, time
def write():
    f = os.open("x", os.O_CREAT | os.O_WRONLY); os.unlink("x")
    time.sleep(2)
    held = []
    for i in range(30):
        f = os.open("x", os.O_CREAT | os.O_WRONLY); os.unlink("x"); held.append(f)
        for _ in range(3): os.write(f, bytes(1 << 20))
    time.sleep(600)
threading.Thread(target=write, daemon=True).start()
print("begun")`)
	if r.Stdout != "begun\n" {
		t.Fatalf("%+v", r)
	}
	eventually(t, 30*time.Second, "the idle interpreter is ended", func() bool { return s.metric(t, "sandbox_live_sandboxes") == 0 })
}

// smallRoot is newRoot on a tmpfs of its own with these options.
func smallRoot(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "only root can mount a small file system for this test")
	}
	root := newRoot(t)
	if err := os.Remove(filepath.Join(root, "runners")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, options+",mode=700"); err != nil {
		skip(t, "cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Symlink(runners, filepath.Join(root, "runners")); err != nil {
		t.Fatal(err)
	}
	return root
}

// TestLargestWriterIsStopped checks that on a short disk the session that fills it is stopped, and
// others continue.
func TestLargestWriterIsStopped(t *testing.T) {
	root := smallRoot(t, "size=400m")
	s := serve(t, "SANDBOX_ROOT="+root, "SANDBOX_EXEC_TIMEOUT_S=60")
	innocent := make([]<-chan string, 2)
	for i := range innocent {
		innocent[i] = s.later(t, "run_code", map[string]any{"conversationId": fmt.Sprintf("innocent%d", i), "language": "shell",
			"code": "head -c 2000000 /dev/zero > mine; echo ready > ready; until [ -e go ]; do sleep 0.1; done; echo done"})
	}
	for i := range innocent {
		eventually(t, 30*time.Second, "an innocent run", func() bool {
			res := s.call(t, "list_artifacts", map[string]any{"session_id": fmt.Sprintf("innocent%d", i)})
			return len(res.Content) > 0 && strings.Contains(res.Content[0].Text, `/ready"`)
		})
	}
	r := s.run(t, "greedy", "python", `
import os, time
held = []
while True:
    f = os.open("x", os.O_CREAT | os.O_WRONLY); os.unlink("x"); held.append(f)
    for _ in range(5): os.write(f, bytes(1 << 20)); time.sleep(0.01)
`)
	if r.Cause != "disk_quota" || strings.Contains(r.Output, "No space left") {
		t.Errorf("the writer: %+v", r)
	}
	for i, answer := range innocent {
		s.upload(t, fmt.Sprintf("innocent%d", i), "go", "x")
		if a := <-answer; !strings.Contains(a, "done") || strings.Contains(a, "disk_quota") {
			t.Errorf("an innocent run: %s", a)
		}
	}
}

// TestShortDiskStopsWhoFilledIt checks that a short disk counts what a user wrote lately in all
// sessions, finished runs included. A user who wrote less continues, even while the other one has
// no run.
func TestShortDiskStopsWhoFilledIt(t *testing.T) {
	p := serveProxied(t, "SANDBOX_ROOT="+smallRoot(t, "size=400m"), "SANDBOX_EXEC_TIMEOUT_S=60")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	fill := func(session string, mb int) toolResult {
		return asAnn.call(t, "run_code", map[string]any{"conversationId": session, "language": "shell", "code": fmt.Sprintf("head -c %d /dev/zero > f$RANDOM$RANDOM && echo wrote", mb<<20)})
	}
	for i := range 4 {
		if r := fill(fmt.Sprint("a", i), 70); !strings.Contains(r.Content[0].Text, "wrote") {
			t.Fatalf("%+v", r)
		}
	}
	innocent := asBob.later(t, "run_code", map[string]any{"conversationId": "b", "language": "shell",
		"code": "head -c 30000000 /dev/zero > mine; echo ready > ready; until [ -e go ]; do sleep 0.1; done; echo done"})
	eventually(t, 30*time.Second, "the innocent run", func() bool {
		res := asBob.call(t, "list_artifacts", map[string]any{"session_id": "b"})
		return len(res.Content) > 0 && strings.Contains(res.Content[0].Text, `/ready"`)
	})
	refused := ""
	for i := range 6 {
		if r := fill(fmt.Sprint("a", i), 22); !strings.Contains(r.Content[0].Text, "wrote") {
			refused = r.Content[0].Text
			if !strings.Contains(refused, "The disk of the server") && !strings.Contains(refused, "because the disk of the server") {
				t.Errorf("the one who filled the disk: %.600s", refused)
			}
		}
	}
	if refused == "" {
		t.Error("the one who filled the disk was never refused")
	}
	if r := asBob.run(t, "b2", "shell", "echo x > f; cat f"); r.Output != "x\n" {
		t.Errorf("another run of the innocent user: %+v", r)
	}
	p.run(t, "op", "shell", "true")
	asAnn.call(t, "close_session", map[string]any{"session_id": "a0"})
	if r := asAnn.run(t, "a1", "shell", "echo ok"); r.Output != "ok\n" {
		t.Errorf("with a closed session to delete: %+v", r)
	}
	if res := asBob.call(t, "upload_file", map[string]any{"session_id": "b", "filename": "go", "content": "eA=="}); res.IsError {
		t.Errorf("an upload with room for it: %+v", res)
	}
	if a := <-innocent; !strings.Contains(a, "done") || strings.Contains(a, "disk_quota") {
		t.Errorf("the innocent run: %s", a)
	}
}

// usage returns what list_sessions says of all of the caller's sessions.
func (s *server) usage(t *testing.T) (u struct {
	Sessions       int   `json:"sessions"`
	Bytes          int64 `json:"bytes"`
	Files          int   `json:"files"`
	MaxFiles       int   `json:"max_files"`
	ClosedSessions int   `json:"closed_sessions"`
	ClosedBytes    int64 `json:"closed_bytes"`
	MaxSessions    int   `json:"max_sessions"`
	MaxBytes       int64 `json:"max_bytes"`
}) {
	t.Helper()
	res := s.call(t, "list_sessions", map[string]any{})
	var got struct{ Usage json.RawMessage }
	if res.IsError || json.Unmarshal([]byte(res.Content[0].Text), &got) != nil || json.Unmarshal(got.Usage, &u) != nil {
		t.Fatalf("%+v", res)
	}
	return u
}

// TestCallersStorage checks that a user who exceeds the share is refused, loses nothing and
// disturbs nobody. Closed sessions go first.
func TestCallersStorage(t *testing.T) {
	p := serveProxied(t, "SANDBOX_CALLER_BYTES=20MB", "SANDBOX_CALLER_SESSIONS=4", "SANDBOX_WORKSPACE_BYTES=12MB")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	fill := func(s *server, session string, mb int) runResult {
		return s.run(t, session, "shell", fmt.Sprintf("head -c %d /dev/zero > f && echo ok", mb<<20))
	}

	// Bytes: closed sessions make room, oldest first.
	for _, session := range []string{"a", "b"} {
		if r := fill(asAnn, session, 8); r.Output != "ok\n" {
			t.Fatalf("%+v", r)
		}
	}
	asAnn.call(t, "close_session", map[string]any{"session_id": "a"})
	if u := asAnn.usage(t); u.Sessions != 1 || u.ClosedSessions != 1 || u.Bytes < 8<<20 || u.ClosedBytes < 8<<20 || u.MaxBytes != 20<<20 || u.MaxSessions != 4 {
		t.Errorf("usage: %+v", u)
	}
	if r := fill(asAnn, "c", 8); r.Output != "ok\n" {
		t.Errorf("with a closed session to delete: %+v", r)
	}
	if u := asAnn.usage(t); u.Sessions != 2 || u.ClosedSessions != 0 || u.ClosedBytes != 0 {
		t.Errorf("usage after that: %+v", u)
	}
	// A run may write what remains of the share.
	if r := fill(asAnn, "c2", 8); r.Cause != "disk_quota" || !strings.Contains(r.Hint, "all your sessions together") {
		t.Errorf("a run beyond the share: %+v", r)
	}
	for range 3 { // what the run wrote before it was stopped is hers to delete; until she does, there is no more
		if up := asAnn.call(t, "upload_file", map[string]any{"session_id": "b", "filename": "up", "content": strings.Repeat("x", 6<<20), "overwrite": true}); !up.IsError ||
			!strings.Contains(up.Content[0].Text, "quota_exceeded") || !strings.Contains(up.Content[0].Text, "close_session") {
			t.Errorf("an upload beyond the share: %.300s", up.Content[0].Text)
		}
	}
	if r := asAnn.run(t, "b", "shell", "rm f; echo gone"); r.Output != "gone\n" {
		t.Errorf("deleting: %+v", r)
	}
	if r := fill(asAnn, "b", 3); r.Output != "ok\n" {
		t.Errorf("after deleting: %+v", r)
	}

	// An upload by link.
	res := asAnn.call(t, "upload_file", map[string]any{"session_id": "b", "filename": "put"})
	var ticket struct {
		URL string `json:"upload_url"`
	}
	if err := json.Unmarshal([]byte(res.Content[0].Text), &ticket); err != nil {
		t.Fatal(err)
	}
	link := ticket.URL
	if status, body := p.fetch(t, http.MethodPut, link, make([]byte, 11<<20)); status != http.StatusInsufficientStorage || !strings.Contains(string(body), "list_sessions") {
		t.Errorf("a PUT beyond the share: %d %s", status, body)
	}
	asAnn.call(t, "close_session", map[string]any{"session_id": "c"})
	if status, body := p.fetch(t, http.MethodPut, link, make([]byte, 5<<20)); status != http.StatusCreated {
		t.Errorf("the same link, with room: %d %s", status, body)
	}

	// Sessions.
	for _, session := range []string{"d", "e"} {
		asAnn.run(t, session, "shell", "true")
	}
	if got := asAnn.refusal(t, "run_code", map[string]any{"conversationId": "f", "language": "shell", "code": "true"}); got != "quota_exceeded" {
		t.Errorf("a fifth session: %s", got)
	}
	asAnn.call(t, "close_session", map[string]any{"session_id": "e"})
	if r := asAnn.run(t, "f", "shell", "echo ok"); r.Output != "ok\n" {
		t.Errorf("after one was closed: %+v", r)
	}

	// Others are not affected, and the operator never is.
	if r := fill(asBob, "a", 8); r.Output != "ok\n" {
		t.Errorf("another user: %+v", r)
	}
	for i := range 6 {
		if r := fill(p.server, fmt.Sprintf("op%d", i), 8); r.Output != "ok\n" {
			t.Errorf("the operator: %+v", r)
		}
	}
	if u := p.usage(t); u.Sessions != 6 || u.Bytes < 48<<20 || u.MaxBytes != 0 {
		t.Errorf("the operator's usage: %+v", u)
	}

	// A restart forgets nothing.
	before := asAnn.usage(t)
	p.stop(t)
	p.restart(t)
	asAnn, _ = p.logIn(t, ann)
	if after := asAnn.usage(t); after.Sessions != before.Sessions || after.ClosedSessions != before.ClosedSessions || after.Bytes < before.Bytes-1<<20 {
		t.Errorf("usage %+v, before the restart %+v", after, before)
	}
}

// TestRefusedCallsLeaveNothing checks that refused calls create no session, and that a session with
// an upload link only is listed.
func TestRefusedCallsLeaveNothing(t *testing.T) {
	p := serveProxied(t, "SANDBOX_CALLER_BYTES=5MB", "SANDBOX_CALLER_SESSIONS=3")
	asAnn, _ := p.logIn(t, ann)
	if r := asAnn.run(t, "c1", "shell", "head -c 8000000 /dev/zero > f"); r.Cause != "disk_quota" {
		t.Fatalf("%+v", r)
	}
	for i := range 5 {
		args := map[string]any{"conversationId": fmt.Sprint("more", i), "language": "shell", "code": "true"}
		if got := asAnn.refusal(t, "run_code", args); got != "quota_exceeded" {
			t.Errorf("a run beyond the share: %s", got)
		}
		if got := asAnn.refusal(t, "upload_file", map[string]any{"session_id": fmt.Sprint("up", i), "filename": "a", "content": "xxxx"}); got != "quota_exceeded" {
			t.Errorf("an upload beyond the share: %s", got)
		}
	}
	if u := asAnn.usage(t); u.Sessions != 1 {
		t.Errorf("after refusals: %+v", u)
	}
	for name, n := range map[string]float64{
		`sandbox_refusals_total{caller="others",reason="quota_exceeded"}`: 10, `sandbox_runs_total{caller="others",outcome="refused",runner="shell"}`: 5,
	} {
		if got := p.metric(t, name); got != n {
			t.Errorf("%s is %v, want %v", name, got, n)
		}
	}
	asAnn.call(t, "delete_file", map[string]any{"session_id": "c1", "filename": "f"})
	if r := asAnn.run(t, "c2", "shell", "echo ok"); r.Output != "ok\n" {
		t.Errorf("with room again: %+v", r)
	}
	asAnn.call(t, "upload_file", map[string]any{"session_id": "link", "filename": "a"})
	p.stop(t)
	p.restart(t)
	asAnn, _ = p.logIn(t, ann)
	if list := asAnn.call(t, "list_sessions", map[string]any{}).Content[0].Text; strings.Count(list, `"session_id"`) != 3 || !strings.Contains(list, `"link"`) {
		t.Errorf("after a restart: %s", list)
	}
}

// TestLimitOfTheCallerIsNamed checks that a run near the caller's limit names that limit when a
// file or image finds no room.
func TestLimitOfTheCallerIsNamed(t *testing.T) {
	p := serveProxied(t, "SANDBOX_CALLER_BYTES=5MB")
	asAnn, _ := p.logIn(t, ann)
	asAnn.run(t, "a", "shell", "head -c 2500000 /dev/zero > f")
	r := asAnn.run(t, "a", "python", "open('g', 'wb').truncate(4 << 20)")
	if !strings.Contains(r.Output, "File too large") || !strings.Contains(r.Hint, "5 MB that all your sessions together may store") {
		t.Errorf("a file beyond what is left: %+v", r)
	}
	asAnn.run(t, "a", "shell", "rm -f g; head -c 2650000 /dev/zero > h")
	cell := asAnn.cell(t, "a", "python", "import numpy, matplotlib.pyplot as plt\n"+
		"plt.figure(figsize=(9, 9)); plt.imshow(numpy.random.rand(900, 900, 3)); plt.show()\nprint('done')")
	if cell.Stdout != "done\n" || cell.ExitCode != 0 || !strings.Contains(cell.Hint, "1 image that the code showed was not saved as a file: all your sessions together may store 5 MB") {
		t.Errorf("a plot beyond what is left: %+v", cell)
	}
}
