package prestart

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/wire"
)

// TestSuits: a prestarted program serves a run only if the run would have started it in the same
// way.
func TestSuits(t *testing.T) {
	run := func(change func(*runinit.Spec)) *runinit.Spec {
		spec := runinit.Spec{Argv: []string{"/bin/program", "{file}"}, File: "main.js", Dir: "/tmp", Env: map[string]string{"PATH": "/bin", "NODE_OWN": "1"}}
		change(&spec)
		return &spec
	}
	boot := func(argv ...string) *bootedProgram {
		return newBootedProgram(&runinit.Spec{Argv: argv, File: "main.js", Dir: "/tmp",
			Env: map[string]string{"PATH": "/bin", "NODE_OWN": "1"}}, []string{"NODE_", "TZ"})
	}
	b, relative := boot("/bin/program", "{file}"), boot("program", "{file}")
	for name, c := range map[string]struct {
		b    *bootedProgram
		spec *runinit.Spec
		want bool
	}{
		"the same":                     {b, run(func(*runinit.Spec) {}), true},
		"another variable":             {b, run(func(s *runinit.Spec) { s.Env["MINE"] = "1" }), true},
		"another name":                 {b, run(func(s *runinit.Spec) { s.File = "main.ts" }), true},
		"an early variable":            {b, run(func(s *runinit.Spec) { s.Env["NODE_OPTIONS"] = "--inspect" }), false},
		"an empty early variable":      {b, run(func(s *runinit.Spec) { s.Env["TZ"] = "" }), false},
		"another value":                {b, run(func(s *runinit.Spec) { s.Env["NODE_OWN"] = "2" }), false},
		"without it":                   {b, run(func(s *runinit.Spec) { delete(s.Env, "NODE_OWN") }), false},
		"another path":                 {b, run(func(s *runinit.Spec) { s.Env["PATH"] = "/data" }), true},
		"another path to find it on":   {relative, run(func(s *runinit.Spec) { s.Argv, s.Env["PATH"] = []string{"program", "{file}"}, "/data" }), false},
		"the same path to find it on":  {relative, run(func(s *runinit.Spec) { s.Argv = []string{"program", "{file}"} }), true},
		"another program":              {b, run(func(s *runinit.Spec) { s.Argv = []string{"/bin/sh", "{file}"} }), false},
		"no program":                   {b, run(func(s *runinit.Spec) { s.Argv = nil }), false},
		"an interpreter that lives on": {b, run(func(s *runinit.Spec) { s.Channel = true }), false},
	} {
		if got := c.b.suits(c.spec); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if bootFor(&wire.Run{Argv: []string{"/bin/program"}}) != nil {
		t.Error("a program that cannot wait for its code can be booted")
	}
}

// TestSlotLives: a booted program waits for a minute, and the bare run-init after it for five.
func TestSlotLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s slot
		var all []*isolated
		start := func() (waiting, error) {
			p := &isolated{Run: &Run{}, bareLife: bareLife}
			var err error
			var theirs *os.File
			if theirs, p.spec, err = os.Pipe(); err != nil {
				return nil, err
			}
			defer theirs.Close()
			if p.proc, err = os.StartProcess("/bin/sleep", []string{"sleep", "1000"}, &os.ProcAttr{Files: []*os.File{nil, nil, nil, theirs}}); err == nil {
				p.reap = p.proc.Wait
				all = append(all, p)
			}
			return p, err
		}
		fill := func(boot func(waiting) bool) {
			s.fill(start, boot)
			synctest.Wait()
		}
		want := func(when string, started int, booted bool) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case len(all) != max(started, -started):
				t.Fatalf("%s: %d have been started", when, len(all))
			case started < 0 && s.process != nil:
				t.Fatalf("%s: one waits", when)
			case started > 0 && (s.process != all[started-1] || s.process.isBooted() != booted):
				t.Fatalf("%s: %+v waits", when, s.process)
			}
		}
		b := bootFor(&wire.Run{Argv: []string{"x"}, Prestart: &wire.Prestart{}})

		done := s.beginRun(false)
		fill(b)
		want("beside a run", 1, false)
		done()
		fill(b)
		want("after it", 1, true)
		time.Sleep(bootedLife - time.Second)
		want("before its time", 1, true)
		time.Sleep(2 * time.Second)
		want("after its time", 2, false)
		time.Sleep(bareLife)
		want("after the time of what took its place", -2, false)

		fill(b)
		want("a later one", 3, true)
		s.beginRun(true)()
		want("when a cell has begun", -3, false)
		fill(nil)
		time.Sleep(2 * bootedLife)
		want("one without a program, after a minute", 4, false)
		s.drop(all[3])
		want("dropped", -4, false)
	})
}
