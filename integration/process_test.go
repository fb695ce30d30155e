//go:build linux

package integration

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// newMarker returns a name that no other process has.
func newMarker() string { return "marker-" + strings.ToLower(rand.Text()) }

// sleeper is shell code that prints a line and then sleeps for ever under the marker's name.
func sleeper(marker string) string { return "echo started; exec -a " + marker + " sleep infinity" }

// marked lists the processes with the marker's name.
func marked(marker string) []string {
	return processes(func(dir string) bool {
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		return bytes.HasPrefix(cmdline, []byte(marker+"\x00"))
	})
}

// process is one process of the host, identified by its pid and start time.
type process struct {
	pid, parent int
	start       string
	name        string
	state       string
}

// readProcess reports false if the process does not exist.
func readProcess(pid int) (process, bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}, false
	}
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')') // a name may have parentheses in it
	if open < 0 || end < open {
		return process{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return process{pid: pid, parent: parent, start: fields[19], name: string(stat[open+1 : end]), state: fields[0]}, err == nil
}

// gone reports whether the process has ended, even if its parent has not waited for it.
func (p process) gone() bool {
	now, ok := readProcess(p.pid)
	return !ok || now.start != p.start || now.state == "Z" || now.state == "X"
}

// descendants lists the processes that pid has started, and theirs.
func descendants(t *testing.T, pid int) []process {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int][]process{}
	for _, d := range dirs {
		if n, err := strconv.Atoi(d.Name()); err == nil {
			if p, ok := readProcess(n); ok {
				children[p.parent] = append(children[p.parent], p)
			}
		}
	}
	list := children[pid]
	for i := 0; i < len(list); i++ {
		list = append(list, children[list[i].pid]...)
	}
	return list
}

// alive lists the processes that have not ended.
func alive(list []process) (left []process) {
	for _, p := range list {
		if !p.gone() {
			left = append(left, p)
		}
	}
	return left
}

// waiter is shell code that prints a line, waits under the marker's name for a file "go", and
// prints another.
func waiter(marker string) string {
	return "echo started; exec -a " + marker + " bash -c 'until [ -e go ]; do sleep 0.05; done; echo finished'"
}

// begin starts a run whose code takes the marker's name, and returns when it has. The channel gets
// the answer or the connection's error.
func (s *server) begin(t *testing.T, session, marker, code string, more ...func(map[string]any)) <-chan string {
	t.Helper()
	args := map[string]any{"conversationId": session, "language": "shell", "code": code}
	for _, m := range more {
		m(args)
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call",
		"params": map[string]any{"name": "run_code", "arguments": args}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/mcp", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.Token)
	answer := make(chan string, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			text = append(text, err.Error()...)
		}
		answer <- string(text)
	}()
	eventually(t, 30*time.Second, "the run to start", func() bool {
		select {
		case a := <-answer:
			t.Fatalf("the run ended at once: %s", a)
		default:
		}
		return len(marked(marker)) == 1
	})
	return answer
}

// withNetwork gives a run network.
func withNetwork(args map[string]any) { args["network"] = true }
