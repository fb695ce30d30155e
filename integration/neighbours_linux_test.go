//go:build linux

package integration

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// endless computes until it is killed.
const endless = "while True: pass"

// TestHostileNeighbours lets other sessions compute without end, exhaust memory and fork. No
// innocent run fails, and each takes a few times as long; with equal weights it would take seven to
// twelve times.
func TestHostileNeighbours(t *testing.T) {
	if onDocker() {
		skip(t, "only the jail weighs sandboxes")
	}
	s := serve(t, "SANDBOX_MAX_SESSIONS=40", "SANDBOX_LOG_LEVEL=WARN")
	const clients, rounds, loops = 2, 20, 24
	innocent := func() time.Duration {
		var mu sync.Mutex
		var took []time.Duration
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				for i := range rounds {
					began := time.Now()
					if res := s.run(t, fmt.Sprint("innocent-", c), "python", "print(sum(range(2000000)))"); !res.Success || res.Output != "1999999000000\n" {
						t.Errorf("innocent run %d: %+v", i, res)
					}
					mu.Lock()
					took = append(took, time.Since(began))
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		slices.Sort(took)
		return took[len(took)/2]
	}
	limited := func(args map[string]any) { args["timeout_seconds"] = 30 }
	innocent() // opens the sessions
	calm := innocent()

	var attackers sync.WaitGroup
	stop := make(chan struct{})
	for i := range loops {
		id := fmt.Sprint("hostile-", i)
		begun := s.state(t, "run_code", map[string]any{"conversationId": id, "language": "python", "code": endless, "background": true, "timeout_seconds": 60})
		defer s.call(t, "cancel_run", map[string]any{"run_id": begun.RunID})
	}
	for id, code := range map[string]string{
		"bomb-1": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
		"bomb-2": "held = []\nwhile True: held.append(b'x' * (1 << 20))",
	} {
		attackers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					s.run(t, id, "python", code, limited)
				}
			}
		})
	}
	beside := innocent()
	close(stop)
	attackers.Wait()
	t.Logf("calm %v, beside hostile runs %v: %.1f times", calm, beside, float64(beside)/float64(calm))
	if beside > 6*calm {
		t.Errorf("innocent runs take %v while hostile ones run, %v without", beside, calm)
	}
}

// TestForkBombsEndEarly checks that code whose every process forks is ended before its limit, and
// that code that merely has many processes keeps running.
func TestForkBombsEndEarly(t *testing.T) {
	if onDocker() {
		skip(t, "only the jail sees which processes fork")
	}
	s := serve(t)
	if s.ids = instancesOn(t, s.Root); !s.hasCgroups(t) {
		skip(t, "no control groups")
	}
	const bomb = `
import os
while True:
    try: os.fork()
    except OSError: open("/data/refused", "w").close()
`
	early := false
	for attempt := 0; attempt < 4 && !early; attempt++ { // a server that gets no processor looks too late
		id := fmt.Sprint("bomb-", attempt)
		if res := s.run(t, id, "python", bomb); res.Cause != "pids_limit" {
			t.Fatalf("the bomb: %+v", res)
		}
		early = s.run(t, id, "python", `import os; print(os.path.exists("/data/refused"))`).Output == "False\n"
	}
	if !early {
		t.Error("the bombs have reached their limit")
	}
	for name, code := range map[string]string{
		"workers": `
import os
pids = []
for _ in range(40):
    if (pid := os.fork()) == 0: os._exit(sum(range(1000000)) % 7)
    pids.append(pid)
print(12 * sum(os.waitpid(p, 0)[0] == p for p in pids))
`,
		"a tree": `
import os
def divide(depth):
    if depth == 0:
        sum(range(1000000))
        return 1
    pids = []
    for _ in range(2):
        if (pid := os.fork()) == 0: os._exit(divide(depth - 1))
        pids.append(pid)
    return sum(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids)
print(15 * divide(5))
`,
		"commands": `
import subprocess
print(len(subprocess.run("seq 480 | xargs -P 48 -I{} sh -c 'expr {} + 1 >/dev/null; /bin/echo {}; true'", shell=True, capture_output=True, text=True).stdout.split()))
`,
	} {
		if res := s.run(t, "honest", "python", code); res.Output != "480\n" {
			t.Errorf("%s: %+v", name, res)
		}
	}
}
