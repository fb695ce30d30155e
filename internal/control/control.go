// Package control lets the operator query and control a running server through a Unix socket in the
// server's own directory, which only the server's user can enter. It knows no tokens and no
// callers.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"mcp-code-sandbox/internal/session"
)

const (
	socketName = "control.sock"
	// timeout bounds one request, including the time to end a session's sandboxes.
	timeout = 15 * time.Second
	// answerTime is how long Close waits for answers.
	answerTime = 2 * time.Second
	// maxAnswer bounds an answer: a thousand bytes for each of 65,536 sessions.
	maxAnswer = 64 << 20
)

// Sessions is what the server controls; *session.Manager implements it.
type Sessions interface {
	Infos() []session.Info
	StopSession(ctx context.Context, key string) (session.Stopped, error)
}

var _ Sessions = (*session.Manager)(nil)

// Server serves the socket of one directory.
type Server struct {
	dir    *os.File
	server *http.Server
	done   chan struct{}
}

// Serve serves a socket in dir until Close. Only the server's user may have access to dir.
func Serve(dir string, sessions Sessions, log *slog.Logger) (*Server, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", socketPath(d))
	if err != nil {
		d.Close()
		return nil, err
	}
	if err := os.Chmod(filepath.Join(dir, socketName), 0o600); err != nil {
		l.Close()
		d.Close()
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /sessions", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, sessions.Infos())
	})
	mux.HandleFunc("POST /sessions/{key}/stop", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		stopped, err := sessions.StopSession(ctx, r.PathValue("key"))
		switch {
		case errors.Is(err, session.ErrNotFound):
			answer(w, http.StatusNotFound, err.Error())
		case err != nil:
			answer(w, http.StatusInternalServerError, err.Error())
		default:
			answer(w, http.StatusOK, stopped)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: timeout, IdleTimeout: timeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	s := &Server{dir: d, done: make(chan struct{}), server: server}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(l)
	}()
	return s, nil
}

// Close removes the socket. It gives active requests a moment: one that stops the last run makes a
// draining server close. Then it cancels them.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = s.server.Close()
	}
	<-s.done
	return errors.Join(err, s.dir.Close())
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client is gone
}

// socketPath returns the path of the socket in an open directory. The path through the descriptor
// is always short: the address of a socket has at most 107 bytes.
func socketPath(dir *os.File) string {
	if runtime.GOOS == "linux" {
		return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketName)
	}
	return filepath.Join(dir.Name(), socketName)
}

// ErrNotRunning means that no server serves the directory.
var ErrNotRunning = errors.New("no server is running there")

// Infos returns the sessions of the server of dir. The error may be ErrNotRunning.
func Infos(ctx context.Context, dir string) (infos []session.Info, err error) {
	err = ask(ctx, dir, http.MethodGet, "/sessions", &infos)
	return infos, err
}

// Stop ends a session's sandboxes on the server of dir. The error may be ErrNotRunning, or
// session.ErrNotFound if that server does not have the session.
func Stop(ctx context.Context, dir, key string) (stopped session.Stopped, err error) {
	err = ask(ctx, dir, http.MethodPost, "/sessions/"+key+"/stop", &stopped)
	return stopped, err
}

func ask(ctx context.Context, dir, method, path string, result any) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Second)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socketPath(d))
		if err != nil && ctx.Err() == nil { // a killed server leaves its socket behind
			return nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
		}
		return conn, err
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://control"+path, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if errors.Is(err, io.EOF) {
		return errors.New("it ended before it answered")
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxAnswer)
	switch resp.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(body).Decode(result)
	case http.StatusNotFound:
		return session.ErrNotFound
	}
	var text string
	_ = json.NewDecoder(body).Decode(&text)
	return fmt.Errorf("the server answers %s: %s", resp.Status, text)
}
