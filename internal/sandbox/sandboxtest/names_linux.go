package sandboxtest

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// outside plays the server: it greets who connects to a name with the dial's host, and echoes.
type outside struct {
	mu    sync.Mutex
	dials []string
	ended chan string // the host of each dial that has ended
}

func newOutside() *outside { return &outside{ended: make(chan string, 4096)} }

func (o *outside) accept(s *wire.Stream, f wire.Frame) {
	o.mu.Lock()
	o.dials = append(o.dials, f.Host)
	o.mu.Unlock()
	defer s.Close()
	if strings.HasSuffix(f.Host, ":0") {
		return
	}
	_, _ = io.WriteString(s, f.Host+"\n")
	_, _ = io.Copy(struct{ io.Writer }{s}, s)
	o.ended <- f.Host
}

// take returns the hosts of the dials since the last call, sorted.
func (o *outside) take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	dials := o.dials
	o.dials = nil
	slices.Sort(dials)
	return dials
}

func (o *outside) awaitEnd(t *testing.T, host string) {
	t.Helper()
	for {
		select {
		case got := <-o.ended:
			if got == host {
				return
			}
		case <-time.After(patience):
			t.Fatalf("no connection to %s has ended", host)
		}
	}
}

// names defines Python functions: hear connects by name and returns the greeting or the error,
// lookup returns the address or the error's text.
const names = `
def hear(host, port):
    try:
        with socket.create_connection((host, port), timeout=20) as c: return c.makefile("r").readline().strip()
    except OSError as e: return e
def lookup(host):
    try: return socket.getaddrinfo(host, 1, socket.AF_UNSPEC, socket.SOCK_STREAM)[0][4][0]
    except OSError as e: return str(e)
`

func withHosts(r wire.Run, hosts ...string) wire.Run {
	r.Hosts = hosts
	return r
}

