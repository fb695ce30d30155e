package jail_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// envWorld is set in the process whose network namespace stands for the host.
const envWorld = "JAILTEST_WORLD"

// The world: the host has an uplink to another network namespace, which has every address that a sandbox must
// not reach and one that it may.
const (
	public   = "198.51.100.7"
	resolver = "10.9.9.9"
)

var (
	closed = []string{
		resolver, "10.9.9.10", "10.0.2.2", "10.0.2.5", "172.16.5.5", "192.168.77.1", "192.168.78.1", "169.254.169.254", "100.64.1.1",
		"192.0.0.8", "198.18.0.1", "240.0.0.1",
	}
	hostOwn = []string{"203.0.113.2", "192.0.2.10", "10.77.0.1"}
)

// TestNetwork proves what a sandbox with network reaches, with servers on every address that matters.
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
	if os.Getenv(envWorld) == "" {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.timeout=90s", "-test.run=^TestNetwork$")
		cmd.Env = append(os.Environ(), envWorld+"=1", envAgent+"="+agentFile)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil || !strings.Contains(string(out), "--- PASS: TestNetwork") {
			t.Errorf("in a network namespace: %v", err)
		}
		return
	}

	world := makeWorld(t)
	for _, addr := range append(append([]string{public, "127.0.0.1"}, closed...), hostOwn...) {
		if addr == "240.0.0.1" {
			continue // Linux itself does not route it
		}
		c, err := net.DialTimeout("tcp", addr+":80", 5*time.Second)
		if err != nil {
			t.Fatalf("the test's world is broken: the host itself does not reach %s: %v", addr, err)
		}
		c.Close()
	}
	for _, to := range []string{"239.1.2.3:5002", resolver + ":5001"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "control %s", to)
		c.Close()
		if got := world.packet(t); got != "control "+to {
			t.Fatalf("the test's world is broken: the host sent to %s, there came %q", to, got)
		}
	}

	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{Network: true})
	lists := fmt.Sprintf("PUBLIC, CLOSED, OWN = '%s', '%s'.split(), '%s'.split()\n", public, strings.Join(closed, " "), strings.Join(hostOwn, " "))
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
		b.Probe(t, lists+reach+`
tap = socket.if_nametoindex("tap0")
def option(level, name, value):
    def f(s): s.setsockopt(level, name, value)
    return f
ways = {
    "SO_BINDTODEVICE": option(socket.SOL_SOCKET, 25, b"tap0\0"), "SO_BINDTOIFINDEX": option(socket.SOL_SOCKET, 62, tap), "SO_MARK": option(socket.SOL_SOCKET, 36, 1),
    "SO_DONTROUTE": option(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1), "IP_UNICAST_IF": option(0, 50, struct.pack("!I", tap)), "IP_TRANSPARENT": option(0, 19, 1),
    "IP_FREEBIND": lambda s: (s.setsockopt(0, 15, 1), s.bind(("203.0.113.2", 0))), "own address": lambda s: s.bind(("10.0.2.100", 0)),
    "IP_OPTIONS": option(0, 4, struct.pack("!BBB4s4sx", 131, 11, 4, socket.inet_aton(PUBLIC), socket.inet_aton("10.9.9.9"))),
}
for name, way in ways.items():
    for addr in ("10.9.9.9", "169.254.169.254", "192.168.77.1", "10.0.2.2", "10.0.2.5", "203.0.113.2"):
        got = reach(addr, way)
        if not isinstance(got, OSError): breach("reaches", addr, "by", name, got)
`)
	})
	t.Run("packets", func(t *testing.T) {
		b.Probe(t, lists+`
tap = socket.if_nametoindex("tap0")
def send(to, port, set=None, control=[]):
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    try:
        if set: set(u)
        u.sendmsg([b"attack on " + to.encode()], control, 0, (to, port))
    except OSError: pass
pktinfo = [(0, 8, struct.pack("=I4s4s", tap, socket.inet_aton("10.0.2.100"), bytes(4)))]
source = lambda u: u.bind(("10.0.2.100", 0))
for to, port in [(a, 5001) for a in CLOSED] + [("239.1.2.3", 5002), ("224.0.0.251", 5003), ("255.255.255.255", 5001), ("10.0.2.255", 5001), ("203.0.113.255", 5001)]:
    send(to, port)
    send(to, port, source)
    send(to, port, lambda u: u.setsockopt(0, 50, struct.pack("!I", tap)))
    send(to, port, lambda u: u.setsockopt(0, socket.IP_MULTICAST_IF, struct.pack("=4s4si", bytes(4), bytes(4), tap)))
    send(to, port, control=pktinfo)
    send(to, port, source, pktinfo)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.sendto(b"honest", (PUBLIC, 5001))
`)
		for {
			got := world.packet(t)
			if got == "honest" {
				return
			}
			t.Errorf("came through: %q", got)
		}
	})
	t.Run("exceptions", func(t *testing.T) {
		allowed := open(t, t.TempDir(), sandboxtest.ID(), netip.MustParsePrefix("192.168.77.0/24"), netip.MustParsePrefix("10.9.9.9/32"), netip.MustParsePrefix("192.0.2.10/32"))
		b := sandboxtest.Start(t, harness(t, allowed), sandbox.Spec{Network: true})
		b.Probe(t, lists+reach+`
for addr in [PUBLIC, "192.168.77.1", "10.9.9.9"]:
    if reach(addr) != b"world": breach("does not reach", addr, reach(addr))
if reach("192.0.2.10") != b"host": breach("does not reach the host's address that is allowed", reach("192.0.2.10"))
for addr in set(CLOSED + OWN) - {"192.168.77.1", "10.9.9.9", "192.0.2.10"}:
    got = reach(addr)
    if not isinstance(got, OSError): breach("reaches", addr, got)
`)
	})
	t.Run("none", func(t *testing.T) {
		b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
		b.Probe(t, lists+reach+`
for addr in [PUBLIC] + CLOSED + OWN:
    if not isinstance(reach(addr), OSError): breach("reaches", addr)
`)
	})
}

