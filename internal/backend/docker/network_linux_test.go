package docker_test

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestNetwork tests what a sandbox with network reaches, with servers on every address that matters
// and an engine that has no other network.
func TestNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		sandboxtest.Skip(t, "needs root: network namespaces")
	}
	for _, name := range []string{"ip", "nsenter", "iptables", "dockerd"} {
		if _, err := exec.LookPath(name); err != nil {
			sandboxtest.Skip(t, name+" is not installed")
		}
	}
	world := sandboxtest.EnterWorld(t)
	if world == nil {
		return
	}
	e := startEngine(t, "")
	closed := sandboxtest.ClosedNetworks(t)
	_, h := e.open(t, t.TempDir(), func(c *docker.Config) { c.Closed = closed })
	spec := sandbox.Spec{Network: true, Mounts: usr}
	b := sandboxtest.Start(t, h, spec)
	lists, reach := sandboxtest.WorldLists(), sandboxtest.Reach
	// A server in another container on the bridge.
	neighbour := sandboxtest.Start(t, h, spec)
	serving := neighbour.BeginUntil(t, "\n", sandboxtest.Python(`
ip = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()[0]
l = socket.create_server(("0.0.0.0", 8000))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("0.0.0.0", 5001))
print(ip, flush=True)
u.settimeout(1000)
print("GOT", u.recv(100), flush=True)
`))
	peer := strings.TrimSpace(string(serving.Stdout()))
	addr, err := netip.ParseAddr(peer)
	if err != nil {
		t.Fatal(err)
	}
	gateway := netip.PrefixFrom(addr, 16).Masked().Addr().Next().String()
	lists += "PEER, GATEWAY = '" + peer + "', '" + gateway + "'\n"

	t.Run("public", func(t *testing.T) {
		b.Probe(t, lists+reach+`
if reach(PUBLIC) != b"world": breach("the internet is out of reach:", reach(PUBLIC))
if "127.0.0.11" not in open("/etc/resolv.conf").read(): breach("another resolver", open("/etc/resolv.conf").read())
if socket.getaddrinfo("name.test", 80, socket.AF_INET)[0][4][0] != PUBLIC: breach("names are not resolved")
`)
	})
	t.Run("closed", func(t *testing.T) {
		b.Probe(t, lists+reach+`
begun = time.monotonic()
for addr in CLOSED + OWN + [GATEWAY, PEER, "127.0.0.1", "0.0.0.0", "255.255.255.255", "::1", "::ffff:10.9.9.9", "::ffff:169.254.169.254", "fd00::3", "2001:db8::1"]:
    got = reach(addr)
    if not isinstance(got, OSError): breach("reaches", addr, got)
for addr in (PEER, GATEWAY):
    try: socket.create_connection((addr, 8000), 1); breach("reaches", addr)
    except OSError: pass
if time.monotonic() - begun > 5: breach("a forbidden connection does not fail at once")
`)
	})
	t.Run("around the routes", func(t *testing.T) {
		b.Probe(t, lists+reach+sandboxtest.Attack+`
eth = socket.if_nametoindex("eth0")
ways = {
    "SO_BINDTODEVICE": option(socket.SOL_SOCKET, 25, b"eth0\0"), "SO_BINDTOIFINDEX": option(socket.SOL_SOCKET, 62, eth), "SO_MARK": option(socket.SOL_SOCKET, 36, 1),
    "SO_DONTROUTE": option(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1), "IP_UNICAST_IF": option(0, 50, struct.pack("!I", eth)), "IP_TRANSPARENT": option(0, 19, 1),
    "IP_FREEBIND": lambda s: (s.setsockopt(0, 15, 1), s.bind(("21.0.113.2", 0))),
    "port 53": lambda s: s.bind(("0.0.0.0", 53)),
}
for name, way in ways.items():
    for addr in ("10.9.9.9", "169.254.169.254", "192.168.77.1", "21.0.113.2", "22.0.2.10", GATEWAY, PEER):
        got = reach(addr, way)
        if not isinstance(got, OSError): breach("reaches", addr, "by", name, got)
`)
	})
	t.Run("packets", func(t *testing.T) {
		b.Probe(t, lists+sandboxtest.Attack+`
eth = socket.if_nametoindex("eth0")
own = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()[0]
pktinfo = [(0, 8, struct.pack("=I4s4s", eth, socket.inet_aton(own), bytes(4)))]
source = lambda u: u.bind((own, 0))
broadcast = ".".join(own.split(".")[:2]) + ".255.255"
for to, port in [(a, 5001) for a in CLOSED + [PEER, GATEWAY, broadcast]] + [("239.1.2.3", 5002), ("224.0.0.251", 5003), ("224.0.0.1", 5001), ("255.255.255.255", 5001)]:
    send(to, port)
    send(to, port, source)
    send(to, port, lambda u: u.setsockopt(socket.SOL_SOCKET, 25, b"eth0\0"))
    send(to, port, lambda u: u.setsockopt(0, 50, struct.pack("!I", eth)))
    send(to, port, lambda u: u.setsockopt(0, socket.IP_MULTICAST_IF, struct.pack("=4s4si", bytes(4), bytes(4), eth)))
    send(to, port, control=pktinfo)
    send(to, port, source, pktinfo)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b"honest", (PUBLIC, 5001))
`)
		world.WantOnly(t, "honest")
		if got := string(serving.Stdout()); strings.Contains(got, "GOT") {
			t.Errorf("the neighbour %s", got)
		}
	})
	t.Run("for good", func(t *testing.T) {
		b.Probe(t, lists+reach+`
for argv in (["ip", "route", "flush", "table", "main"], ["ip", "rule", "add", "lookup", "8099"], ["ip", "route", "del", "unreachable", "10.0.0.0/8"], ["tc", "qdisc", "del", "dev", "eth0", "clsact"],
             ["ip", "link", "set", "eth0", "down"], ["iptables", "-F"]):
    try: r = subprocess.run(argv, capture_output=True)
    except OSError: continue
    if r.returncode == 0: breach(argv)
if not isinstance(reach("10.9.9.9"), OSError): breach("it is open")
`)
	})
	t.Run("exceptions", func(t *testing.T) {
		_, h := e.open(t, t.TempDir(), func(c *docker.Config) {
			c.Closed = sandboxtest.ClosedNetworks(t, netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("22.0.2.10/32"), netip.MustParsePrefix("24.0.0.0/8"))
		})
		b := sandboxtest.Start(t, h, spec)
		b.Probe(t, lists+reach+`
for addr in [PUBLIC, "192.168.77.1"]:
    if reach(addr) != b"world": breach("does not reach", addr, reach(addr))
if reach("22.0.2.10") != b"host": breach("does not reach the host's address that is allowed", reach("22.0.2.10"))
for addr in set(CLOSED + OWN) - {"192.168.77.1", "22.0.2.10"}:
    got = reach(addr)
    if not isinstance(got, OSError): breach("reaches", addr, got)
`)
	})
	t.Run("new address", func(t *testing.T) { sandboxtest.TestNewAddress(t, b) })
	networks := func(t *testing.T, inst string) (ids []string) {
		t.Helper()
		res, err := api(t, e.Host).NetworkList(t.Context(), client.NetworkListOptions{Filters: make(client.Filters).Add("label", "sandbox.installation="+inst)})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range res.Items {
			ids = append(ids, n.ID)
		}
		return ids
	}
	t.Run("the bridge is gone", func(t *testing.T) {
		_, h := e.open(t, t.TempDir(), func(c *docker.Config) { c.Installation = "gone" })
		if err := sandboxtest.Start(t, h, spec).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, id := range networks(t, "gone") { // as docker network prune does
			if _, err := api(t, e.Host).NetworkRemove(t.Context(), id, client.NetworkRemoveOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		sandboxtest.Start(t, h, spec).Alive(t)
	})
	t.Run("instances at once", func(t *testing.T) {
		var group sync.WaitGroup
		for range 4 {
			b, h := e.open(t, t.TempDir(), func(c *docker.Config) { c.Installation = "at-once" })
			workspace := sandboxtest.Workspace(t, h.Owner)
			group.Go(func() {
				defer b.Close()
				for range 2 {
					spec := spec
					spec.ID, spec.Image, spec.Workspace = sandboxtest.ID(), h.Image, workspace
					sb, err := b.Start(t.Context(), spec)
					if err != nil {
						t.Error(err)
						return
					}
					if err := sb.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		if left := networks(t, "at-once"); len(left) > 0 {
			t.Errorf("networks are left: %q", left)
		}
	})
	t.Run("of the dead", func(t *testing.T) {
		as := func(c *docker.Config) { c.Installation = "dead" }
		b, h := e.open(t, t.TempDir(), as)
		if err := sandboxtest.Start(t, h, spec).Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, _ := e.open(t, t.TempDir(), as)
		for _, alive := range []bool{true, false} {
			if err := next.Reap(t.Context(), func(string) bool { return alive }); err != nil {
				t.Error(err)
			}
			if got := len(networks(t, "dead")) > 0; got != alive {
				t.Errorf("alive %v: a network is there: %v", alive, got)
			}
		}
		b.Close()
	})
	t.Run("none", func(t *testing.T) {
		b := sandboxtest.Start(t, h, sandbox.Spec{Mounts: usr})
		b.Probe(t, lists+reach+`
for addr in [PUBLIC] + CLOSED + OWN:
    if not isinstance(reach(addr), OSError): breach("reaches", addr)
`)
	})
}
