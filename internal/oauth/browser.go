package oauth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/store"
)

// A browser has two cookies. The store holds only their digests. One is a secret from the first
// visit, which binds the steps of a login or connection to the browser. The other identifies the
// session, and is new at each login.
const (
	browserCookie = "mcs_browser"
	sessionCookie = "mcs_session"
	maxForm       = 16 << 10
)

// visit is one request of a browser.
type visit struct {
	secret  string // of the browser; empty: none yet
	session string // the session's id; empty: not logged in
	caller  string
	user    store.User // the caller, unless it is localCaller
}

func (v visit) loggedIn() bool { return v.caller != "" }

// isUser reports whether the caller logged in at the upstream provider.
func (v visit) isUser() bool { return v.loggedIn() && v.caller != localCaller }

// browser identifies the browser in the store.
func (v visit) browser() string { return digest(v.secret) }

// derive derives a text from the browser's secret and an id.
func (v visit) derive(purpose, id string) string {
	mac := hmac.New(sha256.New, []byte(v.secret))
	mac.Write([]byte(purpose + "\x00" + id))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// formToken is in every form. Pages of other sites cannot know it.
func (v visit) formToken() string { return v.derive("form", v.session) }

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// newSecret returns 256 random bits.
func newSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// cookieName returns a cookie's name. With https it has the prefix that keeps other hosts of the
// domain and plain http from setting it. Without, it has the port, since servers on one host share
// cookies.
func (s *Server) cookieName(name string) string {
	if s.secure {
		return "__Host-" + name
	}
	return strings.TrimSuffix(name+"_"+s.base.Port(), "_")
}

func (s *Server) setCookie(w http.ResponseWriter, name, value string, age time.Duration) {
	c := &http.Cookie{Name: s.cookieName(name), Value: value, Path: "/", HttpOnly: true, Secure: s.secure, SameSite: http.SameSiteLaxMode}
	switch {
	case value == "":
		c.MaxAge = -1
	case age > 0:
		c.MaxAge = int(age / time.Second)
	}
	http.SetCookie(w, c)
}

// cookie returns the value of a cookie, or "" if it is malformed. Of two with one name, an attacker
// may have planted one: both are ignored.
func (s *Server) cookie(r *http.Request, name string) string {
	list := r.CookiesNamed(s.cookieName(name))
	if len(list) != 1 {
		return ""
	}
	if b, err := base64.RawURLEncoding.DecodeString(list[0].Value); err != nil || len(b) != 32 {
		return ""
	}
	return list[0].Value
}

// visit identifies the browser and the logged-in caller.
func (s *Server) visit(r *http.Request) (visit, error) {
	v := visit{secret: s.cookie(r, browserCookie)}
	token := s.cookie(r, sessionCookie)
	if v.secret == "" || token == "" {
		return v, nil
	}
	ctx := r.Context()
	session, err := s.browserSession(ctx, token)
	if errors.Is(err, store.ErrNotFound) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	if session.Caller != localCaller {
		u, err := s.sessionUser(ctx, session.Caller)
		if errors.Is(err, errNotVouched) {
			return v, nil
		}
		if err != nil {
			return v, err
		}
		v.user = u
	}
	v.session, v.caller = session.ID, session.Caller
	return v, nil
}

// sessionUser returns a user who may stay logged in. It returns errNotVouched if the user has to
// log in again.
func (s *Server) sessionUser(ctx context.Context, caller string) (store.User, error) {
	u, err := s.store.GetUser(ctx, caller)
	if errors.Is(err, store.ErrNotFound) || err == nil && (s.login == nil || !s.allow.email(u.Email)) {
		return u, errNotVouched
	}
	if err != nil {
		return u, err
	}
	if err := s.vouched(ctx, u); err != nil {
		if !errors.Is(err, errNotVouched) {
			s.log.Error("user must log in again: the login provider does not answer", "user", u.Email, "error", err)
		}
		return u, errNotVouched
	}
	return u, nil
}

// browserSession finds the session of a cookie: a user's, or that of the current API token's
// holder.
func (s *Server) browserSession(ctx context.Context, token string) (store.BrowserSession, error) {
	for _, id := range []string{s.sessionID(token, ""), s.sessionID(token, localCaller)} {
		b, err := s.store.GetBrowserSession(ctx, id, s.now())
		if err == nil && s.sessionID(token, b.Caller) != id { // of an older version, without the API token in the id
			err = store.ErrNotFound
		}
		if !errors.Is(err, store.ErrNotFound) {
			return b, err
		}
	}
	return store.BrowserSession{}, store.ErrNotFound
}

// sessionID returns the store's id for a session cookie. For localCaller it depends on the API
// token, so that a new token ends the sessions of the old one. It does not reveal the token: the
// cookie is random.
func (s *Server) sessionID(token, caller string) string {
	if caller == localCaller {
		token += "\x00" + s.cfg.APIToken.Reveal()
	}
	return digest(token)
}

// withSecret gives the browser its secret if it has none.
func (s *Server) withSecret(w http.ResponseWriter, v visit) visit {
	if v.secret == "" {
		v.secret = newSecret()
		s.setCookie(w, browserCookie, v.secret, 0)
	}
	return v
}

// startSession logs a caller in. The session is always new, in case an attacker planted the old
// one.
func (s *Server) startSession(ctx context.Context, w http.ResponseWriter, v visit, caller string) error {
	if v.session != "" {
		if err := s.store.DeleteBrowserSession(ctx, v.session); err != nil {
			return err
		}
	}
	token := newSecret()
	b := store.BrowserSession{ID: s.sessionID(token, caller), Caller: caller, Expires: s.now().Add(sessionTTL)}
	if err := s.store.AddBrowserSession(ctx, b); err != nil {
		return err
	}
	s.setCookie(w, sessionCookie, token, sessionTTL)
	return nil
}

// endSession logs out.
func (s *Server) endSession(ctx context.Context, w http.ResponseWriter, v visit) error {
	s.setCookie(w, sessionCookie, "", 0)
	if v.session == "" {
		return nil
	}
	return s.store.DeleteBrowserSession(ctx, v.session)
}

// remember stores a step of this browser and returns the id with which recall finds it.
func (s *Server) remember(ctx context.Context, v visit, kind string, data []byte) (id string, err error) {
	id = newSecret()
	now := s.now()
	step := store.Request{ID: digest(id), Kind: kind, Browser: v.browser(), Caller: v.caller, Data: data, Expires: now.Add(requestTTL)}
	return id, s.store.AddRequest(ctx, step, now, maxRequests)
}

// recall returns a step once, to the same browser only. The error is a *pageError or the store's.
func (s *Server) recall(ctx context.Context, v visit, kind, id string) (store.Request, error) {
	if v.secret == "" || id == "" {
		return store.Request{}, errForeign
	}
	r, err := s.store.TakeRequest(ctx, kind, digest(id), v.browser(), s.now())
	if errors.Is(err, store.ErrNotFound) {
		return store.Request{}, errForeign
	}
	return r, err
}

// recallAnswer checks the parameters with which a provider or service sends the browser back. It
// returns the step and the state. Its errors are those of recall.
func (s *Server) recallAnswer(ctx context.Context, v visit, kind string, q url.Values) (store.Request, string, error) {
	if len(q["state"]) != 1 || len(q["code"]) > 1 {
		return store.Request{}, "", errForeign
	}
	step, err := s.recall(ctx, v, kind, q.Get("state"))
	return step, q.Get("state"), err
}

// errForeign is shown for a link of another browser, and for a link that is too old.
var errForeign = &pageError{http.StatusBadRequest, "This link cannot be used",
	"It was not made for this browser, was used before, or is too old. Go back to where you started, and start again."}

// pageError is an error that the person at the browser sees.
type pageError struct {
	status      int
	title, text string
}

func (e *pageError) Error() string { return e.title + ": " + e.text }

// handler serves a visit. Its error is shown to the person.
type handler func(w http.ResponseWriter, r *http.Request, v visit) error

// page serves a page.
func (s *Server) page(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", policy())
		header.Set("X-Frame-Options", "DENY")
		header.Set("X-Content-Type-Options", "nosniff")
		// With no-referrer, browsers would send forms with "Origin: null", as other sites do.
		header.Set("Referrer-Policy", "same-origin")
		if r.Method == http.MethodGet && s.misaddressed(r.Host) {
			redirect(w, s.url(r.URL.RequestURI()))
			return
		}
		v, err := s.visit(r)
		if err == nil {
			err = h(w, r, v)
		}
		if err != nil {
			s.showError(w, r, err)
		}
	})
}

