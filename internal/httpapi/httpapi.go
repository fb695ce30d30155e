// Package httpapi is the program's HTTP face: who may come in, and which door leads where.
//
// It guards (Host and Origin, bearer token, body sizes, panics), serves signed downloads and uploads, health
// and the page, and hands /mcp to the MCP server, /proxy and /api to the execution proxy, and logins to the authorization server. It
// knows no MCP messages and no sandboxes.
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

// ServerName is how /healthz names the program; another instance recognises it by that.
const ServerName = "mcp-code-sandbox"

// Files is what of the executor the file links need.
type Files interface {
	// OpenLink opens the regular file that a link names by the id of the session and the file's name, and never makes the session.
	OpenLink(ctx context.Context, id, name string) (*os.File, fs.FileInfo, error)
	// ReceiveUpload takes the ticket of an upload link and stores body under its name.
	ReceiveUpload(ctx context.Context, ticketID, id, name string, body io.Reader) (executor.FileLink, error)
	// LinkCaller returns whose session a link names by its id; empty when there is no such session.
	LinkCaller(id string) string
}

// Verifier checks the signatures of file links.
type Verifier interface {
	Verify(id, name string, q url.Values) error
	VerifyUpload(id, name string, q url.Values) (ticket string, err error)
}

// Users knows the people who log in.
type Users interface {
	// Verify tells who holds an access token, and until when. Any error means that nobody does; it is [ErrTokenEnded] when somebody did.
	Verify(ctx context.Context, token string) (caller string, expires time.Time, err error)
	// Challenge is what of WWW-Authenticate tells a client how to log in; it may be empty.
	Challenge() string
}

// Config of the handler.
type Config struct {
	// MCP serves /mcp and /mcp/events, behind the token. Nil where MCP speaks elsewhere (stdio).
	MCP    http.Handler
	Files  Files
	Signer Verifier
	// Token is the API token. Without one, nobody gets in.
	Token secret.Value
	// Users may come in besides the token's holder. Nil: nobody else.
	Users Users
	// Proxy serves /proxy/…, whose tokens it checks itself, with the path as it was sent. API serves /api/… to callers. Login serves the
	// authorization server's and the connections' pages to anybody. What is nil is not served.
	Proxy, API, Login http.Handler
	// AllowedHosts are names by which the server may be addressed besides loopback: "example.com",
	// "example.com:8443", "*.example.com" or "*".
	AllowedHosts []string
	// AllowedOrigins are web origins that may call besides loopback and the server's own: "https://app.example.com", or "*".
	AllowedOrigins []string
	// TrustedProxies are the peers whose X-Forwarded-For says who the client is. Nobody else's does.
	TrustedProxies []netip.Prefix
	MaxUploadBytes int64
	// MaxConnections is what the listener is limited to; a quarter of them may transfer files. Default [MaxConnections].
	MaxConnections int
	// Ready starts a sandbox, or says why it cannot. Its answer is kept for some seconds.
	Ready func(ctx context.Context) error
	// Metrics serves /metrics, behind the token; nil: not served.
	Metrics http.Handler
	// Page is what / shows; nil: nothing.
	Page   *Page
	Logger *slog.Logger
}

// Bodies of requests that are a few fields.
const (
	apiBodyLimit   = 64 << 10
	loginBodyLimit = 64 << 10
)

// New returns the handler of the whole server.
func New(cfg Config) http.Handler {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = MaxConnections()
	}
	wrong := newWrongTokens()
	operator := newAuthenticator(cfg.Token, nil, wrong)
	auth := newAuthenticator(cfg.Token, cfg.Users, wrong)
	files := &files{files: cfg.Files, signer: cfg.Signer, maxUpload: cfg.MaxUploadBytes, transfers: newTransfers(cfg.MaxConnections), log: log}

	mux := http.NewServeMux()
	if cfg.Page != nil {
		cfg.Page.register(mux)
	}
	if cfg.MCP != nil {
		mcp := auth.require(takeTime(limitBody(MCPBodyLimit(cfg.MaxUploadBytes), cfg.MCP)))
		mux.Handle("/mcp", mcp)
		mux.Handle("/mcp/", mcp)
	}
	if cfg.Metrics != nil {
		mux.Handle("GET /metrics", operator.require(cfg.Metrics))
	}
	if cfg.API != nil {
		mux.Handle("/api/", auth.require(limitBody(apiBodyLimit, cfg.API)))
	}
	if cfg.Login != nil {
		login := limitBody(loginBodyLimit, cfg.Login)
		for _, path := range []string{"/oauth/", "/connections", "/connections/"} {
			mux.Handle(path, login)
		}
		if cfg.Users != nil {
			for _, path := range []string{"/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource"} {
				mux.Handle(path, login)
				mux.Handle(path+"/", login)
			}
		}
	}
	if cfg.MCP != nil && cfg.Users == nil {
		for _, path := range loginPaths {
			mux.HandleFunc(path, refuseLogin)
		}
	}

	// The mux redirects paths with dot segments before any handler sees them; /files and /proxy must see them to refuse them.
	routes := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.EscapedPath()
		switch {
		case strings.HasPrefix(path, "/files/"):
			files.ServeHTTP(w, r)
		case strings.HasPrefix(path, "/proxy/") && cfg.Proxy != nil:
			if rec, ok := w.(*recorder); ok {
				rec.accepted = connOf(r).hold // the proxy checks its tokens itself
			}
			takeTime(cfg.Proxy).ServeHTTP(w, r) // it has limits of its own
		default:
			mux.ServeHTTP(w, r)
		}
	})

	guarded := newGuard(cfg.AllowedHosts, cfg.AllowedOrigins).wrap(routes)

	// Probes come from orchestrators, by whatever address: exempt from the Host check.
	ready := &readiness{probe: cfg.Ready, now: time.Now, log: log}
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		r = hurry(w, r)
		switch r.URL.Path {
		case "/healthz":
			serveHealth(w, r)
		case "/readyz":
			ready.ServeHTTP(w, r)
		default:
			guarded.ServeHTTP(w, r)
		}
	})
	return forwarded(cfg.TrustedProxies, closeAmbiguous(observe(log, outer)))
}

const maxHeaderBytes = 32 << 10

// NewServer returns the http.Server for a handler, with every timeout that streams allow. There is no write timeout:
// event streams and large downloads take as long as they take. Serve it on a listener of [Limit], which bounds every write.
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
		// "OPTIONS *" is the handler's to refuse, as any other target that is no path.
		DisableGeneralOptionsHandler: true,
	}
}