// testNames: during a run, code reaches the names of its rules through the agent, and no others.
func (s *suite) testNames(t *testing.T) {
	start := func(t *testing.T) (*Sandbox, *outside) {
		o := newOutside()
		return StartWith(t, s.Harness, sandbox.Spec{Forward: true}, o.accept), o
	}
	probe := func(code string, hosts ...string) wire.Run {
		return withHosts(Python(names+code+"\nfinish()\n"), hosts...)
	}
	t.Run("allowed", func(t *testing.T) {
		b, o := start(t)
		b.ProbeRun(t, probe(`
for host, port in ("db.example.com", 5432), ("DB.Example.COM", 5432), ("db.example.com", 443), ("en.wiki.example", 443), ("a.b.wiki.example", 443):
    if (got := hear(host, port)) != f"{host.lower()}:{port}": breach(host, port, got)
if not (got := lookup("db.example.com")).startswith("127.66."): breach("db.example.com is", got)
for host, port in ("db.example.com", 5433), ("en.wiki.example", 80):
    if not isinstance(got := hear(host, port), ConnectionRefusedError): breach(host, port, got)
`, "db.example.com:5432", "db.example.com:443", "*.wiki.example:443"))
		if got := len(o.take()); got != 5 {
			t.Errorf("%d dials", got)
		}
	})
	t.Run("denied", func(t *testing.T) {
		b, o := start(t)
		const code = `
for host in "example.org", "sub.db.example.com", "wiki.example", "notwiki.example", "example.org", "under_score.example":
    if "Name or service not known" not in (got := lookup(host)): breach(host, "is", got)
`
		b.ProbeRun(t, probe(code, "db.example.com:443", "*.wiki.example:443"))
		want := []string{"example.org:0", "notwiki.example:0", "sub.db.example.com:0", "under_score.example:0", "wiki.example:0"}
		if got := o.take(); !slices.Equal(got, want) {
			t.Errorf("the server was told %q", got)
		}
		b.ProbeRun(t, probe(code)) // a run without rules is told about, too
		if got := o.take(); !slices.Equal(got, want) {
			t.Errorf("the server was told %q", got)
		}
		b.ProbeRun(t, probe(`
for i in range(300): lookup(f"secret-{i}.example.org")
`))
		if got := len(o.take()); got != 64 {
			t.Errorf("the server was told %d names", got)
		}
	})
	t.Run("many", func(t *testing.T) { // more than the wire carries, and more names than there may be listeners
		b, o := start(t)
		b.ProbeRun(t, probe(`
import resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
conns = []
for i in range(600):
    try: conns.append(socket.create_connection(("db.example.com", 443), timeout=20))
    except OSError: pass
alive = 0
for c in conns:
    try: alive += c.recv(1) == b"d"
    except OSError: pass
if alive < 100: breach("only", alive, "connections work")
for c in conns: c.close()
for i in range(600):
    for _ in range(500): # a closed connection keeps its place until the server has seen its end
        if (got := hear(f"h{i}.wiki.example", 443)) == f"h{i}.wiki.example:443": break
        time.sleep(0.02)
    else: breach(i, got); break
`, "db.example.com:443", "*.wiki.example:443"))
		o.take()
		b.Alive(t)
	})
	t.Run("end", func(t *testing.T) {
		b, o := start(t)
		cell := func(code string, hosts ...string) { // in one interpreter, with and without rules
			t.Helper()
			res := b.Run(t, withHosts(Cell(t, "python", prelude()+names+code+"\nfinish()\n"), hosts...))
			if string(res.Stdout) != "finished\n" {
				t.Errorf("%+v %s%s", res.Exit, res.Stdout, res.Stderr)
			}
		}
		cell(`
kept = socket.create_connection(("db.example.com", 443), timeout=20)
lines = kept.makefile("r")
if (got := lines.readline()) != "db.example.com:443\n": breach(got)
address = kept.getpeername()
`, "db.example.com:443")
		o.awaitEnd(t, "db.example.com:443")
		cell(`
try:
    if got := kept.recv(1): breach("the connection is alive", got)
except OSError: pass
if not isinstance(got := hear(*address), ConnectionRefusedError): breach("the address leads to", got)
if "not known" not in (got := lookup("db.example.com")): breach("the name is", got)
# Whoever takes the address gets no connection of another run: the name has no address then.
mine = [socket.create_server((address[0], 5432)), socket.create_server(("0.0.0.0", 5433))]
`)
		b.ProbeRun(t, probe(`
for port in 5432, 5433:
    if (got := hear("db.example.com", port)) != f"db.example.com:{port}" and "Temporary failure" not in str(got): breach(got)
if (got := hear("other.example.com", 5432)) != "other.example.com:5432": breach(got)
`, "db.example.com:5432", "db.example.com:5433", "other.example.com:5432"))
		cell(`
for m in mine:
    m.setblocking(False)
    fails("gets a connection of another run", m.accept)
    m.close()
if (got := hear("db.example.com", 5432)) != "db.example.com:5432": breach(got)
`, "db.example.com:5432")
		cell(`
if (got := hear(*address)) != "db.example.com:443": breach("an address that the program remembers leads to", got)
if not isinstance(got := hear(address[0], 5432), ConnectionRefusedError): breach(got)
`, "db.example.com:443")
	})
	t.Run("overlap", func(t *testing.T) {
		b, _ := start(t)
		const wait = "print('up', flush=True)\nsignal.sigwait([signal.SIGINT])\n"
		block := "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
		first := b.BeginUntil(t, "up\n", probe(block+`
c = socket.create_connection(("db.example.com", 443), timeout=20); lines = c.makefile("r"); lines.readline()
`+wait+`
c.sendall(b"still\n")
if (got := lines.readline()) != "still\n": breach(got)
`, "db.example.com:443"))
		b.ProbeRun(t, probe(`
if (got := hear("db.example.com", 443)) != "db.example.com:443": breach(got)
if (got := hear("db.example.com", 80)) != "db.example.com:80": breach(got)
`, "db.example.com:443", "db.example.com:80"))
		b.ProbeRun(t, probe(`
if (got := hear("db.example.com", 443)) != "db.example.com:443": breach("runs that overlap share names", got)
if not isinstance(got := hear("db.example.com", 80), ConnectionRefusedError): breach(got)
`))
		first.Send(t, wire.TypeInterrupt)
		if res := first.Wait(t); string(res.Stdout) != "up\nfinished\n" {
			t.Errorf("%+v %s%s", res.Exit, res.Stdout, res.Stderr)
		}
	})
	t.Run("data", func(t *testing.T) {
		b, _ := start(t)
		b.ProbeRun(t, probe(`
import threading
c = socket.create_connection(("db.example.com", 443), timeout=20)
sent = bytes(range(256)) * 40000
threading.Thread(target=lambda: (c.sendall(sent), c.shutdown(socket.SHUT_WR))).start()
got = c.makefile("rb").read()
if got != b"db.example.com:443\n" + sent: breach("echo of", len(sent), "gave", len(got))
`, "db.example.com:443"))
	})
	t.Run("resolver", func(t *testing.T) {
		b, _ := start(t)
		b.ProbeRun(t, probe(`
for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
    for addr in "127.0.0.1", "0.0.0.0":
        with socket.socket(socket.AF_INET, kind) as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                c.bind((addr, 53))
                if kind == socket.SOCK_DGRAM: breach("takes the resolver's port")
                # Some kernels let it listen on all addresses; the agent's own one must stay the agent's.
                c.listen(); c.settimeout(0.05); socket.create_connection(("127.0.0.1", 53), timeout=20); c.accept()
                breach("listens in the resolver's place")
            except OSError: pass
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(("127.0.0.1", 53)); u.setblocking(False)
for i in range(20000): # malformed, of every length
    try: u.send(os.urandom(i % 1600))
    except OSError: pass
    try: u.recv(2000)
    except OSError: pass
held = [socket.create_connection(("127.0.0.1", 53), timeout=20) for _ in range(100)]
for c in held:
    try: c.sendall(b"\xff\xff" + b"x" * 70000)
    except OSError: pass
if (got := hear("db.example.com", 443)) != "db.example.com:443": breach(got)
conf = open("/etc/resolv.conf").read() if os.path.exists("/etc/resolv.conf") else "nameserver 127.0.0.1\n"
if [l for l in conf.splitlines() if l.startswith(("nameserver", "search"))] != ["nameserver 127.0.0.1"]: breach(conf)
`, "db.example.com:443"))
	})
}