// misaddressed reports whether host is another loopback name of this server (localhost, 127.0.0.1).
// The login provider sends the browser back to the public name, where it would not have its
// cookies.
func (s *Server) misaddressed(host string) bool {
	u := url.URL{Host: host}
	return host != s.base.Host && u.Port() == s.base.Port() && hostname.IsLoopback(u.Hostname()) && hostname.IsLoopback(s.base.Hostname())
}

// form serves a form that was sent from our own page, by the browser and session that got the page.
func (s *Server) form(h handler) http.Handler {
	return s.page(func(w http.ResponseWriter, r *http.Request, v visit) error {
		if err := s.guard.Check(r); err != nil {
			return errForged
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			return &pageError{http.StatusBadRequest, "The form cannot be read", "Go back and send it again."}
		}
		sent := []byte(r.PostForm.Get("form"))
		if v.secret == "" || !hmac.Equal(sent, []byte(v.formToken())) {
			return errForged
		}
		return h(w, r, v)
	})
}

var errForged = &pageError{http.StatusForbidden, "The form is out of date",
	"You may have logged in or out since the page was shown. Go back, reload the page, and try again."}

// policy returns a Content-Security-Policy that allows the style sheet and forms to this server.
// onward lists where responses to forms may redirect. Browsers enforce it.
func policy(onward ...string) string {
	return "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action " +
		strings.Join(append([]string{"'self'"}, onward...), " ")
}
