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

// listen opens the configured port. If that is taken, it opens a free one and returns a note,
// provided that the operator chose none, that any port will do, or that another mcp-code-sandbox
// has it and MCP_HTTP_ADDR is unset.
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
		return nil, "", fmt.Errorf("%s is taken by %s; %s", addr, owner, s.fixPort())
	}
	host, _, _ := net.SplitHostPort(addr)
	if l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err != nil {
		return nil, "", err
	}
	return l, fmt.Sprintf("%s is taken by %s; serving on %s instead", addr, owner, l.Addr()), nil
}

// fixPort says how to serve although another program uses the port.
func (s *settings) fixPort() string {
	if s.HTTPAddr != "" {
		return "stop it, or choose another address with MCP_HTTP_ADDR"
	}
	return "stop it, or choose another port with SANDBOX_HTTP_PORT"
}

// isOurs reports whether the program that listens on addr is an mcp-code-sandbox.
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

// reachable returns an address at which this machine can reach a listener.
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

// baseURL returns where clients reach the listener: PUBLIC_BASE_URL, or the listener's address.
func baseURL(s *settings, l net.Listener) string {
	if s.PublicBaseURL != "" {
		return s.PublicBaseURL
	}
	host, _, err := net.SplitHostPort(s.listenAddr())
	_, port, err2 := net.SplitHostPort(l.Addr().String())
	if err != nil || err2 != nil {
		return "http://" + l.Addr().String()
	}
	return "http://" + reachable(net.JoinHostPort(host, port)) // keeps a host name
}

// allowedHosts returns the host names of the settings and of the base URL.
func allowedHosts(s *settings, base string) []string {
	hosts := s.AllowedHosts
	if u, err := url.Parse(base); err == nil {
		hosts = append(hosts[:len(hosts):len(hosts)], u.Host)
		if s.PublicBaseURL != "" {
			hosts = append(hosts, u.Hostname()) // a reverse proxy may remove the port
		}
	}
	return hosts
}
