//go:build linux

package integration

import (
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestPostgresStops: without its database, a server runs code and says what it cannot read. The
// result of a run that ended meanwhile is stored when the database is back.
func TestPostgresStops(t *testing.T) {
	where := storetest.Postgres(t)
	s := serve(t, "SANDBOX_DATABASE_URL="+where)
	background := func(code string) string {
		t.Helper()
		st := s.state(t, "run_code", map[string]any{"conversationId": "p", "language": "shell", "code": code, "background": true})
		st = s.state(t, "wait_run", map[string]any{"run_id": st.RunID, "timeout_seconds": 30})
		if st.Status != "completed" {
			t.Fatalf("%+v", st)
		}
		return st.RunID
	}
	ready := func() int {
		t.Helper()
		status, _ := s.fetch(t, http.MethodGet, s.URL+"/readyz", nil)
		return status
	}
	earlier := background("echo earlier")
	if got := ready(); got != http.StatusOK {
		t.Errorf("ready: %d", got)
	}
	start := storetest.Stop(t)
	began := time.Now()
	if r := s.run(t, "p", "shell", "echo warm"); r.Output != "warm\n" {
		t.Errorf("a warm run: %+v", r)
	}
	meanwhile := background("echo meanwhile")
	for _, tool := range []string{"wait_run", "cancel_run"} {
		res := s.call(t, tool, map[string]any{"run_id": earlier})
		if !res.IsError || !strings.Contains(res.Content[0].Text, `"backend_unavailable"`) ||
			!strings.Contains(res.Content[0].Text, "database does not answer") || !strings.Contains(res.Content[0].Text, `"retry_after_seconds": 10`) {
			t.Errorf("%s: %+v", tool, res)
		}
	}
	if res := s.call(t, "list_sessions", nil); res.IsError || !strings.Contains(res.Content[0].Text, `"session_id": "p"`) {
		t.Errorf("list_sessions: %+v", res)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the calls took %v", took)
	}
	eventually(t, 30*time.Second, "the server to be not ready", func() bool { return ready() == http.StatusServiceUnavailable })
	start()
	eventually(t, 30*time.Second, "the results to be stored", func() bool { return strings.Contains(s.log.String(), "the database answers again") })
	eventually(t, 30*time.Second, "the server to be ready", func() bool { return ready() == http.StatusOK })

	// Another server reads the result: it was not in the memory of the first one only.
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.done <- <-s.done
	s = serve(t, "SANDBOX_ROOT="+s.Root, "SANDBOX_DATABASE_URL="+where)
	for id, output := range map[string]string{earlier: "earlier\n", meanwhile: "meanwhile\n"} {
		got := s.state(t, "wait_run", map[string]any{"run_id": id})
		if r := decode[runResult](t, got.Result); got.Status != "completed" || r.Output != output {
			t.Errorf("%+v: %+v", got, r)
		}
	}
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
