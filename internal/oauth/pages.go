package oauth

import (
	"bytes"
	"embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/store"
)

//go:embed pages
var pageFS embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"day": func(t time.Time) string { return t.UTC().Format("2 January 2006") },
}).ParseFS(pageFS, "pages/*.html"))

// frame is the data of every page.
type frame struct {
	Title string
	Base  string // prefix of paths
	Form  string // formToken
	Page  any
}

// show renders a page completely before it sends anything.
func (s *Server) show(w http.ResponseWriter, status int, name string, f frame) error {
	f.Base = s.base.Path
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, f); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w) // an error means that the browser left
	return nil
}

// showError shows a *pageError. It logs any other error, which the person does not see.
func (s *Server) showError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the browser left
	}
	p, ok := errors.AsType[*pageError](err)
	switch {
	case ok:
	case s.store.IsDown(err):
		s.log.Error("the database does not answer", "path", r.URL.Path, "error", err)
		w.Header().Set("Retry-After", "10")
		p = &pageError{http.StatusServiceUnavailable, "Logins cannot be checked now", "Try again in a moment."}
	default:
		s.log.Error("a page failed", "path", r.URL.Path, "error", err)
		p = &pageError{http.StatusInternalServerError, "Something went wrong", "Try again. The server's log says more."}
	}
	w.Header().Set("Content-Security-Policy", policy())
	if err := s.show(w, p.status, "error.html", frame{Title: p.title, Page: p.text}); err != nil {
		http.Error(w, p.title, p.status)
	}
}

// displayName returns how a page names the caller.
func displayName(v visit) string {
	switch {
	case v.caller == localCaller:
		return "holder of the API token"
	case v.user.Email != "":
		return v.user.Email
	case v.user.Name != "":
		return v.user.Name
	}
	return v.user.Subject
}

type consentPage struct {
	User, Client string
	Document     string // the host that vouches for the client
	Target       string // where the answer goes
	Loopback     bool   // Target is on the person's computer
	Request      string
}

func (s *Server) showConsent(w http.ResponseWriter, v visit, a authorization, id string) error {
	p := consentPage{User: displayName(v), Client: a.ClientName, Document: a.Document, Request: id}
	u, err := url.Parse(a.RedirectURI)
	if err != nil {
		return err
	}
	onward := u.Scheme + ":"
	switch u.Scheme {
	case "http":
		p.Loopback, p.Target, onward = true, u.Host, "http://"+u.Host
	case "https":
		p.Target = u.Host
	default:
		p.Target = strings.TrimSuffix(u.Scheme+"://"+u.Host, "//")
	}
	if p.Client == "" {
		p.Client = "An MCP client without a name"
	}
	w.Header().Set("Content-Security-Policy", policy(s.onward(onward)...))
	return s.show(w, http.StatusOK, "consent.html", frame{Title: "Allow access?", Form: v.formToken(), Page: p})
}

// onward returns where the answers of forms may redirect: any https URL, since those redirect
// further, plus the given sources and the login provider if they are not https.
func (s *Server) onward(sources ...string) []string {
	list := []string{"https:"}
	add := func(source string) {
		if !strings.HasPrefix(source, "https:") && !slices.Contains(list, source) && !strings.ContainsAny(source, " ;,") {
			list = append(list, source)
		}
	}
	for _, source := range sources {
		add(source)
	}
	if up := s.cfg.Upstream; s.login != nil {
		for _, raw := range []string{up.Issuer, up.AuthorizationURL} {
			if u, err := url.Parse(raw); err == nil && u.Host != "" {
				add(u.Scheme + "://" + u.Host)
			}
		}
	}
	return list
}

type loginPage struct {
	Provider string // empty: none
	Token    bool   // the API token is accepted
}

func (s *Server) showLogin(w http.ResponseWriter, v visit) error {
	p := loginPage{Token: !s.cfg.APIToken.IsZero()}
	if s.login != nil {
		p.Provider = s.cfg.Upstream.DisplayName
		if u, err := url.Parse(s.cfg.Upstream.Issuer + s.cfg.Upstream.AuthorizationURL); p.Provider == "" && err == nil {
			p.Provider = u.Hostname()
		}
	}
	return s.show(w, http.StatusOK, "login.html", frame{Title: "Log in", Form: v.formToken(), Page: p})
}

type serviceRow struct {
	ServiceState
	Own bool // each caller connects it; otherwise the operator does
}

type connectionsPage struct {
	User, Message string
	Services      []serviceRow
	Apps          []store.Grant
}

func (s *Server) showConnections(w http.ResponseWriter, v visit, p connectionsPage) error {
	var onward []string
	for _, c := range s.cfg.Connections {
		if u, err := url.Parse(c.AuthorizeURL("", "", "")); err == nil && u.Host != "" {
			onward = append(onward, u.Scheme+"://"+u.Host)
		}
	}
	slices.Sort(onward)
	w.Header().Set("Content-Security-Policy", policy(s.onward(onward...)...))
	return s.show(w, http.StatusOK, "connections.html", frame{Title: "Connections", Form: v.formToken(), Page: p})
}

func serveStyle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=3600")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	http.ServeFileFS(w, r, pageFS, "pages/style.css")
}
