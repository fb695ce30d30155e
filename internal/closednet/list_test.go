package closednet_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"mcp-code-sandbox/internal/closednet"
)

func TestContains(t *testing.T) {
	list := closednet.New(t.Context(), closednet.Config{
		Deny: prefixes("8.8.4.0/24", "2606:4700:4700::/48"), Allow: prefixes("0.0.0.0/0", "::/0"), PublicHost: "[::1]",
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2a00:1450:4001::1")}, nil
		},
	})
	var none *closednet.List
	for want, texts := range map[bool][]string{
		false: {"1.1.1.1", "8.8.8.8", "192.0.1.1", "198.20.0.1", "168.63.129.15", "2606:4700:4701::1", "2001:4860:4860::8888"},
		true: {
			"127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
			"192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16",
			"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:1.1.1.1", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "1000::1",
			"2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
		},
	} {
		for _, text := range texts {
			addr := netip.MustParseAddr(text)
			if got := list.Contains(addr); got != want {
				t.Errorf("%s: %t", text, got)
			}
			if got := none.Contains(addr); got != want {
				t.Errorf("%s, of a nil list: %t", text, got)
			}
		}
	}
	for _, text := range []string{"8.8.4.4", "::ffff:8.8.4.4", "64:ff9b::808:404", "2606:4700:4700::1111", "93.184.216.34", "2a00:1450:4001::1"} {
		if !list.Contains(netip.MustParseAddr(text)) {
			t.Errorf("%s is open", text)
		}
	}
	if !list.Contains(netip.Addr{}) {
		t.Error("the zero address is open")
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range own {
		if addr, _ := netip.AddrFromSlice(a.(*net.IPNet).IP); !list.Contains(addr.Unmap()) {
			t.Errorf("this host's %s is open", addr)
		}
	}
}

// TestOneList: the networks that sandboxes cannot reach are the ones that the proxy does not dial.
func TestOneList(t *testing.T) {
	cfg := closednet.Config{Deny: prefixes("8.8.8.0/24", "8.8.8.8/32", "2606::/16"), PublicHost: "9.9.9.9"}
	list := closednet.New(t.Context(), cfg)
	closed, err := list.ForSandbox()
	if err != nil {
		t.Fatal(err)
	}
	covered := func(p netip.Prefix) bool {
		return slices.ContainsFunc(closed, func(c netip.Prefix) bool { return c.Bits() <= p.Bits() && c.Contains(p.Addr()) })
	}
	for _, p := range slices.Concat(closednet.Networks(), cfg.Deny, prefixes("9.9.9.9/32")) {
		if p.Addr().Is4() && !covered(p) {
			t.Errorf("%s is open to sandboxes: %v", p, closed)
		}
	}
	for i, p := range closed {
		if !p.Addr().Is4() || !list.Contains(p.Addr()) {
			t.Errorf("%s is closed to sandboxes only", p)
		}
		for _, q := range closed[i+1:] {
			if p.Overlaps(q) {
				t.Errorf("%s and %s overlap", p, q)
			}
		}
	}
	engine := netip.MustParseAddr("21.0.0.1")
	if closed, _ := list.ForSandbox(engine); !slices.Contains(closed, netip.PrefixFrom(engine, 32)) {
		t.Errorf("the engine's host is open: %v", closed)
	}
}

func TestExceptions(t *testing.T) {
	list := closednet.New(t.Context(), closednet.Config{Allow: prefixes("10.1.0.0/16", "9.9.9.9/32", "8.0.0.0/8"), Deny: prefixes("10.1.2.0/24", "8.8.8.8/32"), PublicHost: "9.9.9.9"})
	closed, err := list.ForSandbox()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{"10.0.0.1": true, "10.1.1.1": false, "10.1.2.1": true, "10.2.0.1": true, "9.9.9.9": false, "8.8.8.8": true, "8.8.8.9": false} {
		if got := slices.ContainsFunc(closed, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(text)) }); got != want {
			t.Errorf("%s is closed: %t", text, got)
		}
	}
	everything := closednet.New(t.Context(), closednet.Config{Deny: prefixes("0.0.0.0/0")})
	if closed, err := everything.ForSandbox(); err != nil || !slices.Equal(closed, prefixes("0.0.0.0/1", "128.0.0.0/1")) {
		t.Errorf("everything: %v, %v", closed, err)
	}
	var many []netip.Prefix
	for i := range 2000 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{30, byte(i >> 8), byte(i), 1}), 32))
	}
	if _, err := closednet.New(t.Context(), closednet.Config{Deny: many}).ForSandbox(); err == nil {
		t.Error("a filter holds any number of networks")
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3/32", "10.1.2.3/8": "10.0.0.0/8", "::ffff:10.1.2.3": "10.1.2.3/32", "::ffff:10.0.0.0/104": "10.0.0.0/8", "fd00::1": "fd00::1/128",
		"": "", "x": "", "10.1.2.3/33": "", "fe80::1%eth0": "", "10.1.2": "", "10.1.2.3/8 ": "", "example.com": "",
	} {
		got, err := closednet.Parse(text)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
