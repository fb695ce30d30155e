//go:build linux

// Command bench measures the built server beside plain processes, in one run, so that ratios can be
// compared on a noisy machine. It prints a Markdown table. `make bench` starts it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	server := flag.String("server", "bin/mcp-code-sandbox", "the built server")
	root := flag.String("root", ".cache/bench", "its data directory; kept, so that environments are prepared once")
	rounds := flag.Int("n", 60, "measurements of each kind")
	engine := flag.String("docker", os.Getenv("SANDBOX_TEST_DOCKER_HOST"), "address of a Docker engine that has the runner images; empty: it is left out")
	only := flag.Bool("docker-only", false, "measure nothing but the docker backend")
	flag.Parse()
	var err error
	if !*only {
		err = bench(*server, *root, *rounds)
	}
	if err == nil {
		err = benchDocker(*server, *root+"-docker", *engine, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func bench(binary, root string, n int) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	install := exec.Command(binary, "runners", "install")
	install.Env = append(os.Environ(), "SANDBOX_ROOT="+root)
	install.Stderr = os.Stderr
	if err := install.Run(); err != nil {
		return fmt.Errorf("runners install: %w", err)
	}
	s, err := startServer(binary, root, "SANDBOX_BACKEND=jail")
	if err != nil {
		return err
	}
	defer s.stop()

	python, node := filepath.Join(root, "runners/python/bin/python"), "node"
	t := &table{base: "bwrap + python3"}
	if err := benchProxy(t, n); err != nil {
		return err
	}
	if err := latency(t, s, python, node, n); err != nil {
		return err
	}
	for _, clients := range []int{1, 2, 8} {
		rate, err := s.throughput(clients, 4*n)
		if err != nil {
			return err
		}
		t.row(fmt.Sprintf("throughput, %d clients, each a session", clients), fmt.Sprintf("%.0f runs/s", rate), "", "")
	}
	pss, err := s.idleMemory(8)
	if err != nil {
		return err
	}
	t.row("memory of an idle session (PSS of its processes)", fmt.Sprintf("%.1f MB", pss/1e6), "", "")
	fmt.Print(t.String())
	return nil
}

// kind is something to measure, n times.
type kind struct {
	name string
	do   func() error
	n    int
}

func latency(t *table, s *server, python, node string, n int) error {
	const code = "print(2+2)"
	warm := func(session, language, code string) func() error {
		return func() error { return s.run(session, language, code) }
	}
	var fresh int
	return measure(t, 1, []kind{
		{"plain python3 -c", command(python, "-c", code), n},
		{"bwrap + python3", command("bwrap", "--unshare-all", "--ro-bind", "/", "/", python, "-c", code), n},
		{"run_code python, warm, through HTTP", warm("warm", "python", code), n},
		{"run_code python, first run of a session", func() error {
			fresh++
			return s.run(fmt.Sprintf("new-%d-%d", os.Getpid(), fresh), "python", code)
		}, n / 3},
		{"run_code shell, warm", warm("warm", "shell", "echo 4"), n},
		{"plain node -e", command(node, "-e", "console.log(4)"), n / 2},
		{"run_code javascript, warm", warm("warm", "javascript", "console.log(4)"), n / 2},
		{"run_code typescript, warm", warm("warm", "typescript", "const x: number = 4; console.log(x)"), n / 2},
	})
}

// measure takes its measurements in turn, so that a slow moment of the machine hits all of them. The kind at base is what
// the others are compared to.
func measure(t *table, base int, kinds []kind) error {
	times := make([][]time.Duration, len(kinds))
	most := slices.MaxFunc(kinds, func(a, b kind) int { return a.n - b.n }).n
	for i := range most + 2 {
		for k, kind := range kinds {
			if i >= kind.n+2 {
				continue
			}
			start := time.Now()
			if err := kind.do(); err != nil {
				return fmt.Errorf("%s: %w", kind.name, err)
			}
			if i >= 2 { // the first two warm up
				times[k] = append(times[k], time.Since(start))
			}
		}
	}
	unit := percentile(times[base], 50)
	for k, kind := range kinds {
		p50 := percentile(times[k], 50)
		t.row(kind.name, ms(p50), ms(percentile(times[k], 99)), fmt.Sprintf("%.2fx", float64(p50)/float64(unit)))
	}
	return nil
}

func command(name string, args ...string) func() error {
	return func() error { return exec.Command(name, args...).Run() }
}

type table struct {
	base string // what the last column compares to
	rows [][4]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, [4]string(cells)) }

