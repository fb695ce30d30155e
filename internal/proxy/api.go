package proxy

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

const maxRequestBody = 64 << 10

// tokenRequest is contract 3's, with allowed_methods added.
type tokenRequest struct {
	ExecutionID    string   `json:"execution_id"`
	TargetService  string   `json:"target_service"`
	TTLSeconds     *int64   `json:"ttl_seconds"`
	AllowedPaths   []string `json:"allowed_paths"`
	AllowedMethods []string `json:"allowed_methods"`
	MaxRequests    *int64   `json:"max_requests"`
}

type tokenResponse struct {
	Token     string    `json:"token"`
	ProxyURL  string    `json:"proxy_url"`
	ExpiresAt time.Time `json:"expires_at"`
	JTI       string    `json:"jti"`
}

type tokenState struct {
	JTI            string    `json:"jti"`
	ExecutionID    string    `json:"execution_id"`
	TargetService  string    `json:"target_service"`
	ProxyURL       string    `json:"proxy_url,omitempty"`
	Sandboxed      bool      `json:"sandboxed"`
	AllowedPaths   []string  `json:"allowed_paths"`
	AllowedMethods []string  `json:"allowed_methods"`
	MaxRequests    int64     `json:"max_requests,omitempty"`
	UsedRequests   int64     `json:"used_requests"`
	IssuedAt       time.Time `json:"issued_at"`
	ExpiresAt      time.Time `json:"expires_at"`
}

// API serves POST /api/execution-token, DELETE /api/execution-token/{jti} and GET /api/execution-tokens. Who is calling it takes from the
// request's auth.TokenInfo, which whoever is in front has put there.
func (p *Proxy) API() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /api/execution-token", p.asCaller(p.serveIssue))
	mux.Handle("DELETE /api/execution-token/{jti}", p.asCaller(p.serveRevoke))
	mux.Handle("GET /api/execution-tokens", p.asCaller(p.serveList))
	return mux
}

func (p *Proxy) asCaller(serve func(w http.ResponseWriter, r *http.Request, caller string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := auth.TokenInfoFromContext(r.Context())
		var err error = refuse(http.StatusUnauthorized, CodeInvalidToken, "missing or invalid bearer token")
		if info != nil && info.UserID != "" {
			err = serve(w, r, info.UserID)
		}
		if err != nil {
			e := asError(err)
			if e.Status >= http.StatusInternalServerError {
				p.log.Error("execution_proxy: Request failed", "path", r.URL.Path, "reason", e.why())
			}
			writeError(w, e)
		}
	})
}

func (p *Proxy) serveIssue(w http.ResponseWriter, r *http.Request, caller string) error {
	var q tokenRequest
	if e := readJSON(w, r, &q); e != nil {
		return e
	}
	g := GrantRequest{Service: q.TargetService, Paths: q.AllowedPaths, Methods: q.AllowedMethods, ExecutionID: q.ExecutionID}
	if q.TTLSeconds != nil {
		// Compared as numbers: as a duration a huge one would wrap around.
		if *q.TTLSeconds <= 0 || *q.TTLSeconds > int64(MaxTTL/time.Second) {
			return refuse(http.StatusBadRequest, CodeInvalidRequest, "ttl_seconds must be between 1 and %d", int(MaxTTL/time.Second))
		}
		g.TTL = time.Duration(*q.TTLSeconds) * time.Second
	}
	if q.MaxRequests != nil {
		if *q.MaxRequests <= 0 {
			return refuse(http.StatusBadRequest, CodeInvalidRequest, "max_requests must be positive")
		}
		g.MaxRequests = *q.MaxRequests
	}
	t, err := p.Issue(r.Context(), caller, g)
	if err != nil {
		return err
	}
	writeJSON(w, tokenResponse{Token: t.Token, ProxyURL: t.ProxyURL, ExpiresAt: t.Expires.UTC(), JTI: t.JTI})
	return nil
}

func (p *Proxy) serveRevoke(w http.ResponseWriter, r *http.Request, caller string) error {
	if err := p.Revoke(r.Context(), caller, r.PathValue("jti")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (p *Proxy) serveList(w http.ResponseWriter, r *http.Request, caller string) error {
	tokens, err := p.List(r.Context(), caller)
	if err != nil {
		return err
	}
	states := make([]tokenState, len(tokens))
	for i, t := range tokens {
		states[i] = tokenState{JTI: t.JTI, ExecutionID: t.Execution, TargetService: t.Service, ProxyURL: t.ProxyURL, Sandboxed: t.Sandboxed,
			AllowedPaths: t.Paths, AllowedMethods: t.Methods, MaxRequests: t.Max, UsedRequests: t.Used, IssuedAt: t.Issued.UTC(), ExpiresAt: t.Expires.UTC()}
		if t.Sandboxed {
			states[i].ProxyURL = ""
		}
	}
	writeJSON(w, map[string]any{"tokens": states})
	return nil
}

// readJSON is strict: a misspelt allowed_paths must not give a token with the service's defaults.
func readJSON(w http.ResponseWriter, r *http.Request, v any) *Error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBody))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	if err == nil {
		if _, err = dec.Token(); err == io.EOF {
			return nil
		}
		err = errors.New("there is more than one JSON value")
	}
	return refuse(http.StatusBadRequest, CodeInvalidRequest, "the body must be a JSON object with execution_id, target_service and optionally ttl_seconds, allowed_paths, allowed_methods, max_requests: %s", clip(err.Error(), 200))
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // an error is the client's going away
}
