package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

type healthBody struct {
	Status string `json:"status"`
	Server string `json:"server,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// serveHealth says that the process answers, and which program it is.
func serveHealth(w http.ResponseWriter, r *http.Request) {
	if !readOnly(w, r) {
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, http.StatusOK, healthBody{Status: "ok", Server: ServerName})
}

const (
	readyFor     = 10 * time.Second // how long an answer is kept: probing starts a real sandbox
	readyTimeout = 20 * time.Second
)

// readiness says whether a sandbox can be started. Anybody may ask, so it tries at most once in readyFor, and the
// reason of a failure goes to the log and not to the answer.
type readiness struct {
	probe func(context.Context) error
	now   func() time.Time
	log   *slog.Logger

	mu      sync.Mutex
	checked time.Time
	err     error
}

func (rd *readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !readOnly(w, r) {
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if err := rd.check(r.Context()); err != nil {
		writeJSON(w, http.StatusServiceUnavailable, healthBody{Status: "not ready",
			Reason: "no sandbox can be started here; the server's log says why, and mcp-code-sandbox doctor how to fix it"})
		return
	}
	writeJSON(w, http.StatusOK, healthBody{Status: "ready"})
}

func (rd *readiness) check(ctx context.Context) error {
	if rd.probe == nil {
		return nil
	}
	rd.mu.Lock() // others wait for the probe that is going on, and get its answer
	defer rd.mu.Unlock()
	if !rd.checked.IsZero() && rd.now().Sub(rd.checked) < readyFor {
		return rd.err
	}
	// The answer is for everybody: one client's going away must not make it "not ready".
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
	defer cancel()
	rd.err = rd.probe(ctx)
	rd.checked = rd.now()
	if rd.err != nil {
		rd.log.Error("[HTTP] not ready: no sandbox can be started", "error", rd.err)
	}
	return rd.err
}

func readOnly(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	writeError(w, r, http.StatusMethodNotAllowed, "use GET or HEAD here")
	return false
}
