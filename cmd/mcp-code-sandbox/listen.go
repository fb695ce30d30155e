package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/httpapi"
)

// listen opens the port of the settings. When it is taken, a free one on the same host is opened instead, and note says so, if
// nobody asked for that port, if any port will do (stdio), or if another instance of ours has it and no whole address was
// given (MCP_HTTP_ADDR). Otherwise the operator's choice cannot be honoured, and that is an error.
func listen(ctx context.Context, s *settings, anyPort bool) (l net.Listener, note string, err error) {
	addr := s.listenAddr()
	var lc net.ListenConfig
	l, err = lc.Listen(ctx, "tcp", addr)
	if err == nil {
		return l, "", nil
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil, "", fmt.Errorf("%w (set MCP_HTTP_ADDR to an address of this machine)", err)
	}
	owner, strict := "another program", !s.addrIsDefault()
	if isOurs(ctx, addr) {
		owner, strict = "another mcp-code-sandbox", s.HTTPAddr != ""
	}
	if strict && !anyPort {
		return nil, "", fmt.Errorf("%s is taken by %s; stop it, or choose another address with MCP_HTTP_ADDR or SANDBOX_HTTP_PORT", addr, owner)
	}
	host, _, _ := net.SplitHostPort(addr)
	if l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err != nil {
		return nil, "", err
	}
	return l, fmt.Sprintf("%s is taken by %s; serving on %s instead", addr, owner, l.Addr()), nil
}

// isOurs asks whoever listens on addr which program it is.
func isOurs(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reachable(addr)+"/healthz", nil)
	if err != nil {
		return false
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy from the environment
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var body struct{ Server string }
	err = json.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&body)
	return err == nil && body.Server == httpapi.ServerName
}

// reachable is an address under which a listener can be reached from this machine.
func reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// baseURL is where clients reach the listener: the operator's word, or the address served.
func baseURL(s *settings, l net.Listener) string {
	if s.PublicBaseURL != "" {
		return s.PublicBaseURL
	}
	host, _, err := net.SplitHostPort(s.listenAddr())
	_, port, err2 := net.SplitHostPort(l.Addr().String())
	if err != nil || err2 != nil {
		return "http://" + l.Addr().String()
	}
	return "http://" + reachable(net.JoinHostPort(host, port)) // a name stays the name
}

// allowedHosts are the settings' and the base URL's own.
func allowedHosts(s *settings, base string) []string {
	hosts := s.AllowedHosts
	if u, err := url.Parse(base); err == nil {
		hosts = append(hosts[:len(hosts):len(hosts)], u.Host)
		if s.PublicBaseURL != "" {
			hosts = append(hosts, u.Hostname()) // a proxy may or may not pass the port on
		}
	}
	return hosts
}