// reach is the Python function that connects to port 80 of an address and returns what the server says, or why not.
const reach = `
def reach(addr, way=None):
    s = socket.socket(socket.AF_INET6 if ":" in addr else socket.AF_INET)
    s.settimeout(1 if way is None else 0.3)
    try:
        if way: way(s)
        s.connect((addr, 80))
        return s.recv(100)
    except OSError as e:
        return e
    finally: s.close()
`

// world is the other namespace.
type world struct{ packets <-chan string }

func (w *world) packet(t *testing.T) string {
	t.Helper()
	select {
	case p, ok := <-w.packets:
		if !ok {
			t.Fatal("the world has ended")
		}
		return p
	case <-time.After(10 * time.Second):
		t.Fatal("no packet came")
	}
	return ""
}

func makeWorld(t *testing.T) *world {
	t.Helper()
	do := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envRole+"=world")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	packets := make(chan string, 1000)
	go func() {
		defer close(packets)
		for sc := bufio.NewScanner(stdout); sc.Scan(); {
			packets <- sc.Text()
		}
	}()
	t.Cleanup(func() {
		_ = stdin.Close()
		for range packets {
		}
		_ = cmd.Wait()
	})

	pid := strconv.Itoa(cmd.Process.Pid)
	there := func(args ...string) { t.Helper(); do("nsenter", append([]string{"-t", pid, "-n", "ip"}, args...)...) }
	do("ip", "link", "set", "lo", "up")
	do("ip", "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", pid)
	do("ip", "addr", "add", "203.0.113.2/24", "dev", "up0")
	do("ip", "link", "set", "up0", "up")
	do("ip", "addr", "add", "192.0.2.10/32", "dev", "lo")
	do("ip", "addr", "add", "10.77.0.1/32", "dev", "lo")
	do("ip", "route", "add", "default", "via", "203.0.113.1")
	there("link", "set", "lo", "up")
	there("link", "set", "down0", "up")
	there("addr", "add", "203.0.113.1/24", "dev", "down0")
	for _, addr := range append([]string{public}, closed...) {
		there("addr", "add", addr+"/32", "dev", "lo")
	}

	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+resolver+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(conf, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", "0.0.0.0:80")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); answer(l, "host") }()
	t.Cleanup(func() { l.Close(); <-done })

	if _, err := io.WriteString(stdin, "go\n"); err != nil {
		t.Fatal(err)
	}
	w := &world{packets: packets}
	if got := w.packet(t); got != "ready" {
		t.Fatalf("the world says %q", got)
	}
	return w
}

func answer(l net.Listener, text string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, text)
		_ = c.Close()
	}
}

// roleWorld serves on all addresses of its namespace until its stdin ends. It prints each packet it gets.
func roleWorld() {
	fatal := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "world:", err)
			os.Exit(1)
		}
	}
	in := bufio.NewReader(os.Stdin)
	_, err := in.ReadString('\n')
	fatal(err)
	l, err := net.Listen("tcp4", "0.0.0.0:80")
	fatal(err)
	go answer(l, "world")
	down, err := net.InterfaceByName("down0")
	fatal(err)
	lines := make(chan string)
	for i, group := range []net.IP{net.IPv4(239, 1, 2, 3), net.IPv4(224, 0, 0, 251)} {
		multicast, err := net.ListenMulticastUDP("udp4", down, &net.UDPAddr{IP: group, Port: 5002 + i})
		fatal(err)
		go report(multicast, lines)
	}
	unicast, err := net.ListenPacket("udp4", "0.0.0.0:5001")
	fatal(err)
	go report(unicast, lines)
	dns, err := net.ListenPacket("udp4", "0.0.0.0:53")
	fatal(err)
	go serveDNS(dns)
	go func() { _, _ = io.Copy(io.Discard, in); close(lines) }()
	fmt.Println("ready")
	for line := range lines {
		fmt.Println(line)
	}
}

func report(c net.PacketConn, lines chan<- string) {
	buf := make([]byte, 1500)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		lines <- string(buf[:n])
	}
}

// serveDNS answers every question with the public address.
func serveDNS(c net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		q := buf[:n]
		end := 12
		for end < n && q[end] != 0 {
			end += int(q[end]) + 1
		}
		if end+5 > n {
			continue
		}
		a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0}, q[12:end+5]...)
		a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
		a = append(a, net.ParseIP(public).To4()...)
		_, _ = c.WriteTo(a, from)
	}
}
