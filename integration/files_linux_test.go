package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// makeFiles makes a number of empty files in directories of a thousand.
const makeFiles = `
import os, time
n, d = %d, '%s'
for i in range(n):
    if i %% 20 == 0 and n > 10000: time.sleep(0.001) # a small disk has a small reserve
    if i %% 1000 == 0: os.mkdir(d + str(i))
    os.close(os.open(f'{d}{i - i %% 1000}/{i}', os.O_CREAT | os.O_WRONLY))
print('ok')`

// TestCallersFiles checks that a user with too many files, in any number of sessions, is refused,
// can delete them, and disturbs nobody.
func TestCallersFiles(t *testing.T) {
	p := serveProxied(t, "SANDBOX_ROOT="+smallRoot(t, "size=800m"), "SANDBOX_CALLER_FILES=5000")
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	fill := func(s *server, session string, n int) runResult {
		return s.run(t, session, "python", fmt.Sprintf(makeFiles, n, "d"))
	}
	for _, session := range []string{"a", "b"} {
		if r := fill(asAnn, session, 2000); r.Output != "ok\n" {
			t.Fatalf("%+v", r)
		}
	}
	if u := asAnn.usage(t); u.Files < 4000 || u.Files > 4100 || u.MaxFiles != 5000 {
		t.Errorf("usage: %+v", u)
	}
	if r := fill(asAnn, "c", 2000); r.Cause != "disk_quota" || !strings.Contains(r.Hint, "all your sessions together") {
		t.Errorf("a run beyond the share: %+v", r)
	}
	up := asAnn.call(t, "upload_file", map[string]any{"session_id": "a", "filename": "up", "content": "eA=="})
	if !up.IsError || !strings.Contains(up.Content[0].Text, "quota_exceeded") || !strings.Contains(up.Content[0].Text, "a user of this server may have 5000") {
		t.Errorf("an upload beyond the share: %+v", up)
	}
	if r := fill(asBob, "a", 4000); r.Output != "ok\n" {
		t.Errorf("another user: %+v", r)
	}
	if r := fill(p.server, "op", 9000); r.Output != "ok\n" {
		t.Errorf("the operator: %+v", r)
	}
	if r := asAnn.run(t, "a", "shell", "rm -r d*; echo gone"); r.Output != "gone\n" {
		t.Errorf("deleting: %+v", r)
	}
	if r := fill(asAnn, "a", 500); r.Output != "ok\n" {
		t.Errorf("after deleting: %+v", r)
	}
}

// TestFilesReserve checks that a user who takes all inodes, session by session, is stopped before
// none is left for others.
func TestFilesReserve(t *testing.T) {
	root := smallRoot(t, "size=800m,nr_inodes=120000")
	p := serveProxied(t, "SANDBOX_ROOT="+root)
	asAnn, _ := p.logIn(t, ann)
	asBob, _ := p.logIn(t, bob)
	if r := asBob.run(t, "early", "shell", "echo ok > f; cat f"); r.Output != "ok\n" {
		t.Fatalf("%+v", r)
	}
	stopped := 0
	for i := range 5 {
		res := asAnn.call(t, "run_code", map[string]any{"conversationId": fmt.Sprint("a", i), "language": "python", "code": fmt.Sprintf(makeFiles, 45000, "d")})
		text := res.Content[0].Text
		if res.IsError || strings.Contains(text, "disk_quota") {
			stopped++
			if !strings.Contains(text, "disk of the server") {
				t.Errorf("the one who fills the disk: %.600s", text)
			}
		}
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(root, &st); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d inodes are free, %d runs were stopped", st.Ffree, st.Files, stopped)
	if stopped == 0 {
		t.Error("no run was stopped")
	}
	for name, s := range map[string]*server{"the other user": asBob, "the operator": p.server} {
		for _, session := range []string{"early", "late"} {
			if r := s.run(t, session, "shell", "echo ok > f; cat f"); r.Output != "ok\n" {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	if up := p.call(t, "upload_file", map[string]any{"session_id": "late", "filename": "up", "content": "eA=="}); up.IsError {
		t.Errorf("the operator's upload: %+v", up)
	}
}
