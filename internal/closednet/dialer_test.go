package closednet_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"mcp-code-sandbox/internal/closednet"
)

// TestCloseServer: no open network opens the port of this server.
func TestCloseServer(t *testing.T) {
	l := closednet.New(t.Context(), closednet.Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	dial := func(host string) error {
		_, port, _ := net.SplitHostPort(server.Addr().String())
		conn, err := l.Dialer(time.Second, l.Opened()).Dial("tcp", net.JoinHostPort(host, port))
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := dial("127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	l.CloseServer(server.Addr())
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "0.0.0.0", "::ffff:127.0.0.1", "localhost"} {
		if err := dial(host); !errors.Is(err, closednet.ErrAddress) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

// TestOpened: denied networks stay closed, and loopback unless it is named.
func TestOpened(t *testing.T) {
	for _, tt := range []struct {
		allow, deny  []netip.Prefix
		open, closed string
	}{
		{prefixes("10.0.0.0/8"), prefixes("10.1.2.0/24"), "10.1.3.1", "10.1.2.3"},
		{prefixes("0.0.0.0/0"), nil, "192.168.1.1", "127.0.0.1"},
		{prefixes("::/0"), nil, "fd00::1", "::1"},
		{prefixes("127.0.0.2/32"), nil, "127.0.0.2", "127.0.0.1"},
	} {
		list := closednet.New(t.Context(), closednet.Config{Allow: tt.allow, Deny: tt.deny})
		contains := func(text string) bool {
			return slices.ContainsFunc(list.Opened(), func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(text)) })
		}
		if !contains(tt.open) || contains(tt.closed) {
			t.Errorf("%v without %v: %v", tt.allow, tt.deny, list.Opened())
		}
	}
	var none *closednet.List
	if got := none.Opened(); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
