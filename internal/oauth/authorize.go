package oauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"mcp-code-sandbox/internal/store"
)

const maxAuthorizeQuery = 8 << 10

// authorization is a checked authorization request of an MCP client.
type authorization struct {
	Client, ClientName, Document string
	RedirectURI, State           string
	Challenge, Scope             string
	Query                        string // as received, to start again with another account
	askAgain                     bool
}

// Kinds of steps for remember and recall.
const (
	kindLogin   = "login"
	kindConsent = "consent"
	kindConnect = "connect"
)

// authorize serves a browser that an MCP client sent. If the client or its redirect URI is wrong,
// the person sees the error, and nothing is sent to the URI.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request, v visit) error {
	ctx := r.Context()
	if !s.limits.requests.Allow(r) {
		return errBusy
	}
	if len(r.URL.RawQuery) > maxAuthorizeQuery {
		return refused("The request is too long.")
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return refused("The request's parameters cannot be read.")
	}
	for _, name := range []string{"client_id", "redirect_uri"} {
		if len(q[name]) != 1 || q.Get(name) == "" {
			return refused("The request must have exactly one " + name + ".")
		}
	}
	// Fetch documents for logged-in users only.
	if !v.isUser() && isDocumentID(q.Get("client_id")) {
		if err := checkDocumentID(q.Get("client_id")); err != nil {
			return refused(sentence(err))
		}
		return s.startLogin(w, r, v, "/oauth/authorize?"+r.URL.RawQuery, false)
	}
	c, err := s.client(ctx, q.Get("client_id"))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !isDocumentID(q.Get("client_id")) && err != errNoClient { // the store's
			return err
		}
		return refused(sentence(err))
	}
	if !matchRedirect(c.Redirects, q.Get("redirect_uri")) {
		return refused("The client has not registered its redirect_uri.")
	}
	a, bad := s.parseAuthorization(c, q)
	if bad != nil {
		return s.answerError(ctx, w, a, bad, v)
	}
	a.Query = r.URL.RawQuery
	if !v.isUser() {
		return s.startLogin(w, r, v, "/oauth/authorize?"+r.URL.RawQuery, false)
	}
	if !a.askAgain && strings.HasPrefix(a.RedirectURI, "https://") {
		// Skip the question for https only: any program may listen on a loopback port (RFC 8252,
		// 8.6).
		ok, err := s.store.HasConsent(ctx, a.consentOf(v.caller), s.now().Add(-consentTTL))
		if err != nil {
			return err
		}
		if ok {
			return s.issueCode(ctx, w, a, v)
		}
	}
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	id, err := s.remember(ctx, v, kindConsent, data)
	if err != nil {
		return err
	}
	return s.showConsent(w, v, a, id)
}

// parseAuthorization checks the parameters other than client_id and redirect_uri.
func (s *Server) parseAuthorization(c client, q url.Values) (authorization, *apiError) {
	a := authorization{Client: c.ID, ClientName: c.Name, Document: c.Document, RedirectURI: q.Get("redirect_uri"), Scope: Scope}
	if len(q["state"]) == 1 {
		a.State = q.Get("state")
	}
	for name, values := range q {
		if len(values) > 1 && name != "resource" {
			return a, badRequest("invalid_request", "a parameter is repeated")
		}
	}
	switch {
	case q.Get("response_type") != "code":
		return a, badRequest("unsupported_response_type", "response_type must be code")
	case q.Get("response_mode") != "" && q.Get("response_mode") != "query":
		return a, badRequest("invalid_request", "response_mode must be query")
	case q.Has("request") || q.Has("request_uri"):
		return a, badRequest("request_not_supported", "send the parameters themselves")
	case q.Get("code_challenge_method") != "S256":
		return a, badRequest("invalid_request", "PKCE is required: code_challenge_method must be S256")
	}
	a.Challenge = q.Get("code_challenge")
	if b, err := base64.RawURLEncoding.Strict().DecodeString(a.Challenge); err != nil || len(b) != 32 {
		return a, badRequest("invalid_request", "PKCE is required: code_challenge must be the base64url text of a SHA-256 sum")
	}
	if !s.isResource(q["resource"]) {
		return a, s.wrongResource()
	}
	for p := range strings.FieldsSeq(q.Get("prompt")) {
		a.askAgain = a.askAgain || p == "consent"
	}
	return a, nil
}

