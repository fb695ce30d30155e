package jail_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestSlirpDescriptors: slirp4netns, which parses hostile packets, has no namespace open.
func TestSlirpDescriptors(t *testing.T) {
	needMachineRoot(t, "looks at descriptors of another uid")
	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), networked(t))
	for _, fd := range descriptors(t, fmt.Sprintf("/proc/%d", slirpOf(t, b))) {
		if strings.Contains(fd, ":[") && !strings.HasPrefix(fd, "pipe:") && !strings.HasPrefix(fd, "socket:") {
			t.Errorf("it has %s", fd)
		}
	}
}

// TestSlirpEnds: a sandbox ends with its slirp4netns. The log says why.
func TestSlirpEnds(t *testing.T) {
	needMachineRoot(t, "kills a process of another uid")
	log := &lockedLog{wrote: make(chan struct{}, 1)}
	backend, err := openLogging(t.TempDir(), sandboxtest.ID(), slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(backend.Close)
	b := sandboxtest.Start(t, harness(t, backend), networked(t))
	b.Alive(t)
	if err := syscall.Kill(slirpOf(t, b), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exit, err := b.Wait(t.Context())
	if err != nil || exit.Cause != sandbox.CauseLost || !strings.Contains(exit.Detail, "slirp4netns: signal: killed") {
		t.Errorf("%+v, %v", exit, err)
	}
	<-log.wrote
	if said := log.String(); !strings.Contains(said, "level=WARN") || !strings.Contains(said, `error="signal: killed"`) {
		t.Errorf("the log says %q", said)
	}
	// One that is closed says nothing.
	ended := sandboxtest.Start(t, harness(t, backend), networked(t))
	if err := ended.Close(t.Context()); err != nil {
		t.Error(err)
	}
	backend.Close()
	if n := strings.Count(log.String(), "level="); n != 1 {
		t.Errorf("%d lines: %s", n, log)
	}
}

// networked is the spec of a sandbox with network.
func networked(t *testing.T) sandbox.Spec {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		sandboxtest.Skip(t, err.Error())
	}
	return sandbox.Spec{Network: true}
}

// slirpOf returns the pid of a sandbox's slirp4netns.
func slirpOf(t *testing.T, b *sandboxtest.Sandbox) int {
	t.Helper()
	for _, pid := range processes(t, b.Workspace) {
		if status(fmt.Sprintf("/proc/%d", pid), "Name") == "slirp4netns" {
			return pid
		}
	}
	t.Fatal("slirp4netns was not found")
	return 0
}

// TestNetwork checks what a sandbox with network reaches. Servers listen on every address that
// matters.
func TestNetwork(t *testing.T) {
	needRoot(t, "network namespaces")
	for _, name := range []string{"ip", "nsenter", "slirp4netns"} {
		if _, err := exec.LookPath(name); err != nil {
			sandboxtest.Skip(t, name+" is not installed")
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		sandboxtest.Skip(t, err.Error())
	}
	world := sandboxtest.EnterWorld(t)
	if world == nil {
		return
	}

	backend := open(t, t.TempDir(), sandboxtest.ID(), sandboxtest.ClosedNetworks(t))
	b := sandboxtest.Start(t, harness(t, backend), sandbox.Spec{Network: true})
	lists, reach := sandboxtest.WorldLists(), sandboxtest.Reach
	t.Run("public", func(t *testing.T) {
		b.Probe(t, lists+reach+`
if reach(PUBLIC) != b"world": breach("the internet is out of reach:", reach(PUBLIC))
if socket.getaddrinfo("name.test", 80, socket.AF_INET)[0][4][0] != PUBLIC: breach("names are not resolved")
`)
	})
	t.Run("closed", func(t *testing.T) {
		b.Probe(t, lists+reach+`
for addr in CLOSED + OWN + ["10.0.2.3", "127.0.0.1", "127.0.0.2", "0.0.0.0", "255.255.255.255", "::1", "::ffff:10.9.9.9", "::ffff:169.254.169.254", "fd00::3", "2001:db8::1"]:
    got = reach(addr)
    if not isinstance(got, OSError): breach("reaches", addr, got)
`)
	})
	t.Run("around the routes", func(t *testing.T) {
		b.Probe(t, lists+reach+sandboxtest.Attack+`
tap = socket.if_nametoindex("tap0")
ways = {
    "SO_BINDTODEVICE": option(socket.SOL_SOCKET, 25, b"tap0\0"), "SO_BINDTOIFINDEX": option(socket.SOL_SOCKET, 62, tap), "SO_MARK": option(socket.SOL_SOCKET, 36, 1),
    "SO_DONTROUTE": option(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1), "IP_UNICAST_IF": option(0, 50, struct.pack("!I", tap)), "IP_TRANSPARENT": option(0, 19, 1),
    "IP_FREEBIND": lambda s: (s.setsockopt(0, 15, 1), s.bind(("21.0.113.2", 0))), "own address": lambda s: s.bind(("10.0.2.100", 0)),
    "IP_OPTIONS": option(0, 4, struct.pack("!BBB4s4sx", 131, 11, 4, socket.inet_aton(PUBLIC), socket.inet_aton("10.9.9.9"))),
}
for name, way in ways.items():
    for addr in ("10.9.9.9", "169.254.169.254", "192.168.77.1", "10.0.2.2", "10.0.2.5", "21.0.113.2"):
        got = reach(addr, way)
        if not isinstance(got, OSError): breach("reaches", addr, "by", name, got)
`)
	})
	t.Run("packets", func(t *testing.T) {
		b.Probe(t, lists+sandboxtest.Attack+`
tap = socket.if_nametoindex("tap0")
pktinfo = [(0, 8, struct.pack("=I4s4s", tap, socket.inet_aton("10.0.2.100"), bytes(4)))]
source = lambda u: u.bind(("10.0.2.100", 0))
for to, port in [(a, 5001) for a in CLOSED] + [("239.1.2.3", 5002), ("224.0.0.251", 5003), ("255.255.255.255", 5001), ("10.0.2.255", 5001), ("21.0.113.255", 5001)]:
    send(to, port)
    send(to, port, source)
    send(to, port, lambda u: u.setsockopt(0, 50, struct.pack("!I", tap)))
    send(to, port, lambda u: u.setsockopt(0, socket.IP_MULTICAST_IF, struct.pack("=4s4si", bytes(4), bytes(4), tap)))
    send(to, port, control=pktinfo)
    send(to, port, source, pktinfo)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b"honest", (PUBLIC, 5001))
`)
		world.WantOnly(t, "honest")
	})
	t.Run("exceptions", func(t *testing.T) {
		allowed := open(t, t.TempDir(), sandboxtest.ID(), sandboxtest.ClosedNetworks(t,
			netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("10.9.9.9/32"), netip.MustParsePrefix("22.0.2.10/32"), netip.MustParsePrefix("24.0.0.0/8")))
		b := sandboxtest.Start(t, harness(t, allowed), sandbox.Spec{Network: true})
		b.Probe(t, lists+reach+`
for addr in [PUBLIC, "192.168.77.1", "10.9.9.9"]:
    if reach(addr) != b"world": breach("does not reach", addr, reach(addr))
if reach("22.0.2.10") != b"host": breach("does not reach the host's address that is allowed", reach("22.0.2.10"))
for addr in set(CLOSED + OWN) - {"192.168.77.1", "10.9.9.9", "22.0.2.10"}:
    got = reach(addr)
    if not isinstance(got, OSError): breach("reaches", addr, got)
`)
	})
	t.Run("new address", func(t *testing.T) { sandboxtest.TestNewAddress(t, b) })
	t.Run("none", func(t *testing.T) {
		b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
		b.Probe(t, lists+reach+`
for addr in [PUBLIC] + CLOSED + OWN:
    if not isinstance(reach(addr), OSError): breach("reaches", addr)
`)
	})
}
