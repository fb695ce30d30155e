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

// A browser has two cookies. One is a secret that it keeps from its first visit: steps that belong together (a login that was started
// and its answer) are bound to it, and what must not be guessed is derived from it. The other says who is logged in, and is new at each
// login. The store has only digests of both.
const (
	browserCookie = "mcs_browser"
	sessionCookie = "mcs_session"
	maxForm       = 16 << 10
)

// visit is one request of a browser.
type visit struct {
	secret  string // the browser's; empty if it has none
	session string // id of the session; empty if nobody is logged in
	caller  string
	user    store.User // the caller, unless it is the API token's holder
}

// loggedIn reports whether somebody is.
func (v visit) loggedIn() bool { return v.caller != "" }

// isUser reports whether it is somebody who came by the upstream provider.
func (v visit) isUser() bool { return v.loggedIn() && v.caller != localCaller }

// browser identifies the browser in the store.
func (v visit) browser() string { return digest(v.secret) }

// derive makes a text that only this browser's secret and the id together give.
func (v visit) derive(purpose, id string) string {
	mac := hmac.New(sha256.New, []byte(v.secret))
	mac.Write([]byte(purpose + "\x00" + id))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// formToken is on every form of a page, and nobody else's page can know it.
func (v visit) formToken() string { return v.derive("form", v.session) }

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// newSecret is 256 random bits.
func newSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// cookieName is protected by the browser where https allows it: neither another host of the domain nor plain http can set it. Elsewhere
// it has the port, since browsers send one server's cookies to all on a host.
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

// cookie returns a cookie that looks like one of ours. With two of a name, somebody has planted one: neither counts.
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

// visit reads who is there.
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
		v.user, err = s.store.GetUser(ctx, session.Caller)
		if errors.Is(err, store.ErrNotFound) || err == nil && (s.login == nil || !s.allow.email(v.user.Email)) {
			v.user = store.User{}
			return v, nil
		}
		if err != nil {
			return v, err
		}
		if err := s.vouched(ctx, v.user); err != nil {
			if !errors.Is(err, errNotVouched) {
				s.log.Error("a user has to log in again: the login provider cannot be asked", "user", v.user.Email, "error", err)
			}
			v.user = store.User{}
			return v, nil
		}
	}
	v.session, v.caller = session.ID, session.Caller
	return v, nil
}

// browserSession finds the session of a cookie: a user's, or that of the holder of the API token that is valid now.
func (s *Server) browserSession(ctx context.Context, token string) (store.BrowserSession, error) {
	for _, id := range []string{s.sessionID(token, ""), s.sessionID(token, localCaller)} {
		b, err := s.store.GetBrowserSession(ctx, id, s.now())
		if err == nil && s.sessionID(token, b.Caller) != id { // a login of before the token was part of the id
			err = store.ErrNotFound
		}
		if !errors.Is(err, store.ErrNotFound) {
			return b, err
		}
	}
	return store.BrowserSession{}, store.ErrNotFound
}

// sessionID is how the store names the session of a cookie. The API token is part of the name of its holder's: a new token ends
// every login with the one before. The cookie is random, so the digest tells nothing of the token.
func (s *Server) sessionID(token, caller string) string {
	if caller == localCaller {
		token += "\x00" + s.cfg.APIToken.Reveal()
	}
	return digest(token)
}

// known makes sure that the browser has its secret.
func (s *Server) known(w http.ResponseWriter, v visit) visit {
	if v.secret == "" {
		v.secret = newSecret()
		s.setCookie(w, browserCookie, v.secret, 0)
	}
	return v
}

// enter logs a caller in, under a new session: one that somebody planted before is worth nothing.
func (s *Server) enter(ctx context.Context, w http.ResponseWriter, v visit, caller string) error {
	if v.session != "" {
		if err := s.store.DeleteBrowserSession(ctx, v.session); err != nil {
			return err
		}
	}
	token := newSecret()
	if err := s.store.AddBrowserSession(ctx, store.BrowserSession{ID: s.sessionID(token, caller), Caller: caller, Expires: s.now().Add(sessionTTL)}); err != nil {
		return err
	}
	s.setCookie(w, sessionCookie, token, sessionTTL)
	return nil
}

// leave logs out.
func (s *Server) leave(ctx context.Context, w http.ResponseWriter, v visit) error {
	s.setCookie(w, sessionCookie, "", 0)
	if v.session == "" {
		return nil
	}
	return s.store.DeleteBrowserSession(ctx, v.session)
}

// remember stores a step for the browser to come back to, and returns what it has to bring along.
func (s *Server) remember(ctx context.Context, v visit, kind string, data []byte) (id string, err error) {
	id = newSecret()
	now := s.now()
	err = s.store.AddRequest(ctx, store.Request{ID: digest(id), Kind: kind, Browser: v.browser(), Caller: v.caller, Data: data, Expires: now.Add(requestTTL)}, now, maxRequests)
	return id, err
}

// recall returns such a step, once, to the same browser only. The error is a *pageError, or the store's.
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

// errForeign is for somebody who follows another's link as well as for somebody who took too long.
var errForeign = &pageError{http.StatusBadRequest, "This link cannot be used",
	"It was not made for this browser, was used before, or is too old. Go back to where you started, and start again."}

// pageError is trouble that the person at the browser is told.
type pageError struct {
	status      int
	title, text string
}

func (e *pageError) Error() string { return e.title + ": " + e.text }

// handler serves a visit; what it returns is shown.
type handler func(w http.ResponseWriter, r *http.Request, v visit) error

// page serves what a browser gets.
func (s *Server) page(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", policy())
		header.Set("X-Frame-Options", "DENY")
		header.Set("X-Content-Type-Options", "nosniff")
		// Not no-referrer: with it, browsers send forms with "Origin: null", which cannot be told from a stranger's.
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

// misaddressed reports whether a person on this computer has called it by another of its names (localhost, 127.0.0.1). The login provider
// sends the browser back to the public one, where it would not have its cookies.
func (s *Server) misaddressed(host string) bool {
	u := url.URL{Host: host}
	return host != s.base.Host && u.Port() == s.base.Port() && hostname.IsLoopback(u.Hostname()) && hostname.IsLoopback(s.base.Hostname())
}

// form serves what a form of ours sends: from our own page, in the browser that was shown it, to whom is logged in there.
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
	"It does not come from this page as it was shown to you here; you may have logged in or out since. Go back, reload the page, and try again."}

// policy allows a page its style sheet and its forms: to here, and on from here to the given addresses (browsers check where a form's
// answer redirects to, too).
func policy(onward ...string) string {
	return "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action " +
		strings.Join(append([]string{"'self'"}, onward...), " ")
}
