package oauth

import (
	"encoding/json"
	"net/http"
)

// serverMetadata answers as RFC 8414 says.
func (s *Server) serverMetadata(w http.ResponseWriter, _ *http.Request) {
	writeMetadata(w, map[string]any{
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

// resourceMetadata answers as RFC 9728 says.
func (s *Server) resourceMetadata(w http.ResponseWriter, _ *http.Request) {
	writeMetadata(w, map[string]any{
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

func writeMetadata(w http.ResponseWriter, v any) {
	w.Header().Set("Cache-Control", "public, max-age=300")
	writeJSON(w, http.StatusOK, v)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error is the client's going away
}

// api serves an endpoint that programs call, also from a browser's pages of any origin: nothing of it depends on cookies.
func api(method string, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Access-Control-Allow-Origin", "*")
		header.Set("X-Content-Type-Options", "nosniff")
		switch {
		case r.Method == method, method == "GET" && r.Method == "HEAD":
			h(w, r)
		case r.Method == "OPTIONS":
			header.Set("Access-Control-Allow-Methods", method)
			header.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, MCP-Protocol-Version")
			header.Set("Access-Control-Max-Age", "600")
			w.WriteHeader(http.StatusNoContent)
		default:
			header.Set("Allow", method+", OPTIONS")
			writeError(w, &apiError{http.StatusMethodNotAllowed, "invalid_request", "use " + method})
		}
	})
}

// apiError is an error as RFC 6749 shapes it.
type apiError struct {
	status            int
	code, description string
}

func (e *apiError) Error() string { return e.code + ": " + e.description }

func writeError(w http.ResponseWriter, e *apiError) {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, e.status, struct {
		Error       string `json:"error"`
		Description string `json:"error_description,omitempty"`
	}{e.code, e.description})
}
