//go:build linux

package integration

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
	"mcp-code-sandbox/internal/store/storetest"
)

// TestPostgres runs code on a server with Postgres, kills it, and moves the installation to SQLite
// and back. The result of the run is there at each step.
func TestPostgres(t *testing.T) {
	url := storetest.Postgres(t)
	s := serve(t, "SANDBOX_DATABASE_URL="+url)
	root := s.Root
	st := s.state(t, "run_code", map[string]any{"conversationId": "p", "language": "shell", "code": "echo kept > /data/f; echo it ran", "background": true})
	check := func() {
		t.Helper()
		got := s.state(t, "wait_run", map[string]any{"run_id": st.RunID})
		if r := decode[runResult](t, got.Result); got.Status != "completed" || r.Output != "it ran\n" {
			t.Errorf("%+v: %+v", got, r)
		}
		if r := s.run(t, "p", "shell", "cat /data/f"); r.Output != "kept\n" {
			t.Errorf("the session's file: %+v", r)
		}
	}
	storeCopy := func(from, to, want string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), binary, "store", "copy", "--from", from, "--to", to)
		cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root, "PGPASSWORD="+storetest.Password)
		if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
			t.Fatalf("store copy: %v, want %q\n%s", err, want, out)
		}
	}
	withoutPassword := strings.Replace(url, ":"+strings.ReplaceAll(storetest.Password, " ", "%20"), "", 1)
	check()
	sqlite := filepath.Join(root, "state.db")
	storeCopy(withoutPassword, sqlite, "stop the servers that use it")
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.done <- <-s.done
	s = serve(t, "SANDBOX_ROOT="+root, "SANDBOX_DATABASE_URL="+withoutPassword, "PGPASSWORD="+storetest.Password)
	check()
	s.stop(t)

	storeCopy(withoutPassword, sqlite, "hashes of all tables are the same")
	s = serve(t, "SANDBOX_ROOT="+root)
	check()
	back := storetest.Postgres(t)
	storeCopy(sqlite, back, "stop the servers that use it")
	s.stop(t)
	storeCopy(sqlite, back, "hashes of all tables are the same")
	s = serve(t, "SANDBOX_ROOT="+root, "SANDBOX_DATABASE_URL="+back)
	check()
}

// TestPostgresUser: without a user in the URL, a program in an outer namespace, where it is root,
// logs in with the name of the user who started it.
func TestPostgresUser(t *testing.T) {
	home, _ := ordinaryRoot(t)
	u := newUser(t, home, sandboxtest.UserAlone)
	where, err := url.Parse(storetest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(where.Query().Get("host"), 0o711); err != nil { // of the socket
		t.Fatal(err)
	}
	where.User = nil
	cmd := exec.Command(binary, "doctor")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+filepath.Join(home, "data"), "SANDBOX_DATABASE_URL="+where.String(),
		"PGPASSWORD="+storetest.Password, "USER="+storetest.User)
	u.become(cmd)
	want := "postgres://" + storetest.User + "@" + where.Path + "?host=" + where.Query().Get("host") + " has no tables yet"
	if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), want) {
		t.Errorf("no %q:\n%s", want, out)
	}
}
