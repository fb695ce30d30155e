package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/untrusted"
)

// maxQuoted bounds what a message or a log line quotes of a request.
const maxQuoted = 200

// guard refuses requests that a web page could make a browser send: to a host name that is not the
// server's (DNS rebinding), and from a foreign origin. Programs other than browsers send no Origin.
type guard struct {
	hosts   []string
	origins []string
}

func newGuard(hosts, origins []string) *guard {
	g := new(guard)
	for _, h := range hosts {
		g.hosts = append(g.hosts, strings.ToLower(strings.TrimSpace(h)))
	}
	for _, o := range origins {
		g.origins = append(g.origins, strings.ToLower(strings.TrimRight(strings.TrimSpace(o), "/")))
	}
	return g
}

func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.hostAllowed(r.Host) {
			writeError(w, r, http.StatusForbidden, fmt.Sprintf(
				"host %q is not allowed; add it to SANDBOX_ALLOWED_HOSTS", untrusted.Clip(r.Host, maxQuoted)))
			return
		}
		// No browser sends several Origin headers; each must pass.
		for _, origin := range r.Header.Values("Origin") {
			if !g.originAllowed(origin, r.Host) {
				writeError(w, r, http.StatusForbidden, fmt.Sprintf(
					"origin %q is not allowed; add it to SANDBOX_ALLOWED_ORIGINS", untrusted.Clip(origin, maxQuoted)))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (g *guard) hostAllowed(hostport string) bool {
	hostport = strings.ToLower(hostport)
	host := hostOf(hostport)
	if host == "" {
		return false
	}
	if hostname.IsLoopback(host) {
		return true
	}
	for _, allowed := range g.hosts {
		suffix, wild := strings.CutPrefix(allowed, "*")
		switch {
		case allowed == "*", allowed == hostport, hostOf(allowed) == host && !hasPort(allowed):
			return true
		case wild && strings.HasPrefix(suffix, ".") && strings.HasSuffix(host, suffix):
			return true
		}
	}
	return false
}

// originAllowed reports whether a page of that origin may call the server at host.
func (g *guard) originAllowed(origin, host string) bool {
	for _, allowed := range g.origins {
		if allowed == "*" || allowed == strings.ToLower(origin) {
			return true
		}
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return false // also for "null"
	}
	return strings.EqualFold(u.Host, host) || hostname.IsLoopback(hostOf(strings.ToLower(u.Host)))
}

// hostOf removes the port, brackets and the root's dot.
func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		hostport = host
	}
	return strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]"), ".")
}

func hasPort(hostport string) bool {
	_, _, err := net.SplitHostPort(hostport)
	return err == nil
}

// forwarded sets RemoteAddr to the client's address if a trusted proxy sent the request. Each proxy
// appends the address of its client, so the last address that is not a trusted proxy counts. The
// client may have made up the ones before.
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
				addr, err := netip.ParseAddr(hostOf(strings.TrimSpace(text)))
				if err != nil {
					break // nothing before it can be trusted
				}
				addr = addr.Unmap().WithZone("")
				r.RemoteAddr = netip.AddrPortFrom(addr, 0).String()
				if !isTrusted(addr) {
					break
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}
