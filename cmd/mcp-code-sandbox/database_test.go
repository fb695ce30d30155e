package main

import (
	"bytes"
	"context"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/store/storetest"
)

// stopAt is a writer that calls stop when a text was written to it.
type stopAt struct {
	bytes.Buffer
	text string
	stop func()
}

func (w *stopAt) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if w.text != "" && strings.Contains(w.String(), w.text) {
		w.stop()
	}
	return n, err
}

// TestStoreCopy moves an installation to Postgres and back, and interrupts it on the way.
func TestStoreCopy(t *testing.T) {
	root := t.TempDir()
	original, url, back := filepath.Join(root, "state.db"), storetest.Postgres(t), filepath.Join(root, "back.db")
	s, err := store.Open(t.Context(), original)
	if err != nil {
		t.Fatal(err)
	}
	run1 := store.Run{ID: "run_1", Caller: "local", Session: "s", Runner: "shell", Started: time.Unix(1, 2), Cause: "exited"}
	if err := s.Record(t.Context(), []store.Run{run1}, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	environ := []string{"SANDBOX_ROOT=" + root}
	storeCopy := func(from, to, stopText string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := &stopAt{text: stopText, stop: cancel}
		code := run(ctx, []string{"store", "copy", "--from", from, "--to", to}, environ, strings.NewReader(""), out, out)
		if strings.Contains(out.String(), "pass-word") {
			t.Errorf("the password is shown:\n%s", out)
		}
		return code, out.String()
	}
	if code, out := storeCopy(original, url, ""); code != exitFailure || !strings.Contains(out, "in use: stop the servers") {
		t.Errorf("while a server uses it: %d %s", code, out)
	}
	s.Close()
	for _, way := range [][2]string{{original, url}, {url, back}} {
		if code, out := storeCopy(way[0], way[1], "results"); code != exitFailure || !strings.Contains(out, "interrupted: the copy is complete or was not made. Run the command again") {
			t.Errorf("interrupted: %d %s", code, out)
		}
		if code, out := storeCopy(way[0], way[1], ""); code != exitOK || !strings.Contains(out, "Copied 1 row from ") || !strings.Contains(out, "hashes of all tables are the same") {
			t.Errorf("%d %s", code, out)
		}
		if code, out := storeCopy(way[0], way[1], ""); code != exitOK || !strings.Contains(out, "has the same 1 row already; nothing was copied") {
			t.Errorf("again: %d %s", code, out)
		}
	}
	if s, err = store.Open(t.Context(), back); err != nil {
		t.Fatal(err)
	}
	if got, err := s.GetRun(t.Context(), "run_1"); err != nil || !got.Started.Equal(run1.Started) || got.Cause != "exited" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := s.Record(t.Context(), []store.Run{{ID: "run_2"}}, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if code, out := storeCopy(back, url, ""); code != exitFailure || !strings.Contains(out, "not empty: it has other runs than the source") {
		t.Errorf("to another installation: %d %s", code, out)
	}
}

// TestServeOnPostgres: the server makes its tables, leaves no SQLite file, and shows no password.
func TestServeOnPostgres(t *testing.T) {
	root, url := filepath.Join(t.TempDir(), "root"), storetest.Postgres(t)
	s := serve(t, root, "SANDBOX_HTTP_PORT=0", "SANDBOX_DATABASE_URL="+url)
	s.text.wait(t, `database opened database="?postgres://sandbox@`)
	if code := s.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	log, err := os.ReadFile(filepath.Join(root, "logs", "sandbox.log"))
	text, _ := s.text.state()
	if err != nil || strings.Contains(text+string(log), "pass-word") {
		t.Errorf("the password is shown, %v:\n%s", err, text)
	}
	if files, _ := filepath.Glob(filepath.Join(root, "state.db*")); len(files) > 0 {
		t.Errorf("left %q", files)
	}
	if found, err := store.Check(t.Context(), url); err != nil || found.Version != found.Newest {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestReadyWithoutPostgres: a server whose database does not answer is not ready, although it can
// run code.
func TestReadyWithoutPostgres(t *testing.T) {
	db, err := store.Open(t.Context(), storetest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	a := &app{settings: &settings{}, store: db, tasks: newTasks(), isolation: isolation{opened: opened{driver: lacking{}}}}
	a.environments.change(runner.Set{{}}, nil)
	if err := a.ready(t.Context()); err != nil {
		t.Errorf("with it: %v", err)
	}
	start := storetest.Stop(t)
	if err := a.ready(t.Context()); !db.IsDown(err) || !strings.Contains(err.Error(), "reaching the database postgres://") {
		t.Errorf("without it: %v", err)
	}
	start()
	if err := a.ready(t.Context()); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

// TestPostgresUser: in an outer namespace, the user is the one outside, unless PGUSER names another
// one.
func TestPostgresUser(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ environ, want []string }{
		{[]string{"A=1"}, []string{"PGUSER=" + me.Username, "A=1"}},
		{[]string{"PGUSER="}, []string{"PGUSER=" + me.Username, "PGUSER="}},
		{[]string{"A=1", "PGUSER=ann"}, []string{"A=1", "PGUSER=ann"}},
	} {
		if got := withPostgresUser(tc.environ); !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.environ, got, tc.want)
		}
	}
}

// TestDoctorChecksDatabase: doctor reports a database that a server could not use, with the fix,
// and changes nothing.
func TestDoctorChecksDatabase(t *testing.T) {
	storetest.Each(t, func(t *testing.T, where string) {
		s := &settings{Root: filepath.Dir(where)}
		if store.IsURL(where) {
			s.DatabaseURL = secret.New(where)
		}
		check := func(status sandbox.Status, detail, fix string) {
			t.Helper()
			c := checkDatabase(t.Context(), s)
			if c.Status != status || !strings.Contains(c.Detail, detail) || !strings.Contains(c.Fix, fix) || strings.Contains(c.Detail, "pass-word") {
				t.Errorf("%+v", c)
			}
		}
		for range 2 {
			check(sandbox.OK, "has no tables yet", "")
		}
		db, err := store.Open(t.Context(), where)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		check(sandbox.OK, "has version ", "") // also while a server uses it
		if store.IsURL(where) {
			storetest.Exec(t, where, `UPDATE sandbox_schema SET version = 99`)
			check(sandbox.Fail, "was written by a newer release (version 99", "use that release, or another database")
			s.DatabaseURL = secret.New(strings.Replace(where, "9%20tests", "guess", 1))
			check(sandbox.Fail, "password authentication failed", "PGPASSWORD")
		}
	})
}
