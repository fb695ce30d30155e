package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/logging/logtest"
)

// window is a stdio process with a client.
type window struct {
	*mcp.ClientSession
	cmd     *exec.Cmd
	log     *logtest.Buffer
	changed chan struct{} // notifications that the list of resources has changed
}

// openWindow starts a stdio process on root and connects a client to it. Settings that start with
// "--" are arguments, the others variables.
func openWindow(t *testing.T, root string, settings ...string) *window {
	t.Helper()
	return openProgram(t, binary, root, settings...)
}

// openProgram is openWindow for another program.
func openProgram(t *testing.T, program, root string, settings ...string) *window {
	t.Helper()
	cmd := exec.Command(program, "stdio")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0")
	for _, s := range settings {
		if strings.HasPrefix(s, "--") {
			cmd.Args = append(cmd.Args, s)
		} else {
			cmd.Env = append(cmd.Env, s)
		}
	}
	return connectWindow(t, cmd)
}

// connectWindow starts a stdio process and connects a client to it.
func connectWindow(t *testing.T, cmd *exec.Cmd) *window {
	t.Helper()
	w := &window{cmd: cmd, log: &logtest.Buffer{}, changed: make(chan struct{}, 1000)}
	w.cmd.Stderr = w.log
	client := mcp.NewClient(&mcp.Implementation{Name: "integration", Version: "1"}, &mcp.ClientOptions{
		ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { w.changed <- struct{}{} },
	})
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: w.cmd, TerminateDuration: 20 * time.Second},
		&mcp.ClientSessionOptions{ProtocolVersion: "2025-06-18"})
	if err != nil {
		t.Fatalf("%v\n%s", err, w.log)
	}
	w.ClientSession = session
	t.Cleanup(func() {
		session.Close()
		if t.Failed() {
			t.Logf("log of window %d:\n%s", w.cmd.Process.Pid, w.log)
		}
	})
	return w
}

// cell runs Python in a session's interpreter, and returns the text of the result.
func (w *window) cell(t *testing.T, session, code string) string {
	t.Helper()
	text, err := w.try(t, session, code)
	if err != nil {
		t.Fatalf("%s: %v", code, err)
	}
	return text
}

func (w *window) try(t *testing.T, session, code string) (string, error) {
	t.Helper()
	res, err := w.CallTool(t.Context(), &mcp.CallToolParams{Name: "run", Arguments: map[string]any{"env": "python", "session": session, "code": code}})
	if err != nil {
		return "", err
	}
	return res.Content[0].(*mcp.TextContent).Text, nil
}

// begin starts a run that never ends by itself, and returns when it has started. The channel gets
// the error of the call.
func (w *window) begin(t *testing.T, marker string) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := w.CallTool(context.Background(), &mcp.CallToolParams{Name: "run_code", Arguments: map[string]any{
			"conversationId": "r", "language": "shell", "code": sleeper(marker)}})
		ended <- err
	}()
	eventually(t, 30*time.Second, "the run to start", func() bool { return len(marked(marker)) == 1 })
	return ended
}

// serversOn returns the process ids of the servers on root, by instance.
func serversOn(t *testing.T, root string) map[string]int {
	t.Helper()
	pids := map[string]int{}
	for _, id := range instancesOn(t, root) {
		text, err := os.ReadFile(filepath.Join(root, "instances", id, "lock"))
		pid, perr := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || perr != nil {
			continue // it has just ended
		}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) == filepath.Base(binary) {
			pids[id] = pid
		}
	}
	return pids
}

// oneServer returns the process id of the only server on root.
func oneServer(t *testing.T, root string) int {
	t.Helper()
	pids := serversOn(t, root)
	if len(pids) != 1 {
		t.Fatalf("%d servers on the root: %v", len(pids), pids)
	}
	for _, pid := range pids {
		return pid
	}
	return 0
}

