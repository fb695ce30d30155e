package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/audit"
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
	"mcp-code-sandbox/internal/store"
	"mcp-code-sandbox/internal/tools"
)

// releaseTimeout bounds the revocation of a run's tokens, since another process may lock the
// database.
const releaseTimeout = 10 * time.Second

// services are the outside services and the login of the configuration file.
type services struct {
	proxy *proxy.Proxy
	login *oauth.Server // nil: nobody logs in or connects services
	users bool          // people log in
	names []string      // of the enabled services
	app   *app
}

// newServices returns the services of the configuration file, or nil if it has none and no login.
func (a *app) newServices(ctx context.Context, file *serviceconfig.File, trail *audit.Trail, baseURL string) (*services, error) {
	if len(file.Services) == 0 && file.Login.Kind == "" {
		return nil, nil
	}
	s := a.settings
	root, older, err := rootKeys(s)
	if err != nil {
		return nil, err
	}
	vault, err := credential.NewVault(ctx, a.store, root, older...)
	if err != nil {
		return nil, err
	}
	base := strings.TrimRight(baseURL, "/")
	v := &services{app: a, users: file.Login.Kind != ""}
	var list []proxy.Service
	connections := map[string]oauth.Connection{}
	for _, svc := range file.Services {
		if svc.OAuth != nil {
			c := vault.OAuth(*svc.OAuth, nil)
			svc.Credential, svc.ConnectURL = c, base+"/connections#"+svc.Name
			connections[svc.Name] = &connection{Connection: c, service: svc.Name, services: v}
		}
		if !svc.Disabled {
			v.names = append(v.names, svc.Name)
		}
		list = append(list, svc.Service)
	}
	v.proxy, err = proxy.New(proxy.Config{
		Services: list, Keys: executiontoken.NewKeys(root, "execution token", older...),
		Store: a.store, Audit: trail, BaseURL: baseURL,
		Instance: a.instance.ID(), Alive: func(id string) bool { return instance.Alive(s.Root, id) },
		Registerer: a.metrics, Logger: a.log, User: v.email, Closed: a.isolation.closed,
		MaxCalls: max(httpapi.MaxConnections()/4, 64), Operator: session.Local.ID,
	})
	if err != nil {
		return nil, err
	}
	a.showShares("proxy_calls", v.proxy.Shares())
	if !v.users && len(connections) == 0 {
		return v, nil
	}
	v.login, err = oauth.New(oauth.Config{
		Issuer: baseURL, Resource: base + "/mcp", Upstream: file.Login, Store: a.store, Vault: vault,
		Keys: executiontoken.NewKeys(root, "access", older...), APIToken: a.keys.token,
		Services: v.states, Connections: connections, Logger: a.log, Closed: a.isolation.closed,
	})
	return v, err
}

// rootKeys returns the current and the previous key from which the keys of proxy and login are
// derived.
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

// email returns the e-mail address of a caller, or "".
func (v *services) email(caller string) string {
	if v == nil || v.login == nil || !v.users {
		return ""
	}
	return v.login.Email(caller)
}

// states returns the rows of the connections page.
func (v *services) states(ctx context.Context, caller string) []oauth.ServiceState {
	var list []oauth.ServiceState
	for _, s := range v.proxy.Services(ctx, caller) {
		list = append(list, oauth.ServiceState(s))
	}
	return list
}

// connection revokes a caller's execution tokens when the caller disconnects the service.
type connection struct {
	*credential.Connection
	service  string
	services *services
}

var _ oauth.Connection = (*connection)(nil)

func (c *connection) Disconnect(ctx context.Context, caller string) error {
	return errors.Join(c.Connection.Disconnect(ctx, caller), c.services.proxy.RevokeService(ctx, caller, c.service))
}

// any reports whether a service is enabled. A file may configure the login only.
func (v *services) any() bool { return v != nil && len(v.names) > 0 }

// granter returns the executor's view, or nil without services.
func (v *services) granter() executor.Services {
	if !v.any() {
		return nil
	}
	return granter{v}
}

// forTools returns the tools' view, or nil without services.
func (v *services) forTools() *tools.Services {
	if !v.any() {
		return nil
	}
	return &tools.Services{Names: v.names, List: granter{v}.List}
}

// handlers returns what httpapi serves. A handler is nil if it is not configured.
func (v *services) handlers() (proxy, api, login http.Handler) {
	if v == nil {
		return nil, nil, nil
	}
	if v.login != nil {
		login = v.login.Handler()
	}
	return v.proxy, v.proxy.API(), login
}

// granter issues and revokes the tokens of runs.
type granter struct{ *services }

var _ executor.Services = granter{}

func (g granter) List(ctx context.Context, caller session.Caller) []executor.ServiceState {
	var list []executor.ServiceState
	for _, s := range g.proxy.Services(ctx, caller.ID) {
		list = append(list, executor.ServiceState(s))
	}
	return list
}

func (g granter) Grant(ctx context.Context, caller session.Caller, runID, sandboxID string, ttl time.Duration,
	rs []executor.ServiceRequest) (executor.Grant, error) {
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

// toolFields maps the fields of the proxy's API to those of the tools.
var toolFields = map[string]string{proxy.FieldPaths: "paths: ", proxy.FieldMethods: "methods: "}

// refusal converts the proxy's error to the executor's.
func (g granter) refusal(ctx context.Context, caller session.Caller, rs []executor.ServiceRequest, err error) error {
	e, ok := errors.AsType[*proxy.Error](err)
	if !ok {
		return err
	}
	refused := &executor.Error{Code: executor.CodeBackendUnavailable, Message: toolFields[e.Field] + e.Detail, Err: err}
	switch e.Code {
	case proxy.CodeNotConnected: // since the executor checked
		for _, s := range g.List(ctx, caller) {
			if !s.Connected && slices.ContainsFunc(rs, func(r executor.ServiceRequest) bool { return r.Name == s.Name }) {
				return executor.NotConnected(s)
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
		// The tokens expire soon, and are valid in their sandbox only.
		g.app.log.Error("execution_proxy: Cannot revoke the tokens of a run", "run_id", runID, "error", err)
	}
}

// people verifies the access tokens of users.
type people struct {
	*oauth.Server
	store *store.Store
}

func (p people) Verify(ctx context.Context, token string) (caller string, expires time.Time, err error) {
	id, err := p.Server.Verify(ctx, token)
	switch {
	case errors.Is(err, oauth.ErrTokenEnded):
		err = httpapi.ErrTokenEnded
	case err != nil && !errors.Is(err, oauth.ErrInvalidToken): // the store's
		err = fmt.Errorf("%w: %w", httpapi.ErrUnchecked, err)
	}
	// httpapi compares it with this machine's clock.
	return id.Caller, time.Now().Add(id.Expires.Sub(p.store.Now())), err
}
