package publicaddr_test

import (
	"net/netip"
	"testing"

	"mcp-code-sandbox/internal/publicaddr"
)

func TestIs(t *testing.T) {
	for want, texts := range map[bool][]string{
		true: {"1.1.1.1", "8.8.8.8", "93.184.216.34", "192.0.1.1", "198.20.0.1", "2606:4700:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888"},
		false: {
			"127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
			"192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
			"::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:1.1.1.1", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b:1::1", "100::1", "1000::1",
			"2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "4000::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1",
		},
	} {
		for _, text := range texts {
			if got := publicaddr.Is(netip.MustParseAddr(text)); got != want {
				t.Errorf("%s: %t", text, got)
			}
		}
	}
	if publicaddr.Is(netip.Addr{}) {
		t.Error("no address at all is public")
	}
}
