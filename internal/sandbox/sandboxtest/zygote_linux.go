package sandboxtest

import (
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

// testZygote: what comes from one zygote shares its libraries, and nothing of each other's.
func (s *suite) testZygote(t *testing.T) {
	b := s.start(t, sandbox.Spec{})

	t.Run("memory of another run", func(t *testing.T) {
		secret := Python("mine = 'c0de-'; mine += 'secret'\nopen('/tmp/file', 'w').write(os.environ['MARK'] * 3)")
		secret.Env = map[string]string{"MARK": "env-s3cr3t-of-the-run-before"}
		secret.Code = append(secret.Code, "\n# comment-s3cr3t-of-the-run-before"...)
		if res := b.Run(t, secret); res.Exit.Code != 0 || !res.Exit.Forked {
			t.Fatalf("%+v %s", res.Exit, res.Stderr)
		}
		// The probe knows the marks backwards, so as not to find its own.
		b.Probe(t, `
marks = [m.encode() for m in ("erofeb-nur-eht-fo-t3rc3s-vne", "erofeb-nur-eht-fo-t3rc3s-tnemmoc")]
mem = os.open("/proc/self/mem", os.O_RDONLY)
seen = 0
for line in open("/proc/self/maps").read().splitlines():
    f = line.split()
    if "r" not in f[1] or f[-1] in ("[vvar]", "[vsyscall]", "[vvar_vclock]"): continue
    start, end = (int(x, 16) for x in f[0].split("-"))
    while start < end:
        try: part = os.pread(mem, min(end - start, 1 << 22), start)
        except OSError: break
        seen += len(part)
        back = part[::-1]
        for m in marks:
            if back.find(m) >= 0: breach("finds", m)
        start += 1 << 22
if seen < 1 << 20: breach("saw only", seen)
`)
	})
	t.Run("chance", func(t *testing.T) {
		seen := map[string]bool{}
		for range 4 {
			res := b.Run(t, Python("import random, uuid, tempfile\nprint(random.random(), uuid.uuid4(), os.urandom(4).hex(), tempfile.mktemp())"))
			for _, word := range strings.Fields(string(res.Stdout)) {
				if seen[word] {
					t.Errorf("%s came twice", word)
				}
				seen[word] = true
			}
		}
		if len(seen) != 16 {
			t.Errorf("%d different words", len(seen))
		}
	})
	t.Run("environment that is read at the start", func(t *testing.T) {
		r := Python("print(sys.flags.optimize)")
		r.Argv = []string{python, "{file}"}
		r.Env = map[string]string{"PYTHONOPTIMIZE": "1"}
		if res := b.Run(t, r); string(res.Stdout) != "1\n" || res.Exit.Forked {
			t.Errorf("%+v %s%s", res.Exit, res.Stdout, res.Stderr)
		}
	})
	t.Run("modules of the workspace", func(t *testing.T) {
		// They are the run's to import, never the zygote's.
		b.Probe(t, "for n in ('json', 'socket', 'sandbox_runner', 'numpy'): open(f'/data/{n}.py', 'w').write('raise SystemExit(66)')")
		b.awaitZygote(t)
		box := Start(t, s.Harness, sandbox.Spec{Workspace: b.Workspace})
		res := box.Run(t, Python("import numpy"))
		if !res.Exit.Forked {
			t.Errorf("%+v %s", res.Exit, res.Stderr)
		}
	})
}