// killShared ends the shared server as the kernel would, and waits until it is gone.
func killShared(t *testing.T, root string) {
	t.Helper()
	pid := oneServer(t, root)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the killed server to end", func() bool {
		return !slices.Contains(slices.Collect(maps.Values(serversOn(t, root))), pid)
	})
}

// TestWindowsShareAServer: windows with the same settings have one server, and so one interpreter
// per session. It outlives the window that started it, and depends on nothing of it.
func TestWindowsShareAServer(t *testing.T) {
	root := stdioRoot(t)
	first := openWindow(t, root, "ONLY_FIRST=1")
	first.cell(t, "shared", "x = 41")
	server := oneServer(t, root)
	second := openWindow(t, root, "ONLY_SECOND=2")
	if got := second.cell(t, "shared", "x + 1"); got != "42\n" {
		t.Errorf("the second window's cell: %q", got)
	}
	if got := oneServer(t, root); got != server {
		t.Errorf("the server is %d, then %d", server, got)
	}
	for _, w := range []*window{first, second} {
		eventually(t, 10*time.Second, "a window's log", func() bool {
			log := w.log.String()
			return strings.Contains(log, "file links at http://") && strings.Contains(log, "[MCP] Tool call: run")
		})
	}

	// A client that ends a window's whole process tree and session does not end the server.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", server))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	parent, group, session := fields[1], fields[2], fields[3]
	for _, pid := range []int{first.cmd.Process.Pid, os.Getpid(), syscall.Getpgrp()} {
		if id := strconv.Itoa(pid); parent == id || group == id || session == id {
			t.Errorf("the server's parent is %s, its group %s, its session %s", parent, group, session)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", server))
	if err != nil || bytes.Contains(environ, []byte("ONLY_")) || !bytes.Contains(environ, []byte("PATH=")) {
		t.Errorf("the server's environment: %q, %v", environ, err)
	}
	for _, name := range []string{"cwd", "fd/0", "fd/1", "fd/2"} {
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", server, name))
		if err != nil || target != "/dev/null" && !strings.HasPrefix(target, root) {
			t.Errorf("the server's %s is %s, %v", name, target, err)
		}
	}

	link := fileLink(t, first)
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	resp, err := http.Get(link)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK || string(body) != "kept" {
		t.Errorf("a link of the window that is gone: %s %q", resp.Status, body)
	}
	if got := second.cell(t, "shared", "x"); got != "41\n" {
		t.Errorf("after the first window: %q", got)
	}
}

// fileLink makes a file and returns its link.
func fileLink(t *testing.T, w *window) string {
	t.Helper()
	res, err := w.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_code", Arguments: map[string]any{
		"conversationId": "links", "language": "shell", "code": "printf kept > kept.txt"}})
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`http://[^"\\\s]+kept\.txt[^"\\\s]*`).FindString(strings.ReplaceAll(res.Content[0].(*mcp.TextContent).Text, `\u0026`, "&"))
	if link == "" {
		t.Fatalf("no link in %s", res.Content[0].(*mcp.TextContent).Text)
	}
	return link
}

