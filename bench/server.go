//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a started mcp-code-sandbox with its own data directory.
type server struct {
	url    string
	token  string
	client *http.Client

	cmd  *exec.Cmd
	log  string // the file of what it has written
	root string
	done chan struct{} // closed when it has ended
}

// stopTimeout is the time that a server has to end a thousand sandboxes.
const stopTimeout = 90 * time.Second

// startServer starts the built server as the kind's user and waits until it is ready. The server
// inherits settings from this process's environment. It ends with the bench at the latest.
func (b *bench) startServer(ctx context.Context, k kind, name string, settings ...string) (*server, error) {
	root, err := b.serverRoot(k, name)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	s := &server{
		url: "http://" + addr, token: "bench-token-of-this-run-only", root: root, log: root + ".log", done: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(b.binary, "serve")
	s.cmd.Env = append(k.user.environ(), "SANDBOX_BACKEND=jail", "SANDBOX_ROOT="+root, "MCP_HTTP_ADDR="+addr, "MCP_API_TOKEN="+s.token, "PUBLIC_BASE_URL="+s.url,
		"SANDBOX_MAX_SESSIONS=2000", "SANDBOX_SESSION_TTL_M=60m", "SANDBOX_LOG_LEVEL=WARN")
	s.cmd.Env = append(s.cmd.Env, settings...)
	s.cmd.Stderr = log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true} // an interrupt is ours to pass on
	if err := k.user.start(s.cmd); err != nil {
		return nil, fmt.Errorf("the %s server: %w", name, err)
	}
	b.started = append(b.started, s)
	watchdog, err := startWatchdog(s.cmd.Process.Pid)
	go func() {
		_ = s.cmd.Wait()
		watchdog()
		close(s.done)
	}()
	if err != nil {
		s.stop()
		return nil, err
	}
	if err := s.awaitReady(ctx); err != nil {
		s.stop()
		text, _ := os.ReadFile(s.log)
		return nil, fmt.Errorf("the %s server: %w\n%s", name, err, text)
	}
	return s, nil
}

// startWatchdog ends a server if this process is killed. The kernel forgets its Pdeathsig when it
// enters an outer namespace. The returned function ends the watchdog.
func startWatchdog(pid int) (end func(), err error) {
	cmd := exec.Command("/bin/sh", "-c", `read -r end; kill "$0"`, strconv.Itoa(pid))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe() // ends with this process
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return func() {}, err
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	}, nil
}

// outerNamespace says in which user namespace the server runs.
func (s *server) outerNamespace() string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", s.cmd.Process.Pid))
	if err != nil {
		return "user namespace not known"
	}
	return describeIDs(string(text))
}

// describeIDs describes a user namespace by its map of ids.
func describeIDs(uidMap string) string {
	var ids int64
	for line := range strings.Lines(uidMap) {
		var inside, outside, n int64
		_, _ = fmt.Sscan(line, &inside, &outside, &n)
		ids += n
	}
	switch {
	case ids > math.MaxInt32:
		return "no outer namespace"
	case ids == 1:
		return "an outer namespace without subordinate ids"
	}
	return fmt.Sprintf("an outer namespace with %d ids", ids)
}

// serverRoot makes the data directory of a server, with the prepared language environments.
func (b *bench) serverRoot(k kind, name string) (string, error) {
	root := filepath.Join(b.dir, k.name+"-"+name)
	if err := k.user.makeDir(root); err != nil {
		return "", err
	}
	return root, os.Symlink(b.runners, filepath.Join(root, "runners"))
}

func (s *server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		resp, err := s.client.Get(s.url + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-s.done:
			return errors.New("it has ended")
		case <-ctx.Done():
			return fmt.Errorf("it did not become ready: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop ends the server and everything it started.
func (s *server) stop() {
	if s == nil {
		return
	}
	s.client.CloseIdleConnections()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill() // its sandboxes end with it
		<-s.done
	}
}

// call calls a tool as curl would. The answer must contain success.
func (s *server) call(ctx context.Context, tool, success string, arguments map[string]any) ([]byte, error) {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": tool, "arguments": arguments}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/mcp", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if !bytes.Contains(answer, []byte(success)) {
		return nil, fmt.Errorf("%s: %s: %s", tool, resp.Status, answer)
	}
	return answer, nil
}

// ranWell appears in the answer of every run tool whose code succeeded.
const ranWell = `\"exit_code\": 0`

// run makes a fresh run.
func (s *server) run(ctx context.Context, session, language, code string) ([]byte, error) {
	return s.call(ctx, "run_code", ranWell, map[string]any{"conversationId": session, "language": language, "code": code})
}

// cell makes a run in a live interpreter.
func (s *server) cell(ctx context.Context, session, language, code string) ([]byte, error) {
	return s.call(ctx, "run", ranWell, map[string]any{"session": session, "env": language, "code": code})
}

func (s *server) closeSession(ctx context.Context, session string) error {
	_, err := s.call(ctx, "close_session", `\"closed\"`, map[string]any{"session_id": session})
	return err
}
