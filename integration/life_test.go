//go:build linux

package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcp-code-sandbox/internal/logging/logtest"
)

// kill ends the server as the kernel would when memory runs out.
func (s *server) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	s.done <- <-s.done // for stop
}

// instancesOn lists the ids of the instances on a root.
func instancesOn(t *testing.T, root string) (ids []string) {
	t.Helper()
	dirs, err := os.ReadDir(filepath.Join(root, "instances"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if d.IsDir() {
			ids = append(ids, d.Name())
		}
	}
	return ids
}

// cgroupsOf lists the control groups of an instance.
func cgroupsOf(id string) (paths []string) {
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "mcp-code-sandbox-"+id) {
			paths = append(paths, path)
		}
		return nil // what cannot be read is not ours
	})
	return paths
}

// mountedFrom lists the processes, this one included, that see a mount from the root.
func mountedFrom(root string) []string {
	mark := filepath.Join(filepath.Base(filepath.Dir(root)), filepath.Base(root))
	return processes(func(dir string) bool {
		mounts, _ := os.ReadFile(filepath.Join(dir, "mountinfo"))
		return strings.Contains(string(mounts), mark)
	})
}

// wantFamily checks that the processes whose end a test awaits exist.
func wantFamily(t *testing.T, family []process, names ...string) {
	t.Helper()
	for _, name := range names {
		if !slices.ContainsFunc(family, func(p process) bool { return p.name == name }) {
			t.Fatalf("no process %s among the server's: %+v", name, family)
		}
	}
}

// familyOf lists a server's processes, with the given names among them. On docker the engine owns
// them, and it lists those of the run.
func familyOf(t *testing.T, pid int, marker string, names ...string) (family []process) {
	t.Helper()
	if !onDocker() {
		family = descendants(t, pid)
		wantFamily(t, family, names...)
		return family
	}
	for _, line := range marked(marker) {
		number, _, _ := strings.Cut(line, " ")
		if pid, err := strconv.Atoi(number); err == nil {
			if p, ok := readProcess(pid); ok {
				family = append(family, p)
			}
		}
	}
	if len(family) == 0 {
		t.Fatal("the run has no process")
	}
	return family
}

// TestKilledServer checks that nothing of a killed server stays, not even what cannot notice its
// end. The next server removes its traces and serves its files.
func TestKilledServer(t *testing.T) {
	t.Run("in mid-run", func(t *testing.T) { testKilledServer(t, func([]process) {}) })
	t.Run("with stuck agents", func(t *testing.T) {
		testKilledServer(t, func(family []process) {
			stopped := 0
			for _, p := range family {
				if strings.HasPrefix(p.name, ".sandbox-agent") {
					if err := syscall.Kill(p.pid, syscall.SIGSTOP); errors.Is(err, syscall.ESRCH) {
						continue // one that only started another
					} else if err != nil {
						t.Fatal(err)
					}
					stopped++
				}
			}
			if stopped == 0 {
				t.Fatalf("no agent among the server's processes: %+v", family)
			}
		})
	})
}

