package sandboxtest

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/wire"
)

// testNoNetwork: without network a sandbox has only its own loopback.
func (s *suite) testNoNetwork(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hitTCP := serve(t, tcp, func() (io.WriteCloser, error) { return tcp.Accept() })
	name := "@sandboxtest-" + ID()
	abstract, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	hitUnix := serve(t, abstract, func() (io.WriteCloser, error) { return abstract.Accept() })
	var addrs []string
	if all, err := net.InterfaceAddrs(); err == nil {
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok {
				addrs = append(addrs, n.IP.String())
			}
		}
	}

	b := s.start(t, sandbox.Spec{})
	b.Probe(t, fmt.Sprintf(`
port, name, own = %d, "\0" + %s, %s.split()
for host in ["127.0.0.1", "localhost", "0.0.0.0", "169.254.169.254", "10.0.2.2", "10.0.2.3", "192.168.1.1", "172.17.0.1", "8.8.8.8", "198.51.100.7", "::1", "fe80::1", "2001:4860:4860::8888", "sandbox"] + own:
    try: socket.create_connection((host, port), timeout=2); breach("connects to", host)
    except OSError: pass
for host in ("8.8.8.8", "169.254.169.254", "224.0.0.1", "255.255.255.255", "10.0.2.3"):
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try: u.sendto(b"x", (host, 53)); breach("sends to", host)
    except OSError: pass
try: socket.getaddrinfo("example.com", 80); breach("resolves names")
except OSError: pass
u = socket.socket(socket.AF_UNIX)
try: u.connect(name); breach("connects to an abstract socket of the host")
except OSError: pass
if [i[1] for i in socket.if_nameindex()] != ["lo"]:
    extra = [i[1] for i in socket.if_nameindex() if i[1] not in ("lo", "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0")]
    if extra: breach("interfaces", extra)
if len(open("/proc/net/route").readlines()) > 1: breach("routes", open("/proc/net/route").read())
if name[1:] in open("/proc/net/unix").read(): breach("sees the host's sockets")
# Loopback itself works.
l = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(l.getsockname()); c.close()
`, tcp.Addr().(*net.TCPAddr).Port, quote(name[1:]), quote(strings.Join(addrs, " "))))
	if hitTCP() != 0 || hitUnix() != 0 {
		t.Errorf("the host saw %d TCP and %d abstract connections", hitTCP(), hitUnix())
	}
}

// testForward: with Forward, connections to 127.0.0.1:8099 become streams to the server, in both
// directions.
func (s *suite) testForward(t *testing.T) {
	const client = `
c = socket.create_connection(("127.0.0.1", 8099), timeout=20)
`
	t.Run("echo", func(t *testing.T) {
		accept := func(st *wire.Stream, _ wire.Frame) {
			defer st.Close()
			all, err := io.ReadAll(st) // until the program has closed its half
			if err != nil {
				return
			}
			slices.Reverse(all)
			_, _ = st.Write(all)
		}
		b := StartWith(t, s.Harness, sandbox.Spec{Forward: true}, accept)
		b.Probe(t, client+`
sent = bytes(range(256)) * 4000
import threading
threading.Thread(target=lambda: (c.sendall(sent), c.shutdown(socket.SHUT_WR))).start()
got = b""
while True:
    part = c.recv(65536)
    if not part: break
    got += part
if got != sent[::-1]: breach("echo of", len(sent), "gave", len(got))
`)
	})
	t.Run("server closes", func(t *testing.T) {
		b := StartWith(t, s.Harness, sandbox.Spec{Forward: true}, func(st *wire.Stream, _ wire.Frame) {
			_, _ = st.Write([]byte("bye"))
			_ = st.Close()
		})
		b.Probe(t, client+`
if c.recv(100) != b"bye" or c.recv(100) != b"": breach("no end")
`)
	})
	t.Run("many", func(t *testing.T) {
		b := StartWith(t, s.Harness, sandbox.Spec{Forward: true}, func(st *wire.Stream, _ wire.Frame) {
			defer st.Close()
			_, _ = io.Copy(struct{ io.Writer }{st}, st)
		})
		// More than the connection carries: the surplus is refused, the rest and the agent keep
		// working.
		b.Probe(t, `
conns = []
for i in range(600):
    try: conns.append(socket.create_connection(("127.0.0.1", 8099), timeout=20))
    except OSError: pass
alive = 0
for c in conns:
    try:
        c.sendall(b"x")
        alive += c.recv(1) == b"x"
    except OSError: pass
if alive < 100: breach("only", alive, "connections work")
for c in conns: c.close()
for _ in range(50):
    c = socket.create_connection(("127.0.0.1", 8099), timeout=20)
    try:
        c.sendall(b"y")
        if c.recv(1) == b"y": break
    except OSError: pass
    time.sleep(0.1)
else: breach("the forwarder has died")
`)
	})
	t.Run("refused", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{Forward: true}) // nobody accepts
		b.Probe(t, client+`
try:
    if c.recv(100): breach("answered")
except OSError: pass
`)
	})
	t.Run("off", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{})
		b.Probe(t, `fails("connects", socket.create_connection, ("127.0.0.1", 8099), 5)`)
	})
	t.Run("not stolen", func(t *testing.T) {
		b := s.start(t, sandbox.Spec{Forward: true})
		b.Probe(t, `
for addr in ("127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"):
    s = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try: s.bind((addr, 8099)); s.listen()
    except OSError: continue
    # Some kernels let it listen on all addresses; the agent's own one must stay the agent's.
    for _ in range(20):
        c = socket.create_connection(("127.0.0.1", 8099), timeout=20)
        s.settimeout(0.05)
        try: s.accept(); breach("listens in the agent's place on", addr)
        except OSError: pass
        c.close()
`)
	})
}
