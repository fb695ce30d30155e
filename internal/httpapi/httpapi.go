// Package httpapi is the program's HTTP server: it decides who may call and routes requests.
//
// It checks Host and Origin, bearer tokens and body sizes, recovers panics, and serves signed
// downloads and uploads, health and the page. It routes /mcp to the MCP server, /proxy and /api to
// the execution proxy, and logins to the authorization server. It knows no MCP messages and no
// sandboxes.
package httpapi

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/secret"
)

// ServerName identifies the program in /healthz. Other instances recognise it.
const ServerName = "mcp-code-sandbox"

// Files is the part of the executor that file links need.
type Files interface {
	// OpenLink opens the regular file that a link names by session id and file name. It never makes
	// the session.
	OpenLink(id, name string) (*os.File, fs.FileInfo, error)
	// ReceiveUpload takes the ticket of an upload link and stores body under its name.
	ReceiveUpload(ctx context.Context, ticketID, id, name string, body io.Reader) (executor.FileLink, error)
	// LinkCaller returns the owner of the session that a link names, or "" if the session does not
	// exist.
	LinkCaller(id string) string
}

// Verifier checks the signatures of file links.
type Verifier interface {
	Verify(id, name string, q url.Values) error
	VerifyUpload(id, name string, q url.Values) (ticket string, err error)
}

// Users knows the people who log in.
type Users interface {
	// Verify returns the holder of an access token and its expiry. An invalid token is an error,
	// one that was valid once is [ErrTokenEnded], and one that cannot be checked now is
	// [ErrUnchecked].
	Verify(ctx context.Context, token string) (caller string, expires time.Time, err error)
	// Challenge returns the part of WWW-Authenticate that tells clients how to log in; it may be
	// empty.
	Challenge() string
}

// Config configures the handler. A nil handler is not served.
type Config struct {
	// MCP serves /mcp and /mcp/events, behind the token.
	MCP    http.Handler
	Files  Files
	Signer Verifier
	// Token is the API token. If it is empty, only Users may call.
	Token secret.Value
	// Users may call in addition to the token's holder. It may be nil.
	Users Users
	// Proxy serves /proxy/… with the path as it was sent, and checks its own tokens. API serves
	// /api/… to callers. Login serves the pages of the authorization server and of connections to
	// anybody.
	Proxy, API, Login http.Handler
	// AllowedHosts are names of the server in addition to loopback: "example.com",
	// "example.com:8443", "*.example.com" or "*".
	AllowedHosts []string
	// AllowedOrigins are web origins that may call, in addition to loopback and the server's own:
	// "https://app.example.com" or "*".
	AllowedOrigins []string
	// TrustedProxies are the peers that may name the client in an X-Forwarded-For header.
	TrustedProxies []netip.Prefix
	MaxUploadBytes int64
	// MaxConnections is the listener's limit; a quarter of them may transfer files. Default
	// [MaxConnections].
	MaxConnections int
	// Ready returns why the server cannot do its work, or nil. It may start a sandbox. Its answer
	// is kept for some seconds.
	Ready func(ctx context.Context) error
	// Stopping reports whether the server takes no new sessions, and so is not ready. Nil: never.
	Stopping func() bool
	// Metrics serves /metrics, behind the API token.
	Metrics http.Handler
	// Page serves /.
	Page   *Page
	Logger *slog.Logger
}

// smallBodyLimit bounds the bodies of requests to /api and of login forms.
const smallBodyLimit = 64 << 10

// New returns the handler of the whole server.
func New(cfg Config) http.Handler {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = MaxConnections()
	}
	files := &files{files: cfg.Files, signer: cfg.Signer, maxUpload: cfg.MaxUploadBytes,
		transfers: newTransfers(cfg.MaxConnections), log: log}
	mux := newMux(cfg, log)

	// The mux redirects paths with dot segments. /files and /proxy must see them to refuse them.
	routes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.EscapedPath()
		switch {
		case strings.HasPrefix(path, "/files/"):
			files.ServeHTTP(w, r)
		case strings.HasPrefix(path, "/proxy/") && cfg.Proxy != nil:
			if rec, ok := w.(*recorder); ok {
				rec.accepted = connOf(r).hold // the proxy checks its own tokens
			}
			withoutBodyTimeout(cfg.Proxy).ServeHTTP(w, r) // it has its own limits
		default:
			mux.ServeHTTP(w, r)
		}
	})
	guarded := newGuard(cfg.AllowedHosts, cfg.AllowedOrigins).wrap(routes)

	// Orchestrators probe by any address, so health has no Host check.
	health := readOnly(serveHealth)
	ready := readOnly((&readiness{probe: cfg.Ready, stopping: cfg.Stopping, now: time.Now, log: log}).ServeHTTP)
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		r = withBodyTimeout(w, r)
		switch r.URL.Path {
		case "/healthz":
			health(w, r)
		case "/readyz":
			ready(w, r)
		default:
			guarded.ServeHTTP(w, r)
		}
	})
	return forwarded(cfg.TrustedProxies, closeAmbiguous(observe(log, outer)))
}

func newMux(cfg Config, log *slog.Logger) *http.ServeMux {
	wrong := newWrongTokens()
	operator := newAuthenticator(cfg.Token, nil, wrong, log)
	auth := newAuthenticator(cfg.Token, cfg.Users, wrong, log)
	mux := http.NewServeMux()
	if cfg.Page != nil {
		cfg.Page.register(mux)
	}
	if cfg.MCP != nil {
		mcp := auth.require(withoutBodyTimeout(limitBody(MCPBodyLimit(cfg.MaxUploadBytes), cfg.MCP)))
		mux.Handle("/mcp", mcp)
		mux.Handle("/mcp/", mcp)
	}
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", operator.require(cfg.Metrics))
	}
	if cfg.API != nil {
		mux.Handle("/api/", auth.require(limitBody(smallBodyLimit, cfg.API)))
	}
	if cfg.Login != nil {
		paths := []string{"/oauth/", "/connections", "/connections/"}
		if cfg.Users != nil {
			paths = append(paths, "/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/",
				"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/")
		}
		for _, path := range paths {
			mux.Handle(path, limitBody(smallBodyLimit, cfg.Login))
		}
	}
	if cfg.MCP != nil && cfg.Users == nil {
		for _, path := range loginPaths {
			mux.HandleFunc(path, refuseLogin)
		}
	}
	return mux
}

const maxHeaderBytes = 32 << 10

// NewServer returns the http.Server for a handler. It has no write timeout, because event streams
// and large downloads may take any time. Serve it on a listener of [Limit], which bounds each
// write.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ConnContext:       withConn,
		ConnState:         followState,
		// The handler refuses "OPTIONS *", like every target that is not a path.
		DisableGeneralOptionsHandler: true,
	}
}
