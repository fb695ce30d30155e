package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/instance"
	"mcp-code-sandbox/internal/oauth"
	"mcp-code-sandbox/internal/proxy"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/serviceconfig"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/tools"
)

// releaseTimeout bounds the end of a run's rights; another process may hold the database.
const releaseTimeout = 10 * time.Second

// services are the outside services of the configuration file, and the people who use them.
type services struct {
	proxy *proxy.Proxy
	login *oauth.Server // nil: nobody logs in, and nothing is to be connected
	users bool          // people log in
	names []string
	app   *app
}

// newServices builds what the configuration file asks for; nil when there is no file.
func (a *app) newServices(ctx context.Context, baseURL string, registry prometheus.Registerer) (*services, error) {
	s := a.settings
	if s.Config == "" {
		return nil, nil
	}
	file, err := loadServices(s.Config, a.env)
	if err != nil {
		return nil, fmt.Errorf("SANDBOX_CONFIG: %w", err)
	}
	root, older, err := rootKeys(s)
	if err != nil {
		return nil, err
	}
	vault, err := credential.NewVault(ctx, a.store, root, older...)
	if err != nil {
		return nil, err
	}
	audit, err := proxy.OpenAudit(filepath.Join(s.Root, "audit", "proxy.jsonl"))
	if err != nil {
		return nil, err
	}
	a.onClose(func(context.Context) error { return audit.Close() })

	v := &services{app: a, users: file.Login.Kind != ""}
	var list []proxy.Service
	connections := map[string]oauth.Connection{}
	for _, svc := range file.Services {
		if svc.OAuth != nil {
			c := vault.OAuth(*svc.OAuth, nil)
			svc.Credential, svc.ConnectURL = c, strings.TrimRight(baseURL, "/")+"/connections#"+svc.Name
			connections[svc.Name] = &connection{Connection: c, service: svc.Name, services: v}
		}
		if !svc.Disabled {
			v.names = append(v.names, svc.Name)
		}
		list = append(list, svc.Service)
	}
	v.proxy, err = proxy.New(proxy.Config{
		Services: list, Keys: executiontoken.NewKeys(root, "execution token", older...), Store: a.store, Audit: audit, BaseURL: baseURL,
		Instance: a.instance.ID(), Alive: func(id string) bool { return instance.Alive(s.Root, id) },
		Registerer: registry, Logger: a.log, User: v.email, Closed: a.isolation.closed,
		MaxCalls: max(httpapi.MaxConnections()/4, 64), Operator: session.Local.ID,
	})
	if err != nil {
		return nil, err
	}
	a.showShares("proxy_calls", v.proxy.Shares())
	if !v.users && len(connections) == 0 {
		return v, nil
	}
	v.login, err = oauth.New(ctx, oauth.Config{
		Issuer: baseURL, Resource: strings.TrimRight(baseURL, "/") + "/mcp", Upstream: file.Login, Store: a.store, Vault: vault,
		Keys: executiontoken.NewKeys(root, "access", older...), APIToken: a.keys.token,
		Services: v.states, Connections: connections, Logger: a.log, Closed: a.isolation.closed,
	})
	return v, err
}

// rootKeys are what every other key of proxy and logins is derived from: the present one, and the one before.
func rootKeys(s *settings) (root []byte, older [][]byte, err error) {
	now := s.JWTSecret
	if now.IsZero() {
		if now, _, err = secret.Load(filepath.Join(s.Root, "keys"), "jwt-secret"); err != nil {
			return nil, nil, err
		}
	}
	if root, err = executiontoken.Root(now); err != nil {
		return nil, nil, fmt.Errorf("JWT_SECRET: %w", err)
	}
	if !s.JWTSecretPrevious.IsZero() {
		old, err := executiontoken.Root(s.JWTSecretPrevious)
		if err != nil {
			return nil, nil, fmt.Errorf("JWT_SECRET_PREVIOUS: %w", err)
		}
		older = append(older, old)
	}
	return root, older, nil
}

// email is how log and audit trail name a caller.
func (v *services) email(caller string) string {
	if v.login == nil || !v.users {
		return ""
	}
	return v.login.Email(caller)
}

// states is what the connections page shows.
func (v *services) states(ctx context.Context, caller string) []oauth.ServiceState {
	var list []oauth.ServiceState
	for _, s := range v.proxy.Services(ctx, caller) {
		list = append(list, oauth.ServiceState(s))
	}
	return list
}

// connection ends, with a caller's connection, the execution tokens that were made for it.
type connection struct {
	*credential.Connection
	service  string
	services *services
}

var _ oauth.Connection = (*connection)(nil)