// TestWindowsWithOtherSettings: a window whose settings or program differ has another server, and
// one with --alone serves itself.
func TestWindowsWithOtherSettings(t *testing.T) {
	root := stdioRoot(t)
	first := openWindow(t, root)
	first.cell(t, "s", "x = 1")
	shared := oneServer(t, root)
	other := copyProgram(t, t.TempDir()) // an upgrade, for example
	for _, settings := range [][]string{
		{"PROJECT_DIR=" + t.TempDir()}, {"--tools=run"}, {"SANDBOX_TOOLS=run,run_code"}, {"PATH=" + os.Getenv("PATH") + ":/nonexistent"}, {"MCP_API_TOKEN=another-token-of-mine"},
	} {
		before := len(serversOn(t, root))
		wantOther(t, openWindow(t, root, settings...), fmt.Sprint(settings))
		if pids := serversOn(t, root); len(pids) != before+1 {
			t.Errorf("%q: servers %v", settings, pids)
		}
	}
	wantOther(t, openProgram(t, other, root), "another program")
	before := len(serversOn(t, root))
	alone := openWindow(t, root, "--alone")
	wantOther(t, alone, "--alone")
	pids := serversOn(t, root)
	own := 0
	for _, pid := range pids {
		if pid == alone.cmd.Process.Pid {
			own++
		}
	}
	if own != 1 || len(pids) != before+1 {
		t.Errorf("with --alone, window %d: servers %v", alone.cmd.Process.Pid, pids)
	}
	if got := first.cell(t, "s", "x"); got != "1\n" {
		t.Errorf("the first window: %q", got)
	}
	alone.Close()
	out, code := commandWith(t, []string{"SANDBOX_ROOT=" + root}, "stdio", "--stop")
	if code != 0 || out != fmt.Sprintf("Ended %d shared servers.\n", before) {
		t.Errorf("stdio --stop: %d %q, want %d servers", code, out, before)
	}
	if left := serversOn(t, root); len(left) != 0 {
		t.Errorf("servers after stdio --stop: %v (the first was %d)", left, shared)
	}
}

