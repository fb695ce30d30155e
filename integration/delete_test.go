//go:build linux

package integration

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestDeleteFile checks that planted links lead delete_file nowhere, and that a run keeps the file
// it has open.
func TestDeleteFile(t *testing.T) {
	s := serve(t)
	outside := t.TempDir() + "/outside.txt"
	if err := os.WriteFile(outside, []byte("kept"), 0o666); err != nil {
		t.Fatal(err)
	}
	s.run(t, "other", "shell", "echo theirs > theirs.txt")
	if r := s.run(t, "del", "shell", "ln -s "+outside+" link; ln -s .. up; ln -s / root; mkfifo pipe; mkdir -p dir/sub; echo 1 > dir/sub/f; echo 2 > '<b>.txt'; chmod 500 dir/sub"); !r.Success {
		t.Fatalf("%+v", r)
	}
	for _, tt := range []struct{ name, want string }{
		{"../meta.json", "invalid_path"}, {"/etc/passwd", "invalid_path"}, {"dir", "invalid_path"}, {"dir/sub", "invalid_path"}, {"", "-32602 filename is required"},
		{"up/meta.json", "not_found"}, {"root" + outside, "not_found"}, {"pipe/x", "not_found"}, {"theirs.txt", "not_found"},
	} {
		if got := s.refusal(t, "delete_file", map[string]any{"session_id": "del", "filename": tt.name}); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.name, got, tt.want)
		}
	}
	for _, name := range []string{"link", "up", "root", "pipe", "dir/sub/f", "<b>.txt"} {
		if res := s.call(t, "delete_file", map[string]any{"session_id": "del", "filename": name}); res.IsError || res.Error != nil {
			t.Errorf("%q: %+v", name, res)
		}
	}
	if r := s.run(t, "del", "shell", "find . -not -type d"); r.Output != "" {
		t.Errorf("left: %s", r.Output)
	}
	if b, err := os.ReadFile(outside); string(b) != "kept" {
		t.Errorf("the file outside: %q, %v", b, err)
	}
	if got := s.refusal(t, "delete_file", map[string]any{"session_id": "nobody's", "filename": "x"}); got != "session_not_found" {
		t.Errorf("no session: %s", got)
	}

	// A run that has the file open keeps using it.
	st := s.state(t, "run_code", map[string]any{"conversationId": "del", "language": "shell", "background": true,
		"code": "echo content > open.txt; exec 3< open.txt; touch ready; while [ -e ready ]; do sleep 0.02; done; cat <&3"})
	for _, name := range []string{"open.txt", "ready"} {
		eventually(t, 20*time.Second, "the run to make "+name, func() bool {
			res := s.call(t, "list_artifacts", map[string]any{"session_id": "del"})
			return strings.Contains(res.Content[0].Text, "/mnt/data/ready")
		})
		if res := s.call(t, "delete_file", map[string]any{"session_id": "del", "filename": name}); res.IsError {
			t.Fatalf("%s: %+v", name, res)
		}
	}
	if end := s.state(t, "wait_run", map[string]any{"run_id": st.RunID}); !strings.Contains(string(end.Result), "content") {
		t.Errorf("the run: %s %s", end.Status, end.Result)
	}
}