func (t *table) String() string {
	var b strings.Builder
	b.WriteString("| what | p50 | p99 | to " + t.base + " |\n|---|---|---|---|\n")
	for _, r := range t.rows {
		b.WriteString("| " + strings.Join(r[:], " | ") + " |\n")
	}
	return b.String()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

func percentile(d []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, len(s)*p/100)]
}

// server is a started mcp-code-sandbox.
type server struct {
	cmd   *exec.Cmd
	url   string
	token string
}

func startServer(binary, root string, env ...string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	s := &server{url: "http://" + addr, token: "bench-token-of-this-run-only"}
	s.cmd = exec.Command(binary, "serve")
	s.cmd.Env = append(os.Environ(), "SANDBOX_ROOT="+root, "MCP_HTTP_ADDR="+addr, "MCP_API_TOKEN="+s.token,
		"SANDBOX_MAX_SESSIONS=200", "SANDBOX_LOG_LEVEL=ERROR")
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for range 200 {
		resp, err := http.Get(s.url + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.stop()
	return nil, errors.New("the server did not become ready")
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// run is one call as curl would make it.
func (s *server) run(session, language, code string) error {
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": map[string]any{
		"name": "run_code", "arguments": map[string]any{"conversationId": session, "language": language, "code": code},
	}})
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, s.url+"/mcp", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if !bytes.Contains(answer, []byte(`\"success\": true`)) {
		return fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return nil
}

// throughput has each client run one after the other in a session of its own.
func (s *server) throughput(clients, runs int) (perSecond float64, err error) {
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = clients
	each := runs / clients
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for i := range clients { // not the first run of a session: that is measured above
		if err := s.run(fmt.Sprintf("client-%d", i), "python", "print(1)"); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	for i := range clients {
		wg.Go(func() {
			for range each {
				if errs[i] = s.run(fmt.Sprintf("client-%d", i), "python", "print(1)"); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(each*clients) / time.Since(start).Seconds(), errors.Join(errs...)
}

// idleMemory opens sessions and returns what each keeps in memory when nothing runs.
func (s *server) idleMemory(sessions int) (bytesEach float64, err error) {
	before, err := s.childrenPSS()
	if err != nil {
		return 0, err
	}
	for i := range sessions {
		if err := s.run(fmt.Sprintf("idle-%d-%d", os.Getpid(), i), "python", "print(1)"); err != nil {
			return 0, err
		}
	}
	after, err := s.childrenPSS()
	return float64(after-before) / float64(sessions), err
}

// childrenPSS adds up the proportional set sizes of all descendants of the server.
func (s *server) childrenPSS() (int64, error) {
	parent := map[int]int{}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has just ended
		}
		var pid, ppid int
		var state string
		rest := string(text[bytes.LastIndexByte(text, ')')+1:])
		if _, err := fmt.Sscan(rest, &state, &ppid); err == nil {
			if _, err := fmt.Sscan(string(text), &pid); err == nil {
				parent[pid] = ppid
			}
		}
	}
	var sum int64
	for pid := range parent {
		p := parent[pid]
		for p > 1 && p != s.cmd.Process.Pid {
			p = parent[p]
		}
		if p != s.cmd.Process.Pid {
			continue
		}
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, fmt.Errorf("memory of %d: %w", pid, err)
		}
		for _, line := range strings.Split(string(rollup), "\n") {
			var kb int64
			if _, err := fmt.Sscanf(line, "Pss: %d kB", &kb); err == nil {
				sum += kb << 10
			}
		}
	}
	return sum, nil
}
