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

// client is an MCP client. It has registered itself, or its id is the URL of a metadata document.
type client struct {
	ID, Name  string
	Redirects []string
	Document  string // the host of the metadata document, which vouches for the client; or ""
}

// clientMetadata are the fields of RFC 7591 that this server uses.
type clientMetadata struct {
	ClientID      string   `json:"client_id,omitempty"`
	ClientName    string   `json:"client_name,omitempty"`
	RedirectURIs  []string `json:"redirect_uris"`
	AuthMethod    string   `json:"token_endpoint_auth_method,omitempty"`
	GrantTypes    []string `json:"grant_types,omitempty"`
	ResponseTypes []string `json:"response_types,omitempty"`
}

// check returns an error of RFC 7591, or nil.
func (m *clientMetadata) check() *apiError {
	if len(m.RedirectURIs) == 0 || len(m.RedirectURIs) > maxRedirects {
		return badRequest("invalid_redirect_uri", "redirect_uris must have 1 to %d entries", maxRedirects)
	}
	for i, raw := range m.RedirectURIs {
		if err := checkRedirectURI(raw); err != nil {
			return badRequest("invalid_redirect_uri", "redirect_uris[%d]: %v", i, err)
		}
	}
	if m.GrantTypes != nil && !slices.Contains(m.GrantTypes, "authorization_code") {
		return badRequest("invalid_client_metadata", "grant_types must contain authorization_code")
	}
	if m.ResponseTypes != nil && !slices.Contains(m.ResponseTypes, "code") {
		return badRequest("invalid_client_metadata", "response_types must contain code")
	}
	return nil
}

// register registers a client (RFC 7591). The client gets an id but no secret, even if it asks for
// one: a program on a person's computer cannot keep it.
func (s *Server) register(w http.ResponseWriter, r *http.Request) error {
	if !s.limits.registrations.Allow(r) {
		return tooManyRequests(w, "60", "too many registrations, try again in a minute")
	}
	var m clientMetadata
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRegistration))
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil {
		return badRequest("invalid_client_metadata", "the body must be a JSON object of at most %d bytes", maxRegistration)
	}
	if e := m.check(); e != nil {
		return e
	}
	now := s.now()
	c := store.Client{ID: "mcp_" + strings.ToLower(rand.Text()), Name: cleanName(m.ClientName), Redirects: m.RedirectURIs, Created: now}
	switch err := s.store.AddClient(r.Context(), c, maxClients, now.Add(-unusedTTL)); {
	case errors.Is(err, store.ErrFull):
		return &apiError{http.StatusServiceUnavailable, "temporarily_unavailable",
			"too many clients are registered; use a client id metadata document"}
	case err != nil:
		return fmt.Errorf("register a client: %w", err)
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
	return nil
}

// errNoClient is the error for an unknown client_id.
var errNoClient = errors.New("the client_id is unknown: the client may have been removed because it was not used; " +
	"remove this server from the client and add it again")

// client returns the client with an id. The person at the browser sees the error.
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

// cleanName returns a name to show: one short line, without characters that hide or reverse others.
func cleanName(name string) string {
	name = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(name, "\uFFFD"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r) // such as U+202E
	}), " ")
	if runes := []rune(name); len(runes) > maxClientName {
		name = string(runes[:maxClientName]) + "…"
	}
	return name
}
