package integration

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// cpythonModules are the modules of CPython's own tests that depend most on their surroundings:
// processes, signals, threads, files, terminals, sockets, limits.
var cpythonModules = []string{
	"test_socket", "test_threading", "test_subprocess", "test_signal", "test_io", "test_asyncio.test_events", "test_asyncio.test_subprocess",
	"test_multiprocessing_fork", "test_selectors", "test_faulthandler", "test_fork1", "test_wait4", "test_threadsignals",
	"test_asyncio.test_base_events", "test_asyncio.test_unix_events", "test_asyncio.test_streams", "test_asyncio.test_selector_events",
	"test_asyncio.test_sock_lowlevel", "test_asyncio.test_runners", "test_asyncio.test_threads",
	"test_os", "test_posix", "test_pty", "test_tempfile", "test_shutil", "test_pathlib", "test_select", "test_mmap", "test_fcntl",
	"test_resource", "test_ctypes", "test_atexit", "test_sys", "test_getpass", "test_random", "test_time", "test_uuid",
}

var (
	//go:embed cpython/check.py
	cpythonCheck string
	//go:embed cpython/exceptions.txt
	cpythonExceptions string
)

// cpythonException is a line of exceptions.txt.
type cpythonException struct{ kind, where, test, reason string }

func (e cpythonException) on(backend string) bool { return e.where == "both" || e.where == backend }

func readExceptions(t *testing.T) (list []cpythonException) {
	t.Helper()
	for sc := bufio.NewScanner(strings.NewReader(cpythonExceptions)); sc.Scan(); {
		line := sc.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 4 || !slices.Contains([]string{"fails", "omit"}, f[0]) || !slices.Contains([]string{"jail", "docker", "both"}, f[1]) {
			t.Fatalf("exceptions.txt: %q: want fails|omit, jail|docker|both, a test, a reason", line)
		}
		list = append(list, cpythonException{f[0], f[1], f[2], strings.Join(f[3:], " ")})
	}
	return list
}

// cpythonReport is what check.py prints.
type cpythonReport struct {
	Forked       bool
	Run, Skipped int
	Failed       map[string]string
	Slow         [][2]any
}

// TestCPython runs CPython's own tests in interpreters that the zygote forked.
// cpython/exceptions.txt lists exactly the tests that fail there, with the reason.
func TestCPython(t *testing.T) {
	backend := "jail"
	if onDocker() {
		backend = "docker"
	}
	omit, known := []string{}, map[string]bool{}
	for _, e := range readExceptions(t) {
		switch {
		case !e.on(backend):
		case e.kind == "omit":
			omit = append(omit, e.test)
		default:
			known[e.test] = true
		}
	}
	s := serve(t)
	if r := s.python(t, "probe", "import importlib.util; print(importlib.util.find_spec('test.test_os') is not None)"); r.Stdout != "True\n" {
		skip(t, "the interpreter of the python runner has no tests (Debian: libpython3.x-testsuite): %+v", r)
	}
	// Reuse few sessions: where each has its own zygote, starting it takes longer than most
	// modules.
	sessions := make(chan string, 2)
	for n := range cap(sessions) {
		sessions <- fmt.Sprintf("cpython-%d", n)
	}
	var mu sync.Mutex
	failed, done := map[string]bool{}, 0
	t.Run("modules", func(t *testing.T) {
		for _, module := range cpythonModules {
			t.Run(module, func(t *testing.T) {
				t.Parallel()
				session := <-sessions
				defer func() { sessions <- session }()
				s.awaitFork(t, session)
				report := s.checkCPython(t, session, module, omit, nil)
				t.Logf("%d tests, %d skipped, %d failed; the slowest: %v", report.Run, report.Skipped, len(report.Failed), report.Slow)
				if report.Run == report.Skipped {
					t.Error("no test was run")
				}
				// Some tests measure time on a busy machine, so a failed test gets a second chance,
				// as in CPython's own CI.
				again := slices.DeleteFunc(slices.Sorted(maps.Keys(report.Failed)), func(name string) bool { return known[name] })
				if len(again) > 0 {
					second := s.checkCPython(t, session, module, omit, again)
					for _, name := range again {
						if text, ok := second.Failed[name]; ok {
							t.Errorf("%s fails on %s:\n%s", name, backend, text)
						} else {
							t.Logf("%s passed at the second attempt; the first:\n%s", name, report.Failed[name])
						}
					}
				}
				mu.Lock()
				defer mu.Unlock()
				done++
				for name := range report.Failed {
					failed[name] = true
				}
			})
		}
	})
	for name := range known {
		if done == len(cpythonModules) && !failed[name] {
			t.Errorf("%s does not fail on %s: remove it from exceptions.txt", name, backend)
		}
	}
}

// awaitFork waits until the session's runs come from the zygote that has imported pandas.
func (s *server) awaitFork(t *testing.T, session string) {
	t.Helper()
	eventually(t, time.Minute, "the zygote", func() bool {
		return s.python(t, session, "import sys; print('pandas' in sys.modules)\n'import'").Stdout == "True\n"
	})
}

// checkCPython runs a module of CPython's tests, or some tests of it.
func (s *server) checkCPython(t *testing.T, session, module string, omit, only []string) (report cpythonReport) {
	t.Helper()
	var code strings.Builder
	for name, value := range map[string]any{"MODULE": module, "LEFT_OUT": omit, "ONLY": append([]string{}, only...)} {
		literal, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&code, "%s = %s\n", name, literal)
	}
	code.WriteString(cpythonCheck)
	var r pythonResult
	s.ask(t, "run_python", map[string]any{"session_id": session, "timeout_seconds": 240, "code": code.String()}, &r)
	_, text, _ := strings.Cut(r.Stdout, "\nREPORT ")
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		t.Fatalf("%s ended without a report: %v in %+v", module, err, r)
	}
	if !report.Forked {
		t.Errorf("%s was not run in a fork of the zygote", module)
	}
	return report
}
