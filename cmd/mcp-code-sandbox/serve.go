package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/mcpserver"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/tools"
	"mcp-code-sandbox/internal/version"
	"mcp-code-sandbox/web"
)

type serveCmd struct{}

// Run serves until ctx ends. Then runs are cancelled, sandboxes ended, and nothing is left.
func (*serveCmd) Run(ctx context.Context, inv *invocation) error {
	s := inv.settings
	l, note, err := listen(ctx, s, false)
	if err != nil {
		return err
	}
	defer l.Close()
	base := baseURL(s, l)
	inv.keepReady = true
	a, err := newApp(ctx, inv, base)
	if err != nil {
		return err
	}
	m, err := newMCP(a)
	if err != nil {
		return errors.Join(err, a.Close())
	}
	defer limitMemory(inv.env, doctor.System().Memory(), a.log)()
	if note != "" {
		a.log.Warn("[HTTP] " + note)
	}
	banner(inv.stderr, a, base, isTerminal(inv.stderr))
	a.tasks.start(a.reportReadiness)
	a.tasks.start(a.warm)

	page, err := httpapi.NewPage(web.Files())
	if err != nil {
		return errors.Join(err, a.Close())
	}
	server := httpapi.NewServer(newHandler(a, base, m.Handler(), page), a.log)
	limited := httpapi.Limit(l, httpapi.MaxConnections())
	a.showShares("connections", limited.Shares())
	a.showShares("starts", a.sessions.Starts())
	for name, pool := range m.Shares() {
		a.showShares(name, pool)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(limited) }()
	a.log.Info("[HTTP] serving", "address", l.Addr().String(), "instance", a.instance.ID())
	select {
	case err = <-served:
	case <-ctx.Done():
		a.log.Info("shutting down")
	}
	return errors.Join(err, shutdown(server, m), a.Close())
}

// warm makes what sandboxes share before the first run needs it, of the runners there are now.
func (a *app) warm(ctx context.Context) {
	if p := a.isolation.pool; p != nil {
		p.Cool(a.environments.runners().Names())
	}
	for _, r := range a.environments.runners() {
		if r.Zygote != nil {
			a.isolation.warm(ctx, a.sessions.Spec(r))
		}
	}
}

// newMCP makes the MCP server with the tools.
func newMCP(a *app) (*mcpserver.Server, error) {
	wanted, err := wantedTools(a.settings.Tools)
	if err != nil {
		return nil, fmt.Errorf("SANDBOX_TOOLS: %w", err)
	}
	opt := tools.Options{
		Logger: a.log, Tools: wanted, MaxTimeout: a.settings.maxExecTimeout(), Handover: time.Duration(a.settings.Handover),
		ResourceLinks: a.settings.ResourceLinks == "on", Services: a.services.forTools(),
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

// newHandler is the whole HTTP side; mcpHandler and page, which calls it, are nil where MCP speaks over stdio.
func newHandler(a *app, base string, mcpHandler http.Handler, page *httpapi.Page) http.Handler {
	proxy, api, login := a.services.handlers()
	var users httpapi.Users
	if a.services != nil && a.services.users {
		users = people{a.services.login}
	}
	return httpapi.New(httpapi.Config{
		Users: users, Proxy: proxy, API: api, Login: login,
		MCP: mcpHandler, Files: a.executor, Signer: a.signer, Token: a.keys.token,
		AllowedHosts: allowedHosts(a.settings, base), AllowedOrigins: a.settings.AllowedOrigins, TrustedProxies: prefixes(a.settings.TrustedProxies),
		MaxUploadBytes: int64(a.settings.MaxUploadBytes), Ready: a.ready, Metrics: a.metrics, Page: page, Logger: a.log,
	})
}

// shutdown ends calls and streams first: the HTTP server waits for them.
func shutdown(server *http.Server, m *mcpserver.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := m.Close(ctx)
	if serr := server.Shutdown(ctx); serr != nil {
		server.Close()
		err = errors.Join(err, serr)
	}
	return err
}

// reportReadiness tries a sandbox once, so that the log says at the start what would otherwise be learnt at the first run.
func (a *app) reportReadiness(ctx context.Context) {
	checks := a.isolation.Probe(ctx)
	if ctx.Err() != nil {
		return
	}
	lacks := "code can be run here, but not with everything: "
	if err := a.judge(checks); err != nil {
		a.log.Error("no code can be run here; mcp-code-sandbox doctor says more", "error", err)
		lacks = ""
	}
	for _, c := range checks {
		if c.Status == sandbox.Warn && (c.Name != "network" || a.settings.Network != "off") {
			a.log.Warn(lacks+c.Name+": "+c.Detail, "fix", c.Fix)
		}
	}
	for _, p := range a.environments.missing() {
		a.log.Warn("a runner is missing something", "runner", p.Runner, "problem", p.Problem, "fix", p.Fix)
	}
}
