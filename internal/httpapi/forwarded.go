package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// forwarded makes RemoteAddr the client's own address where a trusted proxy passes its requests on,
// for budgets and logs. Each proxy appends the address that it was called from, so what is true is
// read from the end: the last one that is not itself a trusted proxy. What stands before that, the
// client may have made up.
func forwarded(trusted []netip.Prefix, next http.Handler) http.Handler {
	if len(trusted) == 0 {
		return next
	}
	isTrusted := func(addr netip.Addr) bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && isTrusted(peer.Addr().Unmap()) {
			list := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
			for _, text := range slices.Backward(list) {
				addr, ok := parseForwarded(text)
				if !ok {
					break // whoever wrote it, nothing before it can be believed
				}
				r.RemoteAddr = netip.AddrPortFrom(addr, 0).String()
				if !isTrusted(addr) {
					break
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// parseForwarded reads an address as proxies write it: alone, or with a port.
func parseForwarded(text string) (netip.Addr, bool) {
	text = strings.TrimSpace(text)
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return addr.Unmap().WithZone(""), err == nil
}
