package sandboxtest

import (
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

// testZygote: runs from one zygote share its libraries and nothing else.
func (s *suite) testZygote(t *testing.T) {
	b := s.start(t, sandbox.Spec{})

	t.Run("memory of another run", func(t *testing.T) {
		secret := Python("mine = 'c0de-'; mine += 'secret'\nopen('/tmp/file', 'w').write(os.environ['MARK'] * 3)")
		secret.Env = map[string]string{"MARK": "env-s3cr3t-of-the-run-before"}
		secret.Code = append(secret.Code, "\n# comment-s3cr3t-of-the-run-before"...)
		if res := b.Run(t, secret); res.Exit.Code != 0 || !res.Exit.Forked {
			t.Fatalf("%+v %s", res.Exit, res.Stderr)
		}
		// The probe has the marks backwards, so that it does not find its own.
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
			res := b.Run(t, Python(`
import multiprocessing, random, tempfile, uuid
print(random.random(), uuid.uuid4(), os.urandom(4).hex(), tempfile.mktemp(), multiprocessing.current_process().authkey.hex())`))
			for _, word := range strings.Fields(string(res.Stdout)) {
				if seen[word] {
					t.Errorf("%s came twice", word)
				}
				seen[word] = true
			}
		}
		if len(seen) != 20 {
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
		// The run may import them, the zygote must not.
		b.Probe(t, "for n in ('json', 'socket', 'sandbox_runner', 'numpy'): open(f'/data/{n}.py', 'w').write('raise SystemExit(66)')")
		b.awaitZygote(t)
		box := Start(t, s.Harness, sandbox.Spec{Workspace: b.Workspace})
		res := box.Run(t, Python("import numpy"))
		if !res.Exit.Forked {
			t.Errorf("%+v %s", res.Exit, res.Stderr)
		}
	})
	t.Run("what is left of the zygote", func(t *testing.T) {
		b.Probe(t, s.facts()+`
import ctypes, signal
fds = {f: os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{f}")}
for f, to in fds.items():
    if int(f) > 2: breach("has descriptor", f, to)
env = open("/proc/self/environ", "rb").read() + repr(dict(os.environ)).encode()
if b"CANARY" in env: breach("has the server's environment")
st = dict(l.split(":", 1) for l in open("/proc/self/status"))
want = {"Threads": "1", "SigBlk": "0" * 16, "SigPnd": "0" * 16, "SigIgn": "0000000001001000", "SigCgt": "0000000000000002", "CapEff": "0" * 16,
        "CapPrm": "0" * 16, "CapBnd": "0" * 16, "CapInh": "0" * 16, "CapAmb": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2", "TracerPid": "0"}
for k, v in want.items():
    got = int(st[k], 16) & ~(3 << 31) if k.startswith("Sig") else st[k].strip()  # less the two signals that are the C library's
    if got != (int(v, 16) if k.startswith("Sig") else v): breach(k, st[k].strip())
if signal.set_wakeup_fd(-1) != -1: breach("has a wakeup descriptor")
libc = ctypes.CDLL(None, use_errno=True)
sig = ctypes.c_int(7)
libc.prctl(2, ctypes.byref(sig), 0, 0, 0)
if sig.value: breach("dies with its parent by signal", sig.value)
if libc.prctl(37, ctypes.byref(sig), 0, 0, 0) == 0 and sig.value: breach("is a subreaper")
# Whom it could reach: its parent is in no namespace of its own (where it has some), and it leads its group and session.
if os.getppid() != 0 and NAMESPACES: breach("parent", os.getppid())
if os.getpgrp() != os.getpid() or os.getsid(0) != os.getpid(): breach("is in another's process group")
for p in (0, 1, os.getppid()):
    if libc.ptrace(16, p, 0, 0) == 0: breach("traces", p)  # PTRACE_ATTACH
for p in os.listdir("/proc"):
    if p.isdigit() and int(p) not in (1, os.getpid()) and NAMESPACES: breach("sees process", p, open(f"/proc/{p}/cmdline").read())
module = sys.modules["__main__"]
for name in ("main", "serve", "become", "CHANNEL"):
    if hasattr(module, name): breach("has the zygote's", name)
`)
	})
	if !s.Has.Namespaces { // there it never grows
		return
	}
	t.Run("grows by what is used", func(t *testing.T) {
		// Only by the runner's own library, even if the workspace has a module of that name.
		box := s.start(t, sandbox.Spec{})
		box.Probe(t, `
os.makedirs("/data/xml/dom", exist_ok=True)
for f in ("/data/xml/__init__.py", "/data/xml/dom/__init__.py", "/data/xml/dom/minidom.py", "/data/sched.py"): open(f, "w").write("raise SystemExit(66)")
`)
		use := Python("if 'xml.dom.minidom' in sys.modules: print(sys.modules['xml.dom.minidom'].__file__, 'sched' in sys.modules)")
		for range 1000 {
			res := box.Run(t, use)
			if !res.Exit.Forked {
				t.Fatalf("%+v %s", res.Exit, res.Stderr)
			}
			got := string(res.Stdout)
			if got == "" {
				continue
			}
			if !strings.HasPrefix(got, "/usr/") || !strings.HasSuffix(got, " False\n") {
				t.Errorf("the zygote has imported %s", got)
			}
			return
		}
		t.Error("the zygote does not grow")
	})
}
