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

// frame is what every page has.
type frame struct {
	Title string
	Base  string // of the paths
	Form  string // the token of its forms
	Page  any
}

// show renders a page. It is rendered whole before anything is sent.
func (s *Server) show(w http.ResponseWriter, status int, name string, f frame) error {
	f.Base = s.base.Path
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, f); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = b.WriteTo(w) // an error is the browser's going away
	return nil
}

// showError tells the person at the browser what is wrong; faults of ours are told to the log.
func (s *Server) showError(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody is there
	}
	var p *pageError
	if !errors.As(err, &p) {
		s.log.Error("a page failed", "path", r.URL.Path, "error", err)
		p = &pageError{http.StatusInternalServerError, "Something went wrong here", "Try again. The server's log says more."}
	}
	w.Header().Set("Content-Security-Policy", policy())
	if err := s.show(w, p.status, "error.html", frame{Title: p.title, Page: p.text}); err != nil {
		http.Error(w, p.title, p.status)
	}
}

// who is how a page names the one who is logged in.
func who(v visit) string {
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
	Document     string // host that vouches for the client
	Target       string // where the answer goes
	Loopback     bool   // to a program on the person's computer
	Request      string
}

func (s *Server) showConsent(w http.ResponseWriter, v visit, a authorization, id string) error {
	p := consentPage{User: who(v), Client: a.ClientName, Document: a.Document, Request: id}
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
		p.Target = u.Scheme + "://" + u.Host
		p.Target = strings.TrimSuffix(p.Target, "//")
	}
	if p.Client == "" {
		p.Client = "An MCP client without a name"
	}
	w.Header().Set("Content-Security-Policy", policy(s.onward(onward)...))
	return s.show(w, http.StatusOK, "consent.html", frame{Title: "Allow access?", Form: v.formToken(), Page: p})
}

// onward lists the addresses to which a form's answer may lead: any https address, since those redirect further, and one that is not.
// "switch" on the consent page leads to the login provider.
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
	Provider string // empty: there is none
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
	Own bool // each caller connects it; else it is the operator's
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
