package closednet_test

import (
	"net/netip"
	"slices"
	"testing"

	"mcp-code-sandbox/internal/closednet"
)

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func TestSubtract(t *testing.T) {
	for _, test := range []struct {
		name                   string
		blocked, allowed, want []netip.Prefix
	}{
		{"nothing allowed", prefixes("10.0.0.0/8", "192.168.0.0/16"), nil, prefixes("10.0.0.0/8", "192.168.0.0/16")},
		{"elsewhere", prefixes("10.0.0.0/8"), prefixes("11.0.0.0/8"), prefixes("10.0.0.0/8")},
		{"the whole", prefixes("10.0.0.0/8"), prefixes("10.0.0.0/8"), nil},
		{"more than the whole", prefixes("10.0.0.0/8", "192.0.2.1/32"), prefixes("0.0.0.0/0"), nil},
		{"half", prefixes("10.0.0.0/8"), prefixes("10.128.0.0/9"), prefixes("10.0.0.0/9")},
		{"not masked", prefixes("10.0.0.0/30"), prefixes("10.0.0.3/31"), prefixes("10.0.0.0/31")},
		{"one address", prefixes("10.0.0.0/30"), prefixes("10.0.0.1/32"), prefixes("10.0.0.0/32", "10.0.0.2/31")},
		{"two holes", prefixes("10.0.0.0/30"), prefixes("10.0.0.1/32", "10.0.0.2/32"), prefixes("10.0.0.0/32", "10.0.0.3/32")},
		{"said twice", prefixes("10.0.0.0/8", "10.0.0.0/8"), nil, prefixes("10.0.0.0/8")},
		{"another family", prefixes("10.0.0.0/8"), prefixes("::/0"), prefixes("10.0.0.0/8")},
	} {
		if got := closednet.Subtract(test.blocked, test.allowed); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
