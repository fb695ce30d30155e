//go:build linux

package integration

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/backend/docker/dockertest"
)

// sameAnswers are the tests whose transcripts must be the same on every backend: contracts 1, 2 and
// 4, live interpreters, and hostile programs.
var sameAnswers = []string{
	"TestStages", "TestMarketingExample", "TestContract4Limits", "TestContract4Concurrency", "TestContract4Life",
	"TestContractWithCurl", "TestFilesWithCurl", "TestLanguages", "TestNotebook", "TestNodeNotebook", "TestFigures", "TestInterruptAndLoss",
	"TestHostilePrograms", "TestNothingSurvives", "TestDiskQuota", "TestPlanted", "TestEveryToolWithAClient",
	"TestHostIsClosed", "TestSessionsApart", "TestOddCode", "TestHandover", "TestResources", "TestSymlinkRace", "TestHiddenFilesFillTheDisk",
	"TestManySessions", "TestTwoInstances", "TestTerminated", "TestStdioEnds",
	"TestExecutionProxy", "TestForked", "TestTenNotebooks", "TestCallerWithMostMakesRoom", "TestOneUserHoldsEverything", "TestQueuedRun",
	"TestFullWorkspace", "TestUnlinkedFilesCount", "TestWritesBetweenCells", "TestLargestWriterIsStopped", "TestCallersStorage",
	"TestValuesAsTheInterpreterPrintsThem", "TestTablesForThePage", "TestCPython",
	"TestMagics", "TestRichValues", "TestFonts", "TestUnsavedFigure", "TestPackages", "TestHosts", "TestHostClients",
}

// TestSameAnswersOnDocker runs them again on the Docker backend.
func TestSameAnswersOnDocker(t *testing.T) {
	if onDocker() {
		t.Skip("all of it is run on docker")
	}
	needEngine(t)
	passAgain(t, sameAnswers)
}

