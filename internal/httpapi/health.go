package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

const (
	readyFor     = 10 * time.Second // how long an answer is kept: a probe starts a real sandbox
	readyTimeout = 20 * time.Second
)

type healthBody struct {
	Status string `json:"status"`
	Server string `json:"server,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// serveHealth says that the process answers, and which program it is.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, healthBody{Status: "ok", Server: ServerName})
}

// readiness says whether the server can do its work. Anybody may ask, so it probes once in readyFor
// at most, and the reason of a failure is only in the log.
type readiness struct {
	probe    func(context.Context) error
	stopping func() bool // nil: never
	now      func() time.Time
	log      *slog.Logger

	mu      sync.Mutex
	checked time.Time
	err     error
}

func (rd *readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if rd.stopping != nil && rd.stopping() {
		writeJSON(w, http.StatusServiceUnavailable, healthBody{Status: "not ready", Reason: "the server is stopping"})
		return
	}
	if err := rd.check(r.Context()); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, healthBody{Status: "not ready",
			Reason: "a check failed; the server's log says which, and mcp-code-sandbox doctor how to fix it"})
		return
	}
	writeJSON(w, http.StatusOK, healthBody{Status: "ready"})
}

func (rd *readiness) check(ctx context.Context) error {
	if rd.probe == nil {
		return nil
	}
	rd.mu.Lock() // others wait for the probe and get its answer
	defer rd.mu.Unlock()
	if !rd.checked.IsZero() && rd.now().Sub(rd.checked) < readyFor {
		return rd.err
	}
	// The answer is for everybody, so a client that leaves must not cancel the probe.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
	defer cancel()
	rd.err = rd.probe(ctx)
	rd.checked = rd.now()
	if rd.err != nil {
		rd.log.Error("[HTTP] not ready", "error", rd.err)
	}
	return rd.err
}

// readOnly refuses methods other than GET and HEAD.
func readOnly(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writeError(w, r, http.StatusMethodNotAllowed, "use GET or HEAD here")
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		next(w, r)
	}
}
