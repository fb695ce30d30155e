package oauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"mcp-code-sandbox/internal/store"
)

const maxAuthorizeQuery = 8 << 10

// authorization is what an MCP client asks for, once it has been checked.
type authorization struct {
	Client, ClientName, Document string
	RedirectURI, State           string
	Challenge, Scope             string
	Query                        string // as it came, to ask again
	askAgain                     bool
}

// Kinds of remembered steps.
const (
	kindLogin   = "login"
	kindConsent = "consent"
	kindConnect = "connect"
)

// authorize answers a browser that an MCP client sent. What is wrong with client or address is told to the person; only after that
// is anything sent to the address.
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
	// Nobody makes us fetch a document without having logged in.
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
		return refused(sentence(err))
	}
	if !matchRedirect(c.Redirects, q.Get("redirect_uri")) {
		return refused("The client has not registered the address to which the answer would go (redirect_uri).")
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
		// Who answers at an https address is certain. Any program on a computer could wait at a loopback port, so there the person
		// is asked each time (RFC 8252, 8.6).
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

// parseAuthorization checks what is left once it is known who asks and where the answer goes.
func (s *Server) parseAuthorization(c client, q url.Values) (authorization, *apiError) {
	a := authorization{Client: c.ID, ClientName: c.Name, Document: c.Document, RedirectURI: q.Get("redirect_uri"), Scope: Scope}
	refuse := func(code, text string) (authorization, *apiError) { return a, &apiError{0, code, text} }
	if len(q["state"]) == 1 {
		a.State = q.Get("state")
	}
	for name, values := range q {
		if len(values) > 1 && name != "resource" {
			return refuse("invalid_request", "a parameter is repeated")
		}
	}
	switch {
	case q.Get("response_type") != "code":
		return refuse("unsupported_response_type", "response_type must be code")
	case q.Get("response_mode") != "" && q.Get("response_mode") != "query":
		return refuse("invalid_request", "response_mode must be query")
	case q.Has("request") || q.Has("request_uri"):
		return refuse("request_not_supported", "send the parameters themselves")
	case q.Get("code_challenge_method") != "S256":
		return refuse("invalid_request", "PKCE is required: code_challenge_method must be S256")
	}
	a.Challenge = q.Get("code_challenge")
	if b, err := base64.RawURLEncoding.Strict().DecodeString(a.Challenge); err != nil || len(b) != 32 {
		return refuse("invalid_request", "PKCE is required: code_challenge must be the base64url text of a SHA-256 sum")
	}
	if !s.rightResource(q["resource"]) {
		return refuse("invalid_target", "resource must be "+s.cfg.Resource)
	}
	for p := range strings.FieldsSeq(q.Get("prompt")) {
		a.askAgain = a.askAgain || p == "consent"
	}
	return a, nil
}

// rightResource reports whether what a client wants a token for is the one resource that there is. Not saying means the same.
func (s *Server) rightResource(list []string) bool {
	for _, raw := range list {
		u, err := url.Parse(raw)
		if err != nil || strings.Contains(raw, "#") || u.User != nil || u.RawQuery != "" ||
			!strings.EqualFold(u.Scheme, s.resource.Scheme) || !strings.EqualFold(u.Host, s.resource.Host) ||
			strings.TrimSuffix(u.EscapedPath(), "/") != strings.TrimSuffix(s.resource.EscapedPath(), "/") {
			return false
		}
	}
	return true
}

func (a authorization) consentOf(caller string) store.Consent {
	return store.Consent{Caller: caller, Client: a.Client, Redirect: consentKey(a.RedirectURI), Scope: a.Scope}
}

// consent takes the person's decision.
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
		if err := s.leave(ctx, w, v); err != nil {
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

// answer sends the browser back to the client, with who answers (RFC 9207).
func (s *Server) answer(w http.ResponseWriter, a authorization, q url.Values) {
	if a.State != "" {
		q.Set("state", a.State)
	}
	q.Set("iss", s.cfg.Issuer)
	redirect(w, withQuery(a.RedirectURI, q))
}

// answerError tells the client what is wrong. Whoever registers a client could make of that a link on our name that leads anywhere, so a
// browser is sent only to its own computer, and to where its user has allowed it (RFC 9700, 4.11.2); else the person is told.
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
	return &pageError{http.StatusBadRequest, "This client cannot be let in", text}
}

var errBusy = &pageError{http.StatusTooManyRequests, "Too many requests", "Wait a moment, and try again."}

// sentence makes a message that stands alone of an error.
func sentence(err error) string {
	var p *pageError
	if errors.As(err, &p) {
		return p.text
	}
	text := err.Error()
	return strings.ToUpper(text[:1]) + text[1:] + "."
}
