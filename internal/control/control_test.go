package control_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"mcp-code-sandbox/internal/control"
	"mcp-code-sandbox/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type sessions struct{}

func (sessions) Infos() []session.Info { return []session.Info{{Key: "abc", Caller: "ann", ID: "x"}} }

func (sessions) StopSession(_ context.Context, key string) (session.Stopped, error) {
	switch key {
	case "abc":
		return session.Stopped{Runs: 2, Sandboxes: 1}, nil
	case "broken":
		return session.Stopped{}, errors.New("cannot")
	}
	return session.Stopped{}, session.ErrNotFound
}

// TestControl: the socket works in a directory with a path longer than a socket address, only for
// the server's user, and despite a socket that a killed server left.
func TestControl(t *testing.T) {
	dir := t.TempDir()
	if runtime.GOOS == "linux" {
		dir = filepath.Join(dir, strings.Repeat("long", 40))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, dir := range []string{dir, filepath.Join(dir, "missing")} {
		if _, err := control.Infos(ctx, dir); !errors.Is(err, control.ErrNotRunning) {
			t.Errorf("without a server: %v", err)
		}
	}
	s, err := control.Serve(dir, sessions{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "control.sock")
	if fi, err := os.Stat(socket); err != nil || runtime.GOOS != "windows" && fi.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", fi, err)
	}
	if infos, err := control.Infos(ctx, dir); err != nil || len(infos) != 1 || infos[0].Caller != "ann" {
		t.Errorf("%+v, %v", infos, err)
	}
	if got, err := control.Stop(ctx, dir, "abc"); err != nil || got.Runs != 2 || got.Sandboxes != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := control.Stop(ctx, dir, "def"); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("a session that is not there: %v", err)
	}
	if _, err := control.Stop(ctx, dir, "broken"); err == nil || !strings.Contains(err.Error(), "cannot") {
		t.Errorf("a failure: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil { // nobody listens, as after a kill
		t.Fatal(err)
	}
	if _, err := control.Infos(ctx, dir); !errors.Is(err, control.ErrNotRunning) {
		t.Errorf("a stale socket: %v", err)
	}
}

// lastRun is a server that closes as soon as its last session is stopped, as when it drains.
type lastRun struct {
	sessions
	close  func()
	socket string
}

func (l *lastRun) StopSession(ctx context.Context, _ string) (session.Stopped, error) {
	go l.close()
	for ctx.Err() == nil {
		if _, err := os.Lstat(l.socket); err != nil { // Close has begun
			return session.Stopped{Runs: 1, Sandboxes: 1}, nil
		}
		runtime.Gosched()
	}
	return session.Stopped{}, ctx.Err()
}

func TestCloseAnswers(t *testing.T) {
	dir := t.TempDir()
	last, closed := &lastRun{socket: filepath.Join(dir, "control.sock")}, make(chan error)
	s, err := control.Serve(dir, last, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	last.close = func() { closed <- s.Close() }
	if got, err := control.Stop(t.Context(), dir, "abc"); err != nil || got.Runs != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestServerDies: if a server ends before it answers, the error says so instead of EOF.
func TestServerDies(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = conn.Read(make([]byte, 4096))
			_ = conn.Close()
		}
	}()
	if _, err := control.Stop(t.Context(), dir, "abc"); err == nil || err.Error() != "it ended before it answered" {
		t.Error(err)
	}
}
