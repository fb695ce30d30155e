// Package door serves the connections that sandboxes open to the server. A sandbox has no network:
// whatever code may reach outside, it reaches through a room behind the door.
//
// The door only routes. It knows the sandbox from the connection, never from what arrives on it; a
// room decides which run the request belongs to and what that run may do. A room that is not
// configured does not exist.
package door

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"mcp-code-sandbox/internal/httpconn"
)

// Room serves requests of sandboxes. Its methods are safe for concurrent use.
type Room interface {
	// ServeSandbox answers a request from a sandbox. The request is as the code sent it: no path is
	// cleaned.
	ServeSandbox(w http.ResponseWriter, r *http.Request, sandboxID string)
}

// Egress connects code to hosts by name. As a Room it serves CONNECT, and requests for a URL
// (absolute-form) as HTTP clients send them to a proxy.
type Egress interface {
	Room
	// ServeName serves a connection that code made to host, a name and a port, through the agent's
	// resolver. It returns when the connection or ctx has ended.
	ServeName(ctx context.Context, sandboxID, host string, conn net.Conn)
}

// Config of a Door.
type Config struct {
	// Rooms serve the paths below their names: "proxy" serves /proxy/…
	Rooms  map[string]Room
	Egress Egress       // nil: code reaches no host by name
	Logger *slog.Logger // nil: silent
}

// Door routes what sandboxes send. It is safe for concurrent use.
type Door struct{ cfg Config }

// New returns a Door.
func New(cfg Config) *Door {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Door{cfg}
}

// Serve serves a connection from a sandbox until it or ctx ends, then closes it. host is empty, or
// the name and port that the code connected to.
func (d *Door) Serve(ctx context.Context, sandboxID, host string, conn net.Conn) {
	defer conn.Close()
	switch {
	case sandboxID == "":
	case host == "":
		httpconn.Serve(ctx, conn, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			d.route(w, r, sandboxID)
		}), d.cfg.Logger)
	case d.cfg.Egress != nil:
		d.cfg.Egress.ServeName(ctx, sandboxID, host, conn)
	}
}

func (d *Door) route(w http.ResponseWriter, r *http.Request, sandboxID string) {
	if r.Method == http.MethodConnect || r.URL.Host != "" || r.URL.Opaque != "" {
		if d.cfg.Egress == nil {
			refuse(w, http.StatusForbidden, "network_denied", "This server gives no network to code (SANDBOX_NETWORK=off).")
			return
		}
		d.cfg.Egress.ServeSandbox(w, r, sandboxID)
		return
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	room := d.cfg.Rooms[name]
	if room == nil {
		refuse(w, http.StatusNotFound, "not_found", d.notFound(name))
		return
	}
	room.ServeSandbox(w, r, sandboxID)
}

// notFound says what is missing, and how to get it.
func (d *Door) notFound(name string) string {
	switch name {
	case "proxy":
		return "This server has no services to call. The operator can configure them with SANDBOX_CONFIG."
	case "packages":
		return "This server installs no packages. The operator can turn them on with SANDBOX_PACKAGES=pypi,npm."
	}
	return "Nothing is served at this path."
}

// refuse answers with an error as JSON.
func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": code, "message": message})
}
