package sandboxtest

import (
	"bytes"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testOutput: a program's output arrives unchanged and while it runs, and delays no other run.
func (s *suite) testOutput(t *testing.T) {
	b := s.start(t, sandbox.Spec{})

	t.Run("bytes", func(t *testing.T) {
		res := b.Run(t, Python(`
every = bytes(range(256)) * 1000
os.write(1, b"\xff\xfe\x00\xc3"); os.write(2, b"\xed\xa0\x80")
sys.stdout.buffer.write(every); sys.stderr.buffer.write(every[::-1])
`))
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		every = bytes.Repeat(every, 1000)
		if !bytes.Equal(res.Stdout, append([]byte("\xff\xfe\x00\xc3"), every...)) {
			t.Errorf("stdout: %d bytes came out changed", len(res.Stdout))
		}
		if len(res.Stderr) != 3+len(every) || res.Stderr[3] != 255 {
			t.Errorf("stderr: %d bytes came out changed", len(res.Stderr))
		}
	})
	t.Run("at once", func(t *testing.T) {
		r := b.Begin(t, Python(`
print("first", flush=True)
while not os.path.exists("/data/go"): time.sleep(0.01)
print("second")
`))
		r.Until(t, "first\n") // while the program waits
		if res := b.Run(t, Shell("touch /data/go")); res.Exit.Code != 0 {
			t.Fatal(res)
		}
		if res := r.Wait(t); string(res.Stdout) != "first\nsecond\n" {
			t.Errorf("stdout %q", res.Stdout)
		}
	})
	t.Run("last words", func(t *testing.T) {
		// What is in the pipe when the program ends belongs to its output, even if a child holds
		// the pipe open.
		res := b.Run(t, Shell(`sleep 1000 & head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2; exit 3`))
		if len(res.Stdout) != 60000 || len(res.Stderr) != 60000 || res.Exit.Code != 3 {
			t.Errorf("%d and %d bytes, %+v", len(res.Stdout), len(res.Stderr), res.Exit)
		}
	})
	t.Run("closed early", func(t *testing.T) {
		r := b.Begin(t, Shell(`exec >&- 2>&-; touch /data/closed; while [ ! -e /data/end ]; do sleep 0.01; done; exit 5`))
		res := b.Run(t, Shell(`while [ ! -e /data/closed ]; do sleep 0.01; done; touch /data/end`))
		if res.Exit.Code != 0 {
			t.Fatal(res)
		}
		if res := r.Wait(t); res.Exit.Code != 5 || len(res.Stdout)+len(res.Stderr) != 0 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("flood", func(t *testing.T) {
		// A gigabyte that nobody reads blocks its own run and no other.
		flood := b.Begin(t, Shell(`head -c 1G /dev/zero`))
		b.Alive(t)
		start := time.Now()
		res := flood.Kill(t)
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("ended %v after the kill", took)
		}
		if res.Exit.Signal != int(syscall.SIGKILL) || len(res.Stdout) > 4<<20 {
			t.Errorf("%+v after %d bytes", res.Exit, len(res.Stdout))
		}
	})
	t.Run("interleaved", func(t *testing.T) {
		var runs [20]*Running
		for i := range runs {
			runs[i] = b.Begin(t, Shell(fmt.Sprintf(`i=0; while [ $i -lt 200 ]; do echo out-%d; echo err-%d >&2; i=$((i+1)); done; exit %d`, i, i, i)))
		}
		for i, run := range runs {
			r := run.Wait(t)
			if string(r.Stdout) != strings.Repeat(fmt.Sprintf("out-%d\n", i), 200) || string(r.Stderr) != strings.Repeat(fmt.Sprintf("err-%d\n", i), 200) || r.Exit.Code != i {
				t.Errorf("run %d: %+v, %d and %d bytes", i, r.Exit, len(r.Stdout), len(r.Stderr))
			}
		}
	})
}

// testExit: the exit reports how the program ended.
func (s *suite) testExit(t *testing.T) {
	b := s.start(t, sandbox.Spec{})
	for _, test := range []struct {
		name         string
		run          wire.Run
		code, signal int
		err          string
	}{
		{"success", Shell("true"), 0, 0, ""},
		{"failure", Shell("exit 255"), 255, 0, ""},
		{"segmentation fault", Shell("kill -SEGV $$"), 139, 11, ""},
		{"abort", Shell("kill -ABRT $$"), 134, 6, ""},
		{"terminated", Shell("kill -TERM $$"), 143, 15, ""},
		{"killed", Shell("kill -KILL $$"), 137, 9, ""},
		{"last real-time signal", Shell("kill -64 $$"), 192, 64, ""},
		{"a child's end is not the program's", Shell("sh -c 'exit 9'; (sh -c 'kill -9 $$') ; exit 0"), 0, 0, ""},
		{"no such program", wire.Run{Argv: []string{"no-such-program"}}, 127, 0, "not found"},
		{"no such path", wire.Run{Argv: []string{"/no/such/program"}}, 126, 0, "no such file"},
		{"not a program", wire.Run{Argv: []string{"/etc/passwd"}}, 126, 0, "permission denied"},
		{"a directory", wire.Run{Argv: []string{"/usr"}}, 126, 0, "permission denied"},
		{"nothing", wire.Run{}, 126, 0, "no program"},
		{"NUL in an argument", wire.Run{Argv: []string{"echo", "a\x00b"}}, 126, 0, "invalid argument"},
		{"NUL in the environment", wire.Run{Argv: []string{"true"}, Env: map[string]string{"A": "a\x00B=b"}}, 126, 0, "invalid argument"},
		{"code file outside", wire.Run{Argv: []string{"/bin/sh", "{file}"}, File: "../../data/x.sh", Code: []byte("case $0 in /tmp/x-*.sh | /.runs/*/x-*.sh) exit 4;; esac")}, 4, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			res := b.Run(t, test.run)
			if res.Exit.Code != test.code || res.Exit.Signal != test.signal || !strings.Contains(res.Exit.Error, test.err) || (test.err == "") != (res.Exit.Error == "") {
				t.Errorf("%+v, want code %d, signal %d, error %q\n%s", res.Exit, test.code, test.signal, test.err, res.Stderr)
			}
		})
	}
	t.Run("usage", func(t *testing.T) {
		res := b.Run(t, Python(`
x = bytearray(64 << 20)
end = time.process_time() + 0.2
while time.process_time() < end: pass
`))
		if res.Exit.MaxRSSB < 64<<20 || res.Exit.UserUS+res.Exit.SysUS < 150_000 {
			t.Errorf("64 MB and 0.2 s of work are reported as %+v", res.Exit)
		}
	})
	t.Run("interrupt", func(t *testing.T) {
		r := b.BeginUntil(t, "ready\n", Python(`
try:
    print("ready", flush=True)
    while True: time.sleep(0.1)  # one long one may begin when Python has looked for signals and not yet asked to be woken
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(6)
`))
		r.Send(t, wire.TypeInterrupt)
		if res := r.Wait(t); string(res.Stdout) != "ready\ninterrupted\n" || res.Exit.Code != 6 {
			t.Errorf("%q %+v", res.Stdout, res.Exit)
		}
	})
	t.Run("kill", func(t *testing.T) {
		r := b.BeginUntil(t, "ready\n", Python(`
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        break
print("ready", flush=True)
while True: time.sleep(1000)
`))
		r.Send(t, wire.TypeInterrupt)
		r.Send(t, wire.TypeKill)
		if res := r.WaitFor(t, time.Second); res.Exit.Code != 137 || res.Exit.Signal != 9 {
			t.Errorf("%+v", res.Exit)
		}
	})
	b.Alive(t)
}