// testKilledServer calls before with the server's processes, then kills the server.
func testKilledServer(t *testing.T, before func([]process)) {
	s := serve(t)
	kept := s.run(t, "life", "shell", "echo kept > kept.txt")
	if len(kept.Files) != 1 {
		t.Fatalf("run_code: %+v", kept)
	}
	marker := newMarker()
	answer := s.begin(t, "life", marker, sleeper(marker), withNetwork)
	family := descendants(t, s.cmd.Process.Pid)
	wantFamily(t, family, "bwrap", "slirp4netns", "sleep")
	ids := instancesOn(t, s.Root)
	if len(ids) != 1 {
		t.Fatalf("the instances are %v, want one", ids)
	}
	groups := cgroupsOf(ids[0])
	if os.Geteuid() == 0 && len(groups) == 0 {
		t.Error("the sandboxes of a root server have no cgroups")
	}

	t.Cleanup(func() { // what a failure leaves must not stay on the machine
		for _, p := range alive(family) {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	})
	before(family)
	s.kill(t)
	<-answer
	eventually(t, 3*time.Second, "the killed server's processes and mounts to end", func() bool {
		return len(alive(family)) == 0 && len(marked(marker)) == 0 && len(mountedFrom(s.Root)) == 0
	})

	again := serve(t, "SANDBOX_ROOT="+s.Root, "MCP_HTTP_ADDR="+strings.TrimPrefix(s.URL, "http://"))
	if again.URL != s.URL {
		t.Fatalf("the new server is at %s, want %s", again.URL, s.URL)
	}
	eventually(t, 10*time.Second, "the dead instance's traces to be removed", func() bool {
		return !slices.Contains(instancesOn(t, s.Root), ids[0]) && len(cgroupsOf(ids[0])) == 0
	})
	if status, body := again.fetch(t, http.MethodGet, kept.Files[0].URL, nil); status != http.StatusOK || string(body) != "kept\n" {
		t.Errorf("the link handed out before gives %d %q", status, body)
	}
	if r := again.run(t, "life", "shell", "cat kept.txt"); r.Output != "kept\n" {
		t.Errorf("the session's next run: %+v", r)
	}
}

// TestTwoInstances checks that servers on one root leave each other's runs alone when they start,
// clean up, die and end.
func TestTwoInstances(t *testing.T) {
	root := newRoot(t)
	onRoot := "SANDBOX_ROOT=" + root
	finish := func(s *server, session string, answer <-chan string) {
		t.Helper()
		s.call(t, "upload_file", map[string]any{"conversationId": session, "filename": "go", "content": ""})
		select {
		case a := <-answer:
			if !strings.Contains(a, `started\\nfinished\\n`) {
				t.Errorf("the run of %s was disturbed: %s", session, a)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("the run of %s does not end", session)
		}
	}

	first := serve(t, onRoot)
	firstID := instancesOn(t, root)[0]
	firstMarker := newMarker()
	firstAnswer := first.begin(t, "first", firstMarker, waiter(firstMarker))

	second := serve(t, onRoot)
	secondMarker := newMarker()
	second.begin(t, "second", secondMarker, waiter(secondMarker))
	ids := instancesOn(t, root)
	if len(ids) != 2 {
		t.Fatalf("the instances are %v, want two", ids)
	}
	secondID := ids[1-slices.Index(ids, firstID)]
	second.kill(t)
	eventually(t, 3*time.Second, "the killed server's run to die", func() bool { return len(marked(secondMarker)) == 0 })

	third := serve(t, onRoot) // cleans up after the second
	thirdMarker := newMarker()
	thirdAnswer := third.begin(t, "third", thirdMarker, waiter(thirdMarker))
	eventually(t, 10*time.Second, "the dead instance's traces to be removed", func() bool {
		return !slices.Contains(instancesOn(t, root), secondID) && len(cgroupsOf(secondID)) == 0
	})
	if !slices.Contains(instancesOn(t, root), firstID) || len(marked(firstMarker)) == 0 {
		t.Fatal("the first server was disturbed by the others")
	}
	finish(first, "first", firstAnswer)
	if r := first.run(t, "first", "shell", "ls"); r.Output != "go\n" {
		t.Errorf("the first server's next run: %+v", r)
	}

	first.stop(t)
	if slices.Contains(instancesOn(t, root), firstID) || len(cgroupsOf(firstID)) != 0 {
		t.Error("the first server has left traces")
	}
	finish(third, "third", thirdAnswer)
	if r := third.run(t, "first", "shell", "ls"); r.Output != "go\n" {
		t.Errorf("the files of the first server's session, seen from the third: %+v", r)
	}
}

// TestTerminated checks that a server that is asked to end does so at once.
func TestTerminated(t *testing.T) {
	s := serve(t)
	marker := newMarker()
	answer := s.begin(t, "life", marker, sleeper(marker), withNetwork)
	family := familyOf(t, s.cmd.Process.Pid, marker, "bwrap", "slirp4netns", "sleep")
	s.ids = instancesOn(t, s.Root)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-s.done:
		s.done <- err
		if err != nil {
			t.Errorf("the server ends with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the server does not end within 5 s")
	}
	<-answer
	if left := alive(family); len(left) != 0 {
		t.Errorf("processes are left: %+v", left)
	}
	if left := instancesOn(t, s.Root); len(left) != 0 {
		t.Errorf("instances are left: %v", left)
	}
	s.wantNoResidue(t)
}

// TestStdioEnds checks that a stdio server of its own ends with its client during a run, and writes
// only messages to stdout.
func TestStdioEnds(t *testing.T) {
	root := newRoot(t)
	cmd := exec.Command(binary, "stdio", "--alone")
	cmd.Env = append(baseEnv(), "SANDBOX_ROOT="+root, "SANDBOX_HTTP_PORT=0")
	log := &logtest.Buffer{}
	cmd.Stderr = log
	stdin, stdout := startPiped(t, cmd)
	ended := make(chan error, 1)
	go func() {
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			var message struct{ JSONRPC string }
			if err := json.Unmarshal(sc.Bytes(), &message); err != nil || message.JSONRPC != "2.0" {
				t.Errorf("on stdout: %q", sc.Text())
			}
		}
		ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if t.Failed() {
			t.Logf("server's log:\n%s", log)
		}
	})

	marker := newMarker()
	code, err := json.Marshal(sleeper(marker))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(stdin, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}`)
	fmt.Fprintln(stdin, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	fmt.Fprintf(stdin, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":{"conversationId":"c","language":"shell","code":%s}}}`+"\n", code)
	eventually(t, 30*time.Second, "the run to start", func() bool { return len(marked(marker)) == 1 })
	family := familyOf(t, cmd.Process.Pid, marker, "bwrap", "sleep")
	s := &server{Root: root, ids: instancesOn(t, root)}

	stdin.Close()
	stdout.Close() // a client that still reads gets its answer first
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the server ends with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the server does not end within 5 s of its client")
	}
	if left := alive(family); len(left) != 0 {
		t.Errorf("processes are left: %+v", left)
	}
	s.wantNoResidue(t)
}

// TestSamePort checks that a second server takes a free port, unless it was given the whole
// address.
func TestSamePort(t *testing.T) {
	first := serve(t)
	_, port, _ := strings.Cut(strings.TrimPrefix(first.URL, "http://"), ":")
	second := serve(t, "MCP_HTTP_ADDR=", "SANDBOX_HTTP_PORT="+port)
	if second.URL == first.URL {
		t.Fatalf("both servers are at %s", first.URL)
	}
	for _, s := range []*server{first, second} {
		r := s.run(t, "port", "shell", "echo here > here.txt; echo here")
		if r.Output != "here\n" || len(r.Files) != 1 || !strings.HasPrefix(r.Files[0].URL, s.URL+"/files/") {
			t.Errorf("the server at %s: %+v", s.URL, r)
		}
	}
}
