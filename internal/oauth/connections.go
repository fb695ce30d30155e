package oauth

import (
	"errors"
	"net/http"
	"net/url"

	"mcp-code-sandbox/internal/store"
)

// connections shows services and clients with access, or how to log in.
func (s *Server) connections(w http.ResponseWriter, r *http.Request, v visit) error {
	v = s.withSecret(w, v)
	if !v.loggedIn() {
		return s.showLogin(w, v)
	}
	ctx := r.Context()
	page := connectionsPage{User: displayName(v), Message: messages[r.URL.Query().Get("done")]}
	if s.cfg.Services != nil {
		for _, state := range s.cfg.Services(ctx, v.caller) {
			_, own := s.cfg.Connections[state.Name]
			page.Services = append(page.Services, serviceRow{ServiceState: state, Own: own})
		}
	}
	if v.isUser() {
		var err error
		if page.Apps, err = s.store.ListGrants(ctx, v.caller, s.now()); err != nil {
			return err
		}
	}
	return s.showConnections(w, v, page)
}

// messages are the texts that the page can show after a step, by the parameter "done".
var messages = map[string]string{
	"connected":    "Connected.",
	"disconnected": "Disconnected.",
	"forgotten":    "Disconnected here, but the service did not confirm. Remove the access there, too.",
	"refused":      "Not connected: the service refused, or you canceled.",
	"failed":       "Not connected: the service did not answer as it should. The server's log says more.",
	"revoked":      "Access revoked.",
}

func (s *Server) redirectWithMessage(w http.ResponseWriter, message string) error {
	redirect(w, s.path("/connections?done="+message))
	return nil
}

// connect sends the browser to the service. State and PKCE verifier are bound to browser and
// caller.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, v visit) error {
	service, connection, err := s.connection(r, v)
	if err != nil {
		return err
	}
	state, err := s.remember(r.Context(), v, kindConnect, []byte(service))
	if err != nil {
		return err
	}
	redirect(w, connection.AuthorizeURL(state, v.derive("connect", state), s.callbackURL(service)))
	return nil
}

// connection returns the service that a form of a logged-in caller names.
func (s *Server) connection(r *http.Request, v visit) (service string, c Connection, err error) {
	service = r.PathValue("service")
	c, ok := s.cfg.Connections[service]
	switch {
	case !v.loggedIn():
		return "", nil, errForged
	case !ok:
		return "", nil, errNoService
	}
	return service, c, nil
}

var errNoService = &pageError{http.StatusNotFound, "Service not found", "Go back, reload the page, and try again."}

// callbackURL returns where a service sends the browser back. Each service has its own, so that a
// service cannot answer in the name of another (RFC 9700, 4.4.2).
func (s *Server) callbackURL(service string) string {
	return s.url("/connections/callback/" + url.PathEscape(service))
}

// connectCallback handles a service's answer. It must come from the browser that was sent there,
// and the caller must still be logged in.
func (s *Server) connectCallback(w http.ResponseWriter, r *http.Request, v visit) error {
	if !s.limits.requests.Allow(r) {
		return errBusy
	}
	service := r.PathValue("service")
	connection, ok := s.cfg.Connections[service]
	if !ok {
		return errNoService
	}
	q := r.URL.Query()
	step, state, err := s.recallAnswer(r.Context(), v, kindConnect, q)
	if err != nil {
		return err
	}
	if !v.loggedIn() || step.Caller != v.caller || string(step.Data) != service {
		return errForeign
	}
	if q.Has("error") || q.Get("code") == "" {
		return s.redirectWithMessage(w, "refused")
	}
	if err := connection.Exchange(r.Context(), v.caller, q.Get("code"), v.derive("connect", state), s.callbackURL(service)); err != nil {
		s.log.Error("connecting a service failed", "service", service, "caller", v.caller, "error", err)
		return s.redirectWithMessage(w, "failed")
	}
	s.log.Info("service connected", "service", service, "caller", v.caller, "user", v.user.Email)
	return s.redirectWithMessage(w, "connected")
}

func (s *Server) disconnect(w http.ResponseWriter, r *http.Request, v visit) error {
	service, connection, err := s.connection(r, v)
	if err != nil {
		return err
	}
	if err := connection.Disconnect(r.Context(), v.caller); err != nil {
		s.log.Warn("service disconnected here only: it could not revoke the access", "service", service, "caller", v.caller, "error", err)
		return s.redirectWithMessage(w, "forgotten")
	}
	s.log.Info("service disconnected", "service", service, "caller", v.caller, "user", v.user.Email)
	return s.redirectWithMessage(w, "disconnected")
}

// revokeApp revokes an MCP client's access.
func (s *Server) revokeApp(w http.ResponseWriter, r *http.Request, v visit) error {
	if !v.isUser() {
		return errForged
	}
	err := s.store.RevokeGrant(r.Context(), v.caller, r.PathValue("grant"), s.now())
	if err != nil && !errors.Is(err, store.ErrNotFound) { // it has ended, or is another caller's
		return err
	}
	s.log.Info("MCP client's access revoked", "user", v.user.Email)
	return s.redirectWithMessage(w, "revoked")
}
