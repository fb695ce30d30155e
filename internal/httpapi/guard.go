package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/untrusted"
)

// maxQuoted bounds what a message or a log line quotes of a request.
const maxQuoted = 200

// guard refuses requests that a web page could have made a browser send: those addressed to a name that is not ours
// (DNS rebinding), and those from a foreign origin. Programs send no Origin and are not concerned by the second.
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
		// Several Origin headers are nothing a browser sends; each must pass.
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

// originAllowed reports whether a page of that origin may call the server as host.
func (g *guard) originAllowed(origin, host string) bool {
	for _, allowed := range g.origins {
		if allowed == "*" || allowed == strings.ToLower(origin) {
			return true
		}
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.User != nil || (u.Scheme != "http" && u.Scheme != "https") {
		return false // "null" included
	}
	return strings.EqualFold(u.Host, host) || hostname.IsLoopback(hostOf(strings.ToLower(u.Host)))
}

// hostOf strips the port, brackets and the root's dot.
func hostOf(hostport string) string {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(host, ".")
}

func hasPort(hostport string) bool {
	_, _, err := net.SplitHostPort(hostport)
	return err == nil
}
