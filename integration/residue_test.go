//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// serveHostile starts a server that will be attacked. The test must defer its sweep.
func serveHostile(t *testing.T, settings ...string) *server {
	t.Helper()
	s := serve(t, append([]string{"SESSION_IDLE_TIMEOUT=1"}, settings...)...)
	dirs, err := os.ReadDir(filepath.Join(s.Root, "instances"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if d.IsDir() {
			s.ids = append(s.ids, d.Name())
		}
	}
	if len(s.ids) != 1 {
		t.Fatalf("the server has these instance directories: %v", dirs)
	}
	if r := s.run(t, "first", "shell", "echo up"); r.Output != "up\n" {
		t.Fatalf("the first run gives %+v", r)
	}
	s.settle(t)
	s.goroutines = s.busy(t)
	return s
}

// busy counts the server's goroutines, except for those that wait for the end of a pooled sandbox.
func (s *server) busy(t *testing.T) float64 {
	t.Helper()
	const each = 3 // for its process, its output, and its place
	return s.metric(t, "go_goroutines") - each*s.metric(t, "sandbox_ready_sandboxes")
}

// sweep checks that the server still works, has shrunk to its former size, and leaves nothing
// behind when it stops.
func (s *server) sweep(t *testing.T) {
	t.Helper()
	if r := s.run(t, "last", "shell", "echo still here"); r.Output != "still here\n" {
		t.Errorf("the server no longer works: %+v", r)
	}
	s.settle(t)
	eventually(t, 10*time.Second, fmt.Sprintf("the goroutines to be about %v again", s.goroutines), func() bool {
		http.DefaultClient.CloseIdleConnections() // each has a goroutine in the server
		return s.busy(t) <= s.goroutines+2
	})
	s.stop(t)
	s.wantNoResidue(t)
	if strings.Contains(s.log.String(), "panic") {
		t.Error("the server's log tells of a panic")
	}
}

// settle waits until the idle sandboxes are gone.
func (s *server) settle(t *testing.T) {
	t.Helper()
	eventually(t, 20*time.Second, "idle sandboxes to end", func() bool {
		return s.metric(t, "sandbox_live_sandboxes") == 0 && s.metric(t, "sandbox_active_runs") == 0
	})
}

// metric reads a number from /metrics: one series, or the sum of all series of that name.
func (s *server) metric(t *testing.T, name string) float64 {
	t.Helper()
	status, body := s.fetch(t, http.MethodGet, s.URL+"/metrics", nil, "Authorization: Bearer "+s.Token)
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d", status)
	}
	sum, found := 0.0, false
	for sc := bufio.NewScanner(bytes.NewReader(body)); sc.Scan(); {
		series, value, _ := strings.Cut(sc.Text(), " ")
		if base, _, _ := strings.Cut(series, "{"); series != name && base != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum, found = sum+n, true
	}
	if !found {
		t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// memory returns the peak memory of the server's own process in bytes.
func (s *server) memory(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// wantNoResidue checks that a stopped server leaves its sessions' files, its keys and its log, and
// nothing else.
func (s *server) wantNoResidue(t *testing.T) {
	t.Helper()
	// Mounts and processes are found by the data directory, which is new for each test.
	mark := filepath.Join(filepath.Base(filepath.Dir(s.Root)), filepath.Base(s.Root))
	if left := processes(func(dir string) bool {
		mounts, _ := os.ReadFile(dir + "/mountinfo")
		return bytes.Contains(mounts, []byte(mark))
	}); len(left) > 0 {
		t.Errorf("processes or mounts of the stopped server are left: %v", left)
	}
	for _, id := range s.ids {
		_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.Contains(d.Name(), id) {
				t.Errorf("a cgroup is left: %s", path)
			}
			return nil
		})
	}
	err := filepath.WalkDir(s.Root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(s.Root, path)
		switch parts := strings.Split(name, string(filepath.Separator)); {
		case name == ".", name == "runners", name == "keys", name == "logs", name == "instances", name == "instances/.gate", name == "stdio", name == "stdio/stderr" && isEmpty(path),
			strings.HasPrefix(name, "keys/"), strings.HasPrefix(name, "logs/"), strings.HasPrefix(name, "state.db"):
		case len(parts[0]) == 64 && len(parts) == 1, len(parts) == 2 && parts[1] == "meta.json":
		case len(parts) >= 2 && parts[1] == "files":
			if strings.Contains(d.Name(), ".upload-") {
				t.Errorf("an unfinished upload is left: %s", name)
			}
		default:
			t.Errorf("left in the data directory: %s", name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func isEmpty(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.Size() == 0
}

// processes describes the host's processes whose /proc directory ok accepts.
func processes(ok func(dir string) bool) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		if ok(dir) {
			cmd, _ := os.ReadFile(dir + "/cmdline")
			found = append(found, fmt.Sprintf("%s %.200q", filepath.Base(dir), bytes.ReplaceAll(cmd, []byte{0}, []byte{' '})))
		}
	}
	return found
}
