package oauth

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"mcp-code-sandbox/internal/store"
)

const (
	maxClientID     = 2000
	maxClientName   = 80 // characters
	maxRedirects    = 20
	maxRegistration = 16 << 10
)

// client is an MCP client: one that registered itself, or one that is described by a document at its id.
type client struct {
	ID, Name  string
	Redirects []string
	// Document is the host at which the client's description is kept, and which thereby vouches for it. Nobody vouches for the others.
	Document string
}

// clientMetadata is how a client describes itself (RFC 7591). What else it says is not used.
type clientMetadata struct {
	ClientID      string   `json:"client_id,omitempty"`
	ClientName    string   `json:"client_name,omitempty"`
	RedirectURIs  []string `json:"redirect_uris"`
	AuthMethod    string   `json:"token_endpoint_auth_method,omitempty"`
	GrantTypes    []string `json:"grant_types,omitempty"`
	ResponseTypes []string `json:"response_types,omitempty"`
}

// check tells what is wrong with the description, as an apiError of RFC 7591.
func (m *clientMetadata) check() error {
	refuse := func(code, format string, args ...any) error {
		return &apiError{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
	}
	if len(m.RedirectURIs) == 0 || len(m.RedirectURIs) > maxRedirects {
		return refuse("invalid_redirect_uri", "redirect_uris must have 1 to %d entries", maxRedirects)
	}
	for i, raw := range m.RedirectURIs {
		if err := checkRedirectURI(raw); err != nil {
			return refuse("invalid_redirect_uri", "redirect_uris[%d]: %v", i, err)
		}
	}
	if m.GrantTypes != nil && !slices.Contains(m.GrantTypes, "authorization_code") {
		return refuse("invalid_client_metadata", "grant_types must contain authorization_code")
	}
	if m.ResponseTypes != nil && !slices.Contains(m.ResponseTypes, "code") {
		return refuse("invalid_client_metadata", "response_types must contain code")
	}
	return nil
}

// register answers a client that registers itself (RFC 7591). It gets an id and no secret, whatever method it asked for: a program on
// somebody's computer cannot keep one.
func (s *Server) register(w http.ResponseWriter, r *http.Request) {
	if !s.limits.registrations.Allow(r) {
		w.Header().Set("Retry-After", "60")
		writeError(w, &apiError{http.StatusTooManyRequests, "temporarily_unavailable", "too many registrations, try again in a minute"})
		return
	}
	var m clientMetadata
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRegistration))
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil {
		writeError(w, &apiError{http.StatusBadRequest, "invalid_client_metadata", fmt.Sprintf("the body must be a JSON object of at most %d bytes", maxRegistration)})
		return
	}
	if err := m.check(); err != nil {
		writeError(w, err.(*apiError))
		return
	}
	now := s.now()
	c := store.Client{ID: "mcp_" + strings.ToLower(rand.Text()), Name: cleanName(m.ClientName), Redirects: m.RedirectURIs, Created: now}
	switch err := s.store.AddClient(r.Context(), c, maxClients, now.Add(-unusedTTL)); {
	case errors.Is(err, store.ErrFull):
		writeError(w, &apiError{http.StatusServiceUnavailable, "temporarily_unavailable", "too many clients are registered; use a client id metadata document"})
		return
	case err != nil:
		s.fail(w, "registering a client", err)
		return
	}
	s.log.Info("MCP client registered", "client_id", c.ID, "client_name", c.Name)
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusCreated, struct {
		clientMetadata
		IssuedAt int64 `json:"client_id_issued_at"`
	}{clientMetadata{
		ClientID: c.ID, ClientName: c.Name, RedirectURIs: c.Redirects, AuthMethod: "none",
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
	}, now.Unix()})
}

// fail answers an API call with a fault of ours.
func (s *Server) fail(w http.ResponseWriter, what string, err error) {
	s.log.Error(what+" failed", "error", err)
	writeError(w, &apiError{http.StatusInternalServerError, "server_error", "something went wrong here; the server's log says more"})
}

// errNoClient says that nobody is known by an id.
var errNoClient = errors.New("no client is known by that client_id: it may have been removed because nobody used it; remove this server from the client and add it again")

// client returns who has an id. The error is for the person at the browser to read.
func (s *Server) client(ctx context.Context, id string) (client, error) {
	if isDocumentID(id) {
		return s.documents.get(ctx, id)
	}
	if len(id) > maxClientID {
		return client{}, errNoClient
	}
	c, err := s.store.GetClient(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return client{}, errNoClient
	}
	return client{ID: c.ID, Name: c.Name, Redirects: c.Redirects}, err
}

// cleanName makes a client's name fit to be shown: one short line, without characters that hide or turn around others.
func cleanName(name string) string {
	name = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(name, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) // IsPrint is false for control and format characters, such as U+202E
	}), " ")
	if runes := []rune(name); len(runes) > maxClientName {
		name = string(runes[:maxClientName]) + "…"
	}
	return name
}