func (a authorization) consentOf(caller string) store.Consent {
	return store.Consent{Caller: caller, Client: a.Client, Redirect: consentKey(a.RedirectURI), Scope: a.Scope}
}

// consent handles the person's decision.
func (s *Server) consent(w http.ResponseWriter, r *http.Request, v visit) error {
	ctx := r.Context()
	step, err := s.recall(ctx, v, kindConsent, r.PostForm.Get("request"))
	if err != nil {
		return err
	}
	if !v.isUser() || step.Caller != v.caller {
		return errForeign
	}
	var a authorization
	if err := json.Unmarshal(step.Data, &a); err != nil {
		return err
	}
	switch r.PostForm.Get("decision") {
	case "allow":
		if err := s.store.AddConsent(ctx, a.consentOf(v.caller), s.now()); err != nil {
			return err
		}
		return s.issueCode(ctx, w, a, v)
	case "switch":
		if err := s.endSession(ctx, w, v); err != nil {
			return err
		}
		return s.startLogin(w, r, visit{secret: v.secret}, "/oauth/authorize?"+a.Query, true)
	default:
		s.log.Info("MCP client refused by the user", "user", v.user.Email, "client_id", a.Client)
		s.answer(w, a, url.Values{"error": {"access_denied"}, "error_description": {"the user refused"}})
		return nil
	}
}

func (s *Server) issueCode(ctx context.Context, w http.ResponseWriter, a authorization, v visit) error {
	s.purge(ctx)
	code, now := newSecret(), s.now()
	err := s.store.AddCode(ctx, store.Code{
		ID: digest(code), Grant: newSecret(), Expires: now.Add(codeTTL), Caller: v.caller, Client: a.Client, ClientName: a.ClientName,
		RedirectURI: a.RedirectURI, Challenge: a.Challenge, Resource: s.cfg.Resource, Scope: a.Scope,
	}, now)
	if err != nil {
		return err
	}
	s.log.Info("MCP client allowed", "user", v.user.Email, "client_id", a.Client, "client_name", a.ClientName)
	s.answer(w, a, url.Values{"code": {code}})
	return nil
}

// answer sends the browser back to the client, with the issuer (RFC 9207).
func (s *Server) answer(w http.ResponseWriter, a authorization, q url.Values) {
	if a.State != "" {
		q.Set("state", a.State)
	}
	q.Set("iss", s.cfg.Issuer)
	redirect(w, withQuery(a.RedirectURI, q))
}

// answerError redirects to the client with an error, but only to loopback or to a URI that the user
// has allowed. Otherwise this server would be an open redirector (RFC 9700, 4.11.2), so it shows
// the error.
func (s *Server) answerError(ctx context.Context, w http.ResponseWriter, a authorization, bad *apiError, v visit) error {
	_, ok := withoutLoopbackPort(a.RedirectURI)
	if !ok && v.isUser() {
		var err error
		if ok, err = s.store.HasConsent(ctx, a.consentOf(v.caller), s.now().Add(-consentTTL)); err != nil {
			return err
		}
	}
	if !ok {
		return refused("Its request is wrong: " + bad.description + " (" + bad.code + ").")
	}
	s.answer(w, a, url.Values{"error": {bad.code}, "error_description": {bad.description}})
	return nil
}

func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

func refused(text string) *pageError {
	return &pageError{http.StatusBadRequest, "This client is not allowed", text}
}

var errBusy = &pageError{http.StatusTooManyRequests, "Too many requests", "Wait a moment, and try again."}

// sentence returns an error's message as a sentence.
func sentence(err error) string {
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
