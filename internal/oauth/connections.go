package oauth

import (
	"errors"
	"net/http"
	"net/url"

	"mcp-code-sandbox/internal/store"
)

// connections shows what is connected and who has access, or how to log in.
func (s *Server) connections(w http.ResponseWriter, r *http.Request, v visit) error {
	v = s.known(w, v)
	if !v.loggedIn() {
		return s.showLogin(w, v)
	}
	ctx := r.Context()
	page := connectionsPage{User: who(v), Message: messages[r.URL.Query().Get("done")]}
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

// messages are what can be told after a step; what is not listed is not shown.
var messages = map[string]string{
	"connected":    "Connected.",
	"disconnected": "Disconnected.",
	"forgotten":    "Disconnected here. The service could not be told: remove the access there, too.",
	"refused":      "Not connected: the service refused, or you cancelled.",
	"failed":       "Not connected: the service did not answer as it should. The server's log says more.",
	"revoked":      "Access revoked.",
}

func (s *Server) done(w http.ResponseWriter, what string) error {
	redirect(w, s.path("/connections?done="+what))
	return nil
}

// callbackURL is where a service sends the browser back. Each service has its own: an answer that one gives in the name of another
// arrives at the wrong one (RFC 9700, 4.4.2).
func (s *Server) callbackURL(service string) string {
	return s.url("/connections/callback/" + url.PathEscape(service))
}

var errNoService = &pageError{http.StatusNotFound, "Service not found", "Go back, reload the page, and try again."}

// connect sends the browser to the service. State and PKCE's verifier are bound to the browser and to who is logged in.
func (s *Server) connect(w http.ResponseWriter, r *http.Request, v visit) error {
	service := r.PathValue("service")
	connection, ok := s.cfg.Connections[service]
	switch {
	case !v.loggedIn():
		return errForged
	case !ok:
		return errNoService
	}
	state, err := s.remember(r.Context(), v, kindConnect, []byte(service))
	if err != nil {
		return err
	}
	redirect(w, connection.AuthorizeURL(state, v.derive("connect", state), s.callbackURL(service)))
	return nil
}

// connectCallback takes a service's answer: in the browser that was sent there, for the caller who was logged in, and still is.
func (s *Server) connectCallback(w http.ResponseWriter, r *http.Request, v visit) error {
	if !s.limits.requests.Allow(r) {
		return errBusy
	}
	q := r.URL.Query()
	service := r.PathValue("service")
	connection, ok := s.cfg.Connections[service]
	if !ok {
		return errNoService
	}
	if len(q["state"]) != 1 || len(q["code"]) > 1 {
		return errForeign
	}
	state := q.Get("state")
	step, err := s.recall(r.Context(), v, kindConnect, state)
	if err != nil {
		return err
	}
	if !v.loggedIn() || step.Caller != v.caller || string(step.Data) != service {
		return errForeign
	}
	if q.Has("error") || q.Get("code") == "" {
		return s.done(w, "refused")
	}
	if err := connection.Exchange(r.Context(), v.caller, q.Get("code"), v.derive("connect", state), s.callbackURL(service)); err != nil {
		s.log.Error("connecting a service failed", "service", service, "caller", v.caller, "error", err)
		return s.done(w, "failed")
	}
	s.log.Info("service connected", "service", service, "caller", v.caller, "user", v.user.Email)
	return s.done(w, "connected")
}

func (s *Server) disconnect(w http.ResponseWriter, r *http.Request, v visit) error {
	service := r.PathValue("service")
	connection, ok := s.cfg.Connections[service]
	switch {
	case !v.loggedIn():
		return errForged
	case !ok:
		return errNoService
	}
	if err := connection.Disconnect(r.Context(), v.caller); err != nil {
		s.log.Warn("a service was disconnected, and could not be told", "service", service, "caller", v.caller, "error", err)
		return s.done(w, "forgotten")
	}
	s.log.Info("service disconnected", "service", service, "caller", v.caller, "user", v.user.Email)
	return s.done(w, "disconnected")
}

// revokeApp ends an MCP client's access.
func (s *Server) revokeApp(w http.ResponseWriter, r *http.Request, v visit) error {
	if !v.isUser() {
		return errForged
	}
	err := s.store.RevokeGrant(r.Context(), v.caller, r.PathValue("grant"), s.now())
	if err != nil && !errors.Is(err, store.ErrNotFound) { // not found: it has ended meanwhile, or is none of theirs
		return err
	}
	s.log.Info("MCP client's access revoked", "user", v.user.Email)
	return s.done(w, "revoked")
}
