package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDrain: after SIGTERM, a server with SANDBOX_DRAIN_S is not ready and takes no new session. A
// run that is in progress ends by itself, and its caller gets the answer.
func TestDrain(t *testing.T) {
	s := serve(t, "SANDBOX_DRAIN_S=60")
	answer := make(chan toolResult, 1)
	go func() {
		answer <- s.call(t, "run_code", map[string]any{"conversationId": "d", "language": "shell",
			"code": "touch started; while [ ! -e go ]; do sleep 0.05; done; echo finished"})
	}()
	eventually(t, 20*time.Second, "the run to start", func() bool {
		return s.run(t, "d", "shell", "ls").Output == "started\n"
	})
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the server to be not ready", func() bool {
		resp, err := http.Get(s.URL + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(body), "the server is stopping")
	})
	if code := s.refusal(t, "run_python", map[string]any{"session_id": "new", "code": "1"}); code != "backend_unavailable" {
		t.Errorf("a run in a new session: %s", code)
	}
	if r := s.run(t, "d", "shell", "touch go; echo more"); r.Output != "more\n" {
		t.Errorf("a run in a session with a sandbox: %+v", r)
	}
	var r runResult
	if res := <-answer; res.Error != nil || json.Unmarshal([]byte(res.Content[0].Text), &r) != nil || r.Output != "finished\n" {
		t.Errorf("the run in progress: %+v", res)
	}
	select {
	case err := <-s.done:
		s.done <- err
	case <-time.After(20 * time.Second):
		t.Error("the server did not end after its last run")
	}
	s.wantNoResidue(t)
}