func (c *connection) Disconnect(ctx context.Context, caller string) error {
	return errors.Join(c.Connection.Disconnect(ctx, caller), c.services.proxy.RevokeService(ctx, caller, c.service))
}

// any reports whether there is a service to call. A file may be there for its logins alone.
func (v *services) any() bool { return v != nil && len(v.names) > 0 }

// dial serves the proxy to a sandbox; nil without services.
func (v *services) dial() func(context.Context, string, io.ReadWriteCloser) {
	if !v.any() {
		return nil
	}
	return v.proxy.ServeSandbox
}

// granter is the engine's side; nil without services.
func (v *services) granter() executor.Services {
	if !v.any() {
		return nil
	}
	return granter{v}
}

// forTools is the tools' side; nil without services.
func (v *services) forTools() *tools.Services {
	if !v.any() {
		return nil
	}
	return &tools.Services{Names: v.names, List: v.app.executor.Services}
}

// handlers are what httpapi serves; nil what there is not.
func (v *services) handlers() (proxy, api, login http.Handler) {
	if v == nil {
		return nil, nil, nil
	}
	if v.login != nil {
		login = v.login.Handler()
	}
	return v.proxy, v.proxy.API(), login
}

// granter lets runs call services.
type granter struct{ *services }

var _ executor.Services = granter{}

func (g granter) List(ctx context.Context, caller session.Caller) []executor.ServiceState {
	var list []executor.ServiceState
	for _, s := range g.proxy.Services(ctx, caller.ID) {
		list = append(list, executor.ServiceState(s))
	}
	return list
}

func (g granter) Grant(ctx context.Context, caller session.Caller, runID, sandboxID string, ttl time.Duration, rs []executor.ServiceRequest) (executor.Grant, error) {
	requests := make([]proxy.GrantRequest, len(rs))
	for i, r := range rs {
		requests[i] = proxy.GrantRequest{Service: r.Name, Paths: r.Paths, Methods: r.Methods, MaxRequests: r.MaxRequests}
	}
	tokens, err := g.proxy.IssueForRun(ctx, caller.ID, runID, sandboxID, ttl, requests)
	if err != nil {
		return executor.Grant{}, g.refusal(ctx, caller, rs, err)
	}
	grant := executor.Grant{Env: map[string]string{}}
	for _, t := range tokens {
		address := "http://" + sandbox.ForwardAddr + "/proxy/" + t.Service
		prefix := serviceconfig.VariablePrefix(t.Service)
		grant.Env[prefix+"_PROXY_URL"], grant.Env[prefix+"_TOKEN"] = address, t.Token
		if len(tokens) == 1 {
			grant.Env["PROXY_URL"], grant.Env["EXECUTION_TOKEN"] = address, t.Token
		}
		grant.Secrets = append(grant.Secrets, t.Token)
	}
	return grant, nil
}

// refusal puts the proxy's words into the tools'.
func (g granter) refusal(ctx context.Context, caller session.Caller, rs []executor.ServiceRequest, err error) error {
	var e *proxy.Error
	if !errors.As(err, &e) {
		return err
	}
	_, message, _ := strings.Cut(e.Message, ": ") // the HTTP status is in front
	message = strings.NewReplacer("allowed_paths", "paths", "allowed_methods", "methods").Replace(message)
	refused := &executor.Error{Code: executor.CodeBackendUnavailable, Message: message, Err: err}
	switch e.Code {
	case proxy.CodeNotConnected: // between the check and now
		for _, s := range g.List(ctx, caller) {
			for _, r := range rs {
				if s.Name == r.Name && !s.Connected {
					return executor.NotConnected(s)
				}
			}
		}
		refused.Code, refused.ConnectURL = executor.CodeServiceNotConnected, e.ConnectURL
	case proxy.CodeNotConfigured, proxy.CodeNotEnabled:
		refused.Code = executor.CodeUnknownService
	case proxy.CodeInvalidRequest:
		refused.Code = executor.CodeInvalidServices
	}
	return refused
}

func (g granter) Release(runID string) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err := g.proxy.RevokeRun(ctx, runID); err != nil {
		// They end by themselves, and work in their sandbox alone.
		g.app.log.Error("execution_proxy: Cannot revoke the tokens of a run", "run_id", runID, "err", err)
	}
}

// people is who may come in besides the API token's holder.
type people struct{ *oauth.Server }

func (p people) Verify(ctx context.Context, token string) (caller string, expires time.Time, err error) {
	id, err := p.Server.Verify(ctx, token)
	if errors.Is(err, oauth.ErrTokenEnded) {
		err = httpapi.ErrTokenEnded
	}
	return id.Caller, id.Expires, err
}
