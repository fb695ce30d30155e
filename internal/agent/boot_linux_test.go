package agent

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"mcp-code-sandbox/internal/wire"
)

// TestSuits: a program that was started earlier serves a run only if the run could not have made it start differently.
func TestSuits(t *testing.T) {
	run := func(change func(*initSpec)) *initSpec {
		spec := initSpec{Argv: []string{"/bin/program", "{file}"}, File: "main.js", Dir: "/tmp", Env: map[string]string{"PATH": "/bin", "NODE_OWN": "1"}}
		change(&spec)
		return &spec
	}
	b := (&agent{}).bootOf(&wire.Run{Argv: []string{"/bin/program", "{file}"}, File: "main.js",
		Prestart: &wire.Prestart{Env: map[string]string{"PATH": "/bin", "NODE_OWN": "1"}, Reads: []string{"NODE_", "TZ"}}})
	relative := *b
	relative.spec.Argv = []string{"program", "{file}"}
	for name, c := range map[string]struct {
		b    *boot
		spec *initSpec
		want bool
	}{
		"the same":                     {b, run(func(*initSpec) {}), true},
		"another variable":             {b, run(func(s *initSpec) { s.Env["MINE"] = "1" }), true},
		"another name":                 {b, run(func(s *initSpec) { s.File = "main.ts" }), true},
		"an early variable":            {b, run(func(s *initSpec) { s.Env["NODE_OPTIONS"] = "--inspect" }), false},
		"an empty early variable":      {b, run(func(s *initSpec) { s.Env["TZ"] = "" }), false},
		"another value":                {b, run(func(s *initSpec) { s.Env["NODE_OWN"] = "2" }), false},
		"without it":                   {b, run(func(s *initSpec) { delete(s.Env, "NODE_OWN") }), false},
		"another path":                 {b, run(func(s *initSpec) { s.Env["PATH"] = "/data" }), true},
		"another path to find it on":   {&relative, run(func(s *initSpec) { s.Argv, s.Env["PATH"] = []string{"program", "{file}"}, "/data" }), false},
		"the same path to find it on":  {&relative, run(func(s *initSpec) { s.Argv = []string{"program", "{file}"} }), true},
		"another program":              {b, run(func(s *initSpec) { s.Argv = []string{"/bin/sh", "{file}"} }), false},
		"no program":                   {b, run(func(s *initSpec) { s.Argv = nil }), false},
		"an interpreter that lives on": {b, run(func(s *initSpec) { s.Channel = true }), false},
	} {
		if got := c.b.suits(c.spec); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if (&agent{}).bootOf(&wire.Run{Argv: []string{"/bin/program"}}) != nil {
		t.Error("a run that does not say so can be booted")
	}
}

// TestSpareLives: a program waits for a minute, and what is left when it has gone, for five.
func TestSpareLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s spare
		var all []*initProcess
		start := func() (*initProcess, error) {
			p := &initProcess{}
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
		prepare := func(b *boot) {
			s.prepare(b, start)
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
			case started < 0 && s.init != nil:
				t.Fatalf("%s: one waits", when)
			case started > 0 && (s.init != all[started-1] || (s.init.booted != nil) != booted):
				t.Fatalf("%s: %+v waits", when, s.init)
			}
		}
		b := (&agent{}).bootOf(&wire.Run{Argv: []string{"x"}, Prestart: &wire.Prestart{}})

		done := s.begin(false)
		prepare(b)
		want("beside a run", 1, false)
		done()
		prepare(b)
		want("after it", 1, true)
		time.Sleep(bootedLife - time.Second)
		want("before its time", 1, true)
		time.Sleep(2 * time.Second)
		want("after its time", 2, false)
		time.Sleep(spareLife)
		want("after the time of what took its place", -2, false)

		prepare(b)
		want("a later one", 3, true)
		s.begin(true)()
		want("when a cell has come", -3, false)
		prepare(nil)
		time.Sleep(2 * bootedLife)
		want("one without a program, after a minute", 4, false)
		s.letGo(all[3])
		want("let go", -4, false)
	})
}
