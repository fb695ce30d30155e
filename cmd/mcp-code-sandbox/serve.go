package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/mcpserver"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/tools"
	"mcp-code-sandbox/internal/version"
	"mcp-code-sandbox/web"
)

type serveCmd struct{}

// Run serves MCP over HTTP until ctx ends. Then it drains, cancels the runs that are left, and
// leaves nothing behind.
func (*serveCmd) Run(ctx context.Context, inv *invocation) error {
	page, err := httpapi.NewPage(web.Files())
	if err != nil {
		return err
	}
	inv.keepReady = true
	f, err := openFrontend(ctx, inv, page)
	if err != nil {
		return err
	}
	if f.services != nil && f.services.users && inv.settings.PublicBaseURL == "" {
		f.log.Warn("people on other machines cannot log in: PUBLIC_BASE_URL is not set",
			"fix", "set it to the https address at which they reach this server")
	}
	banner(inv.stderr, f.app, f.base, isTerminal(inv.stderr))
	f.tasks.start(f.warm)
	served := make(chan error, 1)
	go func() { served <- f.serveHTTP() }()
	f.log.Info("[HTTP] serving", "address", f.listener.Addr().String(), "instance", f.instance.ID())
	select {
	case err = <-served:
	case <-ctx.Done():
		f.drain()
		f.log.Info("shutting down", "ended_runs", f.activeRuns())
	}
	return errors.Join(err, f.close())
}

// frontend is an app with an MCP server and an HTTP server.
type frontend struct {
	*app
	base     string // where clients reach the HTTP server
	listener net.Listener
	http     *http.Server
	mcp      *mcpserver.Server
	undo     func() // restores the memory limit
}

// openFrontend listens and opens everything, but serves nothing yet. Without a page, MCP runs over
// stdio, and HTTP serves file links only, on any port.
func openFrontend(ctx context.Context, inv *invocation, page *httpapi.Page) (_ *frontend, err error) {
	f := &frontend{}
	listener, note, err := listen(ctx, inv.settings, page == nil)
	if err != nil {
		return nil, err
	}
	f.listener, f.base = listener, baseURL(inv.settings, listener)
	if f.app, err = newApp(ctx, inv, f.base); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	f.isolation.closed.CloseServer(listener.Addr())
	if f.mcp, err = newMCP(f.app, page == nil); err != nil {
		return nil, errors.Join(err, f.app.Close(), listener.Close())
	}
	var overHTTP http.Handler
	level := slog.LevelInfo
	if page != nil {
		overHTTP, level = f.mcp.Handler(), slog.LevelWarn
	}
	f.http = httpapi.NewServer(newHandler(f.app, f.base, overHTTP, page), f.log)
	f.undo = limitMemory(inv.env, doctor.System().Memory(), f.log)
	if note != "" {
		f.log.Log(ctx, level, "[HTTP] "+note)
	}
	f.tasks.start(f.reportReadiness)
	return f, nil
}

// newMCP makes the MCP server with the tools. Over stdio, it ends soon after its client.
func newMCP(a *app, overStdio bool) (*mcpserver.Server, error) {
	wanted, err := wantedTools(a.settings.Tools)
	if err != nil {
		return nil, fmt.Errorf("SANDBOX_TOOLS: %w", err)
	}
	opt := tools.Options{
		Logger: a.log, Tools: wanted, MaxTimeout: a.settings.maxExecTimeout(), Handover: a.settings.Handover,
		ResourceLinks: a.settings.ResourceLinks == "on", LinksEnd: overStdio && a.settings.PublicBaseURL == "", ResultBytes: int(a.settings.ResultBytes), Services: a.services.forTools(),
		NoNetwork: a.settings.Network != networkFull, Packages: a.packages != nil, Hosts: a.egress != nil, HostCeiling: a.hostCeiling(),
	}
	return mcpserver.New(mcpserver.Config{
		Version:      version.String(),
		Instructions: tools.Instructions(opt),
		Tools:        func(srv *mcp.Server) { tools.Register(srv, a.executor, opt) },
		MaxBodyBytes: httpapi.MCPBodyLimit(int64(a.settings.MaxUploadBytes)),
		Operator:     session.Local.ID,
		Logger:       a.log,
	})
}

// newHandler makes the HTTP side. mcpHandler and page are nil if MCP runs over stdio.
func newHandler(a *app, base string, mcpHandler http.Handler, page *httpapi.Page) http.Handler {
	proxy, api, login := a.services.handlers()
	var users httpapi.Users
	if a.services != nil && a.services.users {
		users = people{a.services.login, a.store}
	}
	s := a.settings
	return httpapi.New(httpapi.Config{
		MCP: mcpHandler, Page: page, Files: a.executor, Signer: a.signer, Proxy: proxy, API: api, Login: login,
		Users: users, Token: a.keys.token,
		AllowedHosts: allowedHosts(s, base), AllowedOrigins: s.AllowedOrigins, TrustedProxies: prefixes(s.TrustedProxies),
		MaxUploadBytes: int64(s.MaxUploadBytes), Ready: a.ready, Stopping: a.stopping.Load, Logger: a.log,
		Metrics: promhttp.HandlerFor(a.metrics, promhttp.HandlerOpts{}),
	})
}

// serveHTTP serves until close.
func (f *frontend) serveHTTP() error {
	limited := httpapi.Limit(f.listener, httpapi.MaxConnections())
	f.showShares("connections", limited.Shares())
	f.showShares("starts", f.sessions.Starts())
	for name, pool := range f.mcp.Shares() {
		f.showShares(name, pool)
	}
	return f.http.Serve(limited)
}

// drain lets active runs finish within SANDBOX_DRAIN_S, while the server takes no new sessions and
// is not ready. Files, results and links stay available.
func (f *frontend) drain() {
	if f.settings.Drain <= 0 {
		return
	}
	f.log.Info("waiting for active runs before shutting down; a second signal ends the server at once", "at_most", f.settings.Drain.String())
	f.stopping.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), f.settings.Drain)
	defer cancel()
	f.executor.Drain(ctx)
	f.mcp.Drain(ctx) // the answers
}

// activeRuns returns how many runs close would end.
func (f *frontend) activeRuns() (n int) {
	for _, info := range f.sessions.Infos() {
		n += info.Runs
	}
	return n
}

// close ends MCP calls and streams first, because the HTTP server waits for them.
func (f *frontend) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := f.mcp.Close(ctx)
	if serr := f.http.Shutdown(ctx); serr != nil {
		f.http.Close()
		err = errors.Join(err, serr)
	}
	err = errors.Join(err, f.app.Close())
	f.listener.Close() // already closed if it was served
	f.undo()
	return err
}
