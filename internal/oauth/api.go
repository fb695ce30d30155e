package oauth

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// api serves an endpoint for programs, including scripts of any origin: it does not use cookies.
func (s *Server) api(method string, h func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Access-Control-Allow-Origin", "*")
		header.Set("X-Content-Type-Options", "nosniff")
		switch {
		case r.Method == method, method == "GET" && r.Method == "HEAD":
			if err := h(w, r); err != nil {
				s.writeError(w, r, err)
			}
		case r.Method == "OPTIONS":
			header.Set("Access-Control-Allow-Methods", method)
			header.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, MCP-Protocol-Version")
			header.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
		default:
			header.Set("Allow", method+", OPTIONS")
			s.writeError(w, r, &apiError{http.StatusMethodNotAllowed, "invalid_request", "use " + method})
		}
	})
}

// apiError is an error response of RFC 6749.
type apiError struct {
	status            int
	code, description string
}

func (e *apiError) Error() string { return e.code + ": " + e.description }

// badRequest returns an apiError with status 400.
func badRequest(code, format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

func tooManyRequests(w http.ResponseWriter, retryAfter, description string) *apiError {
	w.Header().Set("Retry-After", retryAfter)
	return &apiError{http.StatusTooManyRequests, "temporarily_unavailable", description}
}

// writeError answers with an apiError. It logs any other error, which the client does not see.
func (s *Server) writeError(w http.ResponseWriter, r *http.Request, err error) {
	e, ok := errors.AsType[*apiError](err)
	switch {
	case ok:
	case s.store.IsDown(err):
		s.log.Error("the database does not answer", "path", r.URL.Path, "error", err)
		w.Header().Set("Retry-After", "10")
		e = &apiError{http.StatusServiceUnavailable, "temporarily_unavailable", "logins cannot be checked now; try again in 10 seconds"}
	default:
		s.log.Error("a request failed", "path", r.URL.Path, "error", err)
		e = &apiError{http.StatusInternalServerError, "server_error", "something went wrong here; the server's log says more"}
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, e.status, struct {
		Error       string `json:"error"`
		Description string `json:"error_description,omitempty"`
	}{e.code, e.description})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client left
}

// serverMetadata implements RFC 8414.
func (s *Server) serverMetadata(w http.ResponseWriter, _ *http.Request) error {
	return writeMetadata(w, map[string]any{
		"issuer":                                         s.cfg.Issuer,
		"authorization_endpoint":                         s.url("/oauth/authorize"),
		"token_endpoint":                                 s.url("/oauth/token"),
		"registration_endpoint":                          s.url("/oauth/register"),
		"revocation_endpoint":                            s.url("/oauth/revoke"),
		"scopes_supported":                               []string{Scope, "offline_access"},
		"response_types_supported":                       []string{"code"},
		"response_modes_supported":                       []string{"query"},
		"grant_types_supported":                          []string{"authorization_code", "refresh_token"},
		"token_endpoint_auth_methods_supported":          []string{"none"},
		"revocation_endpoint_auth_methods_supported":     []string{"none"},
		"code_challenge_methods_supported":               []string{"S256"},
		"authorization_response_iss_parameter_supported": true,
		"client_id_metadata_document_supported":          true,
	})
}

// resourceMetadata implements RFC 9728.
func (s *Server) resourceMetadata(w http.ResponseWriter, _ *http.Request) error {
	return writeMetadata(w, map[string]any{
		"resource":                 s.cfg.Resource,
		"authorization_servers":    []string{s.cfg.Issuer},
		"scopes_supported":         []string{Scope},
		"bearer_methods_supported": []string{"header"},
		"resource_name":            "MCP Code Sandbox",
	})
}

func (s *Server) resourceMetadataURL() string {
	return s.resource.Scheme + "://" + s.resource.Host + "/.well-known/oauth-protected-resource" + s.resource.Path
}

func writeMetadata(w http.ResponseWriter, v any) error {
	w.Header().Set("Cache-Control", "public, max-age=300")
	writeJSON(w, http.StatusOK, v)
	return nil
}
