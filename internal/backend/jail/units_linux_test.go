package jail

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

// TestTapFilter: the filter passes and drops the right packets.
func TestTapFilter(t *testing.T) {
	prog := tapFilter(append(closednet.Subtract(closednet.Networks(), prefixes("192.168.7.0/24")), prefixes("21.0.113.2/32")...))
	packet := func(dst string, proto byte, port uint16, words byte) []byte {
		p := make([]byte, 14+int(words)*4+8)
		p[12], p[13] = 8, 0
		ip := p[14:]
		ip[0] = 4<<4 | words
		ip[9] = proto
		copy(ip[16:], netip.MustParseAddr(dst).AsSlice())
		binary.BigEndian.PutUint16(ip[int(words)*4+2:], port)
		return p
	}
	ether := func(typ uint16) []byte {
		p := make([]byte, 60)
		binary.BigEndian.PutUint16(p[12:], typ)
		return p
	}
	fragment := packet("10.0.2.3", 17, 53, 5)
	fragment[21] = 8
	const tcp, udp, icmp = 6, 17, 1
	for _, test := range []struct {
		name  string
		frame []byte
		pass  bool
	}{
		{"public", packet("23.51.100.7", tcp, 80, 5), true},
		{"beside the host's address", packet("21.0.113.3", tcp, 80, 5), true},
		{"the host's address", packet("21.0.113.2", tcp, 80, 5), false},
		{"private", packet("10.9.9.9", tcp, 80, 5), false},
		{"private, with options", packet("10.9.9.9", udp, 53, 15), false},
		{"metadata", packet("169.254.169.254", tcp, 80, 5), false},
		{"loopback", packet("127.0.0.1", tcp, 80, 5), false},
		{"gateway", packet("10.0.2.2", tcp, 22, 5), false},
		{"multicast", packet("239.255.255.250", udp, 1900, 5), false},
		{"broadcast", packet("255.255.255.255", udp, 67, 5), false},
		{"allowed", packet("192.168.7.200", tcp, 80, 5), true},
		{"beside what is allowed", packet("192.168.8.1", tcp, 80, 5), false},
		{"name server", packet("10.0.2.3", udp, 53, 5), true},
		{"name server by TCP", packet("10.0.2.3", tcp, 53, 6), true},
		{"another port of it", packet("10.0.2.3", tcp, 80, 5), false},
		{"ping it", packet("10.0.2.3", icmp, 53, 5), false},
		{"fragment to it", fragment, false},
		{"ARP", ether(0x0806), true},
		{"IPv6", ether(0x86dd), false},
		{"VLAN", ether(0x8100), false},
		{"short", packet("23.51.100.7", tcp, 80, 5)[:20], false},
	} {
		got, err := sandboxtest.RunBPF(prog, binary.BigEndian, test.frame)
		if err != nil {
			t.Fatal(err)
		}
		if (got != 0) != test.pass {
			t.Errorf("%s: passes: %v, want %v", test.name, got != 0, test.pass)
		}
	}
}

// TestLauncherThread: the launcher is never the main thread, which could not end.
func TestLauncherThread(t *testing.T) {
	for range 50 {
		l, err := newLauncher(false)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Do(func() error {
			if unix.Gettid() == unix.Getpid() {
				return errors.New("the launcher is the main thread")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		l.close()
		if err := l.Do(func() error { return nil }); err == nil {
			t.Error("a closed launcher works")
		}
	}
}
