package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoNetworkHere: where sandboxes start, but not with network, code is told to do without, and
// the operator learns the fix from the log.
func TestNoNetworkHere(t *testing.T) {
	if onDocker() {
		t.Skip("slirp4netns is the jail's")
	}
	path, err := os.MkdirTemp("", "nonetwork-") // t.TempDir is closed to the user that the jail runs programs as
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(path) })
	broken := "#!/bin/sh\necho 'cannot open /dev/net/tun' >&2\nexit 1\n"
	if err := errors.Join(os.Chmod(path, 0o755), os.WriteFile(filepath.Join(path, "slirp4netns"), []byte(broken), 0o755)); err != nil {
		t.Fatal(err)
	}
	s := serve(t, "PATH="+path+":"+os.Getenv("PATH"))
	args := map[string]any{"conversationId": "net", "language": "shell", "code": "echo hello", "network": true}
	got := s.call(t, "run_code", args)
	if !got.IsError || !strings.Contains(got.Content[0].Text, "Network is not available here: run it without network.") || strings.Contains(got.Content[0].Text, "modprobe") {
		t.Errorf("%+v", got)
	}
	if r := s.run(t, "net", "shell", "echo hello"); r.Output != "hello\n" {
		t.Errorf("%+v", r)
	}
	if log := s.log.String(); !strings.Contains(log, "cannot open /dev/net/tun") || !strings.Contains(log, "modprobe tun") {
		t.Errorf("the log has no fix")
	}
}