// copyProgram copies the server's program to a directory.
func copyProgram(t *testing.T, dir string) string {
	t.Helper()
	program, err := os.ReadFile(binary)
	path := filepath.Join(dir, "mcp-code-sandbox")
	if err == nil {
		err = os.WriteFile(path, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestUpgrade: a window whose program was deleted starts its server again all the same, root's and
// an ordinary user's.
func TestUpgrade(t *testing.T) {
	if onDocker() {
		t.Skip("an ordinary user may not reach the engine")
	}
	for _, name := range []string{"root", "user"} {
		t.Run(name, func(t *testing.T) {
			base, attr := ordinaryRoot(t)
			if name == "root" {
				attr = nil
			}
			root, program := filepath.Join(base, "data"), copyProgram(t, base)
			command := func(program string, args ...string) *exec.Cmd {
				cmd := exec.Command(program, args...)
				cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0", "HOME="+filepath.Join(base, "home"), "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
				cmd.SysProcAttr, cmd.Dir = attr, base
				return cmd
			}
			w := connectWindow(t, command(program, "stdio"))
			t.Cleanup(func() {
				if out, err := command(binary, "stdio", "--stop").CombinedOutput(); err != nil {
					t.Errorf("stdio --stop: %v\n%s", err, out)
				}
			})
			w.cell(t, "s", "x = 1")
			server := oneServer(t, root)
			if err := os.Remove(program); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(server, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			eventually(t, 20*time.Second, "the server to end", func() bool { return len(instancesOn(t, root)) == 0 })
			if got := w.cell(t, "s", "6 * 7"); !strings.HasPrefix(got, "42\n") {
				t.Errorf("after the upgrade: %q", got)
			}
		})
	}
}

// TestSocketOfASharedServer: code in a sandbox sees neither the socket nor its directory, and no
// process of a sandbox has inherited the socket.
func TestSocketOfASharedServer(t *testing.T) {
	root := stdioRoot(t)
	w := openWindow(t, root)
	if got := w.cell(t, "s", fmt.Sprintf("import os\n[os.path.exists(%q), '.sock' in open('/proc/net/unix').read()]", root)); got != "[False, False]\n" {
		t.Errorf("inside: %q", got)
	}
	server := oneServer(t, root)
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := filepath.Glob(filepath.Join(root, "stdio", "*.sock"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets: %v, %v", sockets, err)
	}
	inode := ""
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) == 8 && strings.HasSuffix(fields[7], "/"+filepath.Base(sockets[0])) && fields[3] == "00010000" {
			inode = "socket:[" + fields[6] + "]"
		}
	}
	holders := func(pid int) (n int) {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if target, _ := os.Readlink(fd); target == inode {
				n++
			}
		}
		return n
	}
	if holders(server) != 1 {
		t.Fatalf("the server has %d descriptors of its socket %s", holders(server), inode)
	}
	for _, p := range descendants(t, server) {
		if p.pid != server && holders(p.pid) > 0 {
			t.Errorf("%+v has the socket", p)
		}
	}
}

// wantOther checks that a window does not see the variable x of the session s.
func wantOther(t *testing.T, w *window, name string) {
	t.Helper()
	if got := w.cell(t, "s", "'x' in globals()"); !strings.HasPrefix(got, "False\n") {
		t.Errorf("%s: the window shares the interpreter: %q", name, got)
	}
}

// TestWindowsStartAtOnce: of windows that start at the same time, one starts the server.
func TestWindowsStartAtOnce(t *testing.T) {
	root := stdioRoot(t)
	windows := make([]*window, 5)
	var wg sync.WaitGroup
	for i := range windows {
		wg.Go(func() { windows[i] = openWindow(t, root) })
	}
	wg.Wait()
	oneServer(t, root)
	windows[0].cell(t, "s", "x = 1")
	for _, w := range windows {
		if got := w.cell(t, "s", "x"); got != "1\n" {
			t.Errorf("a window: %q", got)
		}
	}
}

// TestSharedServerIsKilled: windows keep their clients' sessions over the end of the server. What
// was running is answered with an error, and the next answer says that variables are lost.
func TestSharedServerIsKilled(t *testing.T) {
	root := newRoot(t)
	first, second := openWindow(t, root), openWindow(t, root)
	first.cell(t, "s", "x = 1")
	second.cell(t, "t", "y = 2")

	killShared(t, root)
	eventually(t, 30*time.Second, "a cell in a new server", func() bool {
		text, err := first.try(t, "s", "'x' in globals()")
		if err != nil && !strings.Contains(err.Error(), "the server ended while it worked on this request") {
			t.Fatal(err)
		}
		if err == nil && (!strings.HasPrefix(text, "False\n") || !strings.Contains(text, "the interpreter of earlier runs had ended")) {
			t.Errorf("the first answer of a new server: %q", text)
		}
		return err == nil
	})
	if got := second.cell(t, "t", "'y' in globals()"); !strings.Contains(got, "the interpreter of earlier runs had ended") {
		t.Errorf("the other window's first answer: %q", got)
	}
	server := oneServer(t, root)

	// The new server knows the clients: it notifies them.
	for _, w := range []*window{first, second} {
		for len(w.changed) > 0 {
			<-w.changed
		}
	}
	if _, err := first.CallTool(t.Context(), &mcp.CallToolParams{Name: "upload_file", Arguments: map[string]any{
		"session_id": "s", "filename": "up.txt", "content": base64.StdEncoding.EncodeToString([]byte("up"))}}); err != nil {
		t.Error(err)
	}
	for _, w := range []*window{first, second} {
		select {
		case <-w.changed:
		case <-time.After(20 * time.Second):
			t.Error("a window is not notified after the end of its server")
		}
	}

	marker := newMarker()
	failed := second.begin(t, marker)
	if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "the server ended while it worked on this request") {
		t.Errorf("the run in the killed server: %v", err)
	}
	eventually(t, 10*time.Second, "the run to end", func() bool { return len(marked(marker)) == 0 })
	if got := second.cell(t, "u", "6 * 7"); got != "42\n" {
		t.Errorf("after that: %q", got)
	}
}

// TestWindowIsKilled: the end of a window ends its runs, however it comes, and nothing of others.
func TestWindowIsKilled(t *testing.T) {
	root := stdioRoot(t)
	other := openWindow(t, root)
	other.cell(t, "s", "x = 1")
	server := oneServer(t, root)
	for name, meanwhile := range map[string]func(*testing.T){
		"others are quiet": func(*testing.T) {},
		"others are busy":  func(t *testing.T) { other.cell(t, "s", "x") }, // the server has log lines for the dead window
	} {
		t.Run(name, func(t *testing.T) {
			w, marker := openWindow(t, root), newMarker()
			w.begin(t, marker)
			if err := w.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			eventually(t, 10*time.Second, "the window's run to end", func() bool {
				meanwhile(t)
				return len(marked(marker)) == 0
			})
		})
	}
	if got := other.cell(t, "s", "x"); got != "1\n" || oneServer(t, root) != server {
		t.Errorf("the other window: %q", got)
	}
}

// TestSharedServerIsStopped: an operator stops the server, and a window starts another one when it
// needs it. sessions works beside shared servers.
func TestSharedServerIsStopped(t *testing.T) {
	root := stdioRoot(t)
	w := openWindow(t, root)
	w.cell(t, "s", "x = 1")
	if out, _, code := command(t, root, "", "sessions", "list", "--live"); code != 0 || !strings.Contains(out, "local") {
		t.Errorf("sessions list: %d %s", code, out)
	}
	if out, _, code := command(t, root, "", "sessions", "stop", "local/s"); code != 0 || !strings.Contains(out, "1 sandbox") {
		t.Errorf("sessions stop: %d %s", code, out)
	}
	server := oneServer(t, root)
	if err := syscall.Kill(server, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the server to end", func() bool { return len(instancesOn(t, root)) == 0 })
	if got := w.cell(t, "s", "'x' in globals()"); !strings.Contains(got, "the interpreter of earlier runs had ended") {
		t.Errorf("after the stop: %q", got)
	}
	if oneServer(t, root) == server {
		t.Error("the stopped server answers")
	}
}

// TestDataDirectoryOfASharedServer: a server without windows ends when its data directory is gone.
func TestDataDirectoryOfASharedServer(t *testing.T) {
	root := filepath.Join(stdioRoot(t), "inner")
	w := openWindow(t, root)
	pid := oneServer(t, root)
	w.Close()
	if err := os.RemoveAll(filepath.Join(root, "stdio")); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the server to end", func() bool { return syscall.Kill(pid, 0) != nil || len(instancesOn(t, root)) == 0 })
	if err := os.RemoveAll(root); err != nil {
		t.Error(err)
	}
}

// TestWindowsOfUsers: windows of an ordinary user share a server, too. Another user's window on the
// same data directory, here root's, does not join it.
func TestWindowsOfUsers(t *testing.T) {
	if onDocker() {
		t.Skip("an ordinary user may not reach the engine")
	}
	base, attr := ordinaryRoot(t)
	root := filepath.Join(base, "data")
	open := func(attr *syscall.SysProcAttr) (out, log string) {
		t.Helper()
		cmd := exec.Command(binary, "stdio")
		cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0", "HOME="+filepath.Join(base, "home"), "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
		cmd.SysProcAttr, cmd.Dir = attr, base
		var stdout, stderr bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":{"conversationId":"c","language":"shell","code":"echo $((6*7))"}}}
`), &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Errorf("stdio: %v\n%s", err, stderr.String())
		}
		return stdout.String(), stderr.String()
	}
	t.Cleanup(func() {
		cmd := exec.Command(binary, "stdio", "--stop")
		cmd.SysProcAttr, cmd.Dir, cmd.Env = attr, base, append(baseEnv(), "SANDBOX_ROOT="+root)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("stdio --stop: %v\n%s", err, out)
		}
	})
	instance := regexp.MustCompile(`instance=([0-9a-f]+)`)
	seen := map[string]bool{}
	for range 2 {
		out, log := open(attr)
		if !strings.Contains(out, `42`) || strings.Contains(log, "of its own") {
			t.Errorf("an ordinary user's window: %s\n%s", out, log)
		}
		if m := instance.FindStringSubmatch(log); m != nil {
			seen[m[1]] = true
		}
	}
	if len(seen) != 1 {
		t.Errorf("servers of two windows: %v", seen)
	}
	if os.Geteuid() != 0 {
		return
	}
	if out, log := open(nil); !strings.Contains(out, `42`) || !strings.Contains(log, "this window has a server of its own") || !strings.Contains(log, "belongs to another user") {
		t.Errorf("root's window on a user's data directory: %s\n%s", out, log)
	}
}