// passAgain runs tests in another process, on the Docker backend.
func passAgain(t *testing.T, names []string, env ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=15m", "-test.run=^("+strings.Join(names, "|")+")$")
	cmd.Env = append(append(os.Environ(), envBackend+"=docker", envBuilt+"="+binary, "SANDBOX_TEST_RUNNERS="+runners), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, name := range names {
		if !strings.Contains(string(out), "\n--- PASS: "+name+" ") {
			t.Errorf("%s has not passed on docker", name)
		}
	}
}

// needEngine returns a client of the engine, or ends the test.
func needEngine(t *testing.T) *client.Client {
	t.Helper()
	host := os.Getenv(envEngine)
	if host == "" {
		skip(t, "%s is not set: there is no engine to test with (see scripts/engine)", envEngine)
	}
	c, err := client.New(client.WithHost(host))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// serveDocker is serve with the Docker backend.
func serveDocker(t *testing.T, settings ...string) *server {
	t.Helper()
	root := t.TempDir()
	for _, s := range settings {
		if r, ok := strings.CutPrefix(s, "SANDBOX_ROOT="); ok {
			root = r
		}
	}
	return serve(t, append([]string{"SANDBOX_ROOT=" + root, "SANDBOX_BACKEND=docker", "DOCKER_HOST=" + os.Getenv(envEngine)}, settings...)...)
}

// containersOf lists the ids of the containers of a session, by contract 4's labels.
func containersOf(t *testing.T, c *client.Client, session string) (ids []string) {
	t.Helper()
	list, err := c.ContainerList(t.Context(), client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", "app=llm-sandbox", "session_id="+session),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range list.Items {
		ids = append(ids, item.ID)
	}
	return ids
}

// TestContainerOfASession checks contract 4's table of a container's life.
func TestContainerOfASession(t *testing.T) {
	c := needEngine(t)
	s := serveDocker(t, "SESSION_IDLE_TIMEOUT=3")
	id := newMarker()
	if got := containersOf(t, c, id); len(got) != 0 {
		t.Fatalf("before the first call: %v", got)
	}
	if r := s.python(t, id, "print(2+2)"); r.ExitCode != 0 || r.Stdout != "4\n" {
		t.Fatalf("run_python: %+v", r)
	}
	first := containersOf(t, c, id)
	if len(first) != 1 {
		t.Fatalf("after the first call: %v", first)
	}
	if r := s.python(t, id, "print(open('/proc/1/comm').read())"); r.ExitCode != 0 {
		t.Errorf("run_python: %+v", r)
	}
	if again := containersOf(t, c, id); !slices.Equal(first, again) {
		t.Errorf("the container is not reused: %v, then %v", first, again)
	}
	eventually(t, 30*time.Second, "the idle container to be removed", func() bool { return len(containersOf(t, c, id)) == 0 })
	if r := s.python(t, id, "print('back')"); r.Stdout != "back\n" || len(containersOf(t, c, id)) != 1 {
		t.Errorf("after it idled out: %+v", r)
	}
	if got := s.answer(t, "close_session", map[string]any{"session_id": id}); !strings.Contains(got, "closed") {
		t.Errorf("close_session: %s", got)
	}
	if left := containersOf(t, c, id); len(left) != 0 {
		t.Errorf("after close_session: %v", left)
	}
	s.python(t, id, "1")
	s.stop(t)
	if left := containersOf(t, c, id); len(left) != 0 {
		t.Errorf("after the server's end: %v", left)
	}
	if !strings.Contains(s.log.String(), "isolation chosen backend=docker") {
		t.Error("the log does not say which backend was chosen")
	}
}

// TestKilledContainer kills a container during a run: the run is lost, the next one works, the
// files are there.
func TestKilledContainer(t *testing.T) {
	c := needEngine(t)
	s := serveDocker(t)
	id, marker := newMarker(), newMarker()
	s.run(t, id, "shell", "echo kept > kept.txt")
	answer := s.begin(t, id, marker, sleeper(marker))
	ids := containersOf(t, c, id)
	if len(ids) != 1 {
		t.Fatalf("containers: %v", ids)
	}
	if _, err := c.ContainerKill(t.Context(), ids[0], client.ContainerKillOptions{Signal: "KILL"}); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; !strings.Contains(got, "sandbox_lost") {
		t.Errorf("the run's answer: %s", got)
	}
	if r := s.run(t, id, "shell", "cat kept.txt"); r.Output != "kept\n" {
		t.Errorf("the next run: %+v", r)
	}
}

// TestKilledDockerServer checks that the containers of a killed server end by themselves, and that
// the next server removes them but not those of a live one.
func TestKilledDockerServer(t *testing.T) {
	c := needEngine(t)
	s := serveDocker(t)
	beside := serveDocker(t, "SANDBOX_ROOT="+s.Root)
	dead, living, marker := newMarker(), newMarker(), newMarker()
	kept := s.run(t, dead, "shell", "echo kept > kept.txt")
	beside.run(t, living, "shell", "true")
	answer := s.begin(t, dead, marker, sleeper(marker), withNetwork)
	orphans := containersOf(t, c, dead)
	if len(orphans) != 2 { // with network and without
		t.Fatalf("containers: %v", orphans)
	}
	s.kill(t)
	<-answer
	eventually(t, 20*time.Second, "the killed server's processes to end", func() bool { return len(marked(marker)) == 0 })
	again := serveDocker(t, "SANDBOX_ROOT="+s.Root)
	eventually(t, 20*time.Second, "the dead instance's containers to be removed", func() bool { return len(containersOf(t, c, dead)) == 0 })
	if left := containersOf(t, c, living); len(left) != 1 {
		t.Errorf("the living instance's containers: %v", left)
	}
	if r := beside.run(t, living, "shell", "echo alive"); r.Output != "alive\n" {
		t.Errorf("the living instance: %+v", r)
	}
	if r := again.run(t, dead, "shell", "cat kept.txt"); r.Output != "kept\n" || len(kept.Files) != 1 {
		t.Errorf("the session's next run: %+v", r)
	}
}

// TestStdinImage checks that a running server notices a stranger's image of contract 1 and serves
// it by run_code.
func TestStdinImage(t *testing.T) {
	c := needEngine(t)
	s := serveDocker(t)
	language := "ten" + strings.TrimPrefix(newMarker(), "marker-")
	if r := s.run(t, "x", language, "echo hello"); r.Success || !strings.Contains(r.Output, "python") {
		t.Errorf("before there is an image: %+v", r)
	}
	dockertest.Build(t, c, language+":test", `FROM runner-python
LABEL sandbox.runner=true
LABEL sandbox.language=`+language+`
LABEL sandbox.protocol=
WORKDIR /data
ENTRYPOINT ["/bin/sh", "-c", "cat > /tmp/main.sh && exec /bin/sh /tmp/main.sh"]
`)
	eventually(t, 20*time.Second, "the server to see the image", func() bool {
		return strings.Contains(s.answer(t, "list_runners", nil), `"`+language+`"`)
	})
	r := s.run(t, "x", language, "echo out; echo err >&2; echo $ASKED > made.txt; exit 3", func(args map[string]any) {
		args["environment"] = map[string]any{"ASKED": "value"}
	})
	if r.Success || r.Output != "out\n\nerr\n" || len(r.Files) != 1 || r.Files[0].Name != "made.txt" {
		t.Errorf("run_code: %+v", r)
	}
	if status, body := s.fetch(t, http.MethodGet, r.Files[0].URL, nil); status != http.StatusOK || string(body) != "value\n" {
		t.Errorf("the file: %d %q", status, body)
	}
	if left := containersOf(t, c, "x"); len(left) != 0 {
		eventually(t, 10*time.Second, "the run's container to be removed", func() bool { return len(containersOf(t, c, "x")) == 0 })
	}
	if _, err := c.ImageRemove(t.Context(), language+":test", client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the server to see that the image is gone", func() bool {
		return !strings.Contains(s.answer(t, "list_runners", nil), `"`+language+`"`)
	})
}

// TestImagesMisspelt checks that an operator who names images that the engine does not have gets no
// other isolation, and one message that says what to correct.
func TestImagesMisspelt(t *testing.T) {
	needEngine(t)
	settings := []string{"SANDBOX_ROOT=" + t.TempDir(), "SANDBOX_BACKEND=auto", "DOCKER_HOST=" + os.Getenv(envEngine), "SANDBOX_IMAGES=no-such-runner", "SANDBOX_HTTP_PORT=0"}
	for _, args := range [][]string{{"serve"}, {"doctor"}} {
		out, code := commandWith(t, settings, args...)
		if code == 0 || !strings.Contains(out, "SANDBOX_IMAGES is no-such-runner, but the jail would be used") || !strings.Contains(out, "correct SANDBOX_IMAGES") {
			t.Errorf("%s: %d %s", args[0], code, out)
		}
	}
	s := serveDocker(t, "SANDBOX_IMAGES=no-such-runner")
	eventually(t, 30*time.Second, "the server to say what is missing", func() bool { return strings.Contains(s.log.String(), "a runner cannot be used") })
	text := s.log.String()
	if !strings.Contains(text, "none yet: make images, or correct SANDBOX_IMAGES") || strings.Contains(text, "code can run here, but") || strings.Contains(text, "images: images:") ||
		strings.Count(text, "SANDBOX_IMAGES has no-such-runner") != 1 {
		t.Errorf("the start says:\n%s", text)
	}
}

// TestNoEngine checks that a server that needs an engine does not start without one. If the engine
// stops later, the server reports it, starts nothing else instead, and recovers with the engine.
func TestNoEngine(t *testing.T) {
	c := needEngine(t)
	root, socket := t.TempDir(), filepath.Join(t.TempDir(), "engine")
	settings := []string{"SANDBOX_ROOT=" + root, "SANDBOX_BACKEND=docker", "DOCKER_HOST=unix://" + socket, "SANDBOX_HTTP_PORT=0"}
	for _, args := range [][]string{{"serve"}, {"stdio"}, {"run", "--language", "python", os.DevNull}} {
		out, code := commandWith(t, settings, args...)
		if code == 0 || !strings.Contains(out, "SANDBOX_BACKEND is docker, but no engine can be used") || !strings.Contains(out, "DOCKER_HOST") || !strings.Contains(out, "SANDBOX_BACKEND=jail") {
			t.Errorf("%s without an engine: %d %s", args[0], code, out)
		}
	}
	plug := func() {
		t.Helper()
		if err := os.Symlink(strings.TrimPrefix(os.Getenv(envEngine), "unix://"), socket); err != nil {
			t.Fatal(err)
		}
	}
	plug()
	s := serve(t, settings...)
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the server to miss the engine", func() bool {
		status, _ := s.fetch(t, http.MethodGet, s.URL+"/readyz", nil)
		return status == http.StatusServiceUnavailable
	})
	if got := s.answer(t, "run_python", map[string]any{"code": "print(1)"}); !strings.Contains(got, "start the engine") {
		t.Errorf("run_python without an engine: %s", got)
	}
	plug()
	eventually(t, 30*time.Second, "the server to find the engine", func() bool { return strings.Contains(s.answer(t, "list_runners", nil), "runner-python") })
	if r := s.python(t, "late", "print(1)"); r.Stdout != "1\n" {
		t.Errorf("with the engine there: %+v", r)
	}
	if ids := containersOf(t, c, "late"); len(ids) == 1 {
		res, err := c.ContainerInspect(t.Context(), ids[0], client.ContainerInspectOptions{})
		if err != nil || res.Container.HostConfig.NetworkMode != container.NetworkMode("none") {
			t.Errorf("the container's network: %v, %v", res.Container.HostConfig.NetworkMode, err)
		}
	}
}
