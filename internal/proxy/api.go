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

// tokenRequest is contract 3's, plus allowed_methods.
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

// API serves POST /api/execution-token, DELETE /api/execution-token/{jti} and GET
// /api/execution-tokens. Middleware must put the caller into the request's context as
// auth.TokenInfo.
func (p *Proxy) API() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /api/execution-token", p.asCaller(p.serveIssue))
	mux.Handle("DELETE /api/execution-token/{jti}", p.asCaller(p.serveRevoke))
	mux.Handle("GET /api/execution-tokens", p.asCaller(p.serveList))
	return mux
}

func (p *Proxy) asCaller(serve func(w http.ResponseWriter, r *http.Request, caller string) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var err error = refuse(http.StatusUnauthorized, CodeInvalidToken, "missing or invalid bearer token")
		if info := auth.TokenInfoFromContext(r.Context()); info != nil && info.UserID != "" {
			err = serve(w, r, info.UserID)
		}
		if err != nil {
			e := asError(err)
			if e.Status >= http.StatusInternalServerError {
				p.log.Error("execution_proxy: Request failed", "path", r.URL.Path, "reason", e.logReason())
			}
			writeError(w, e)
		}
	})
}

func (p *Proxy) serveIssue(w http.ResponseWriter, r *http.Request, caller string) error {
	var q tokenRequest
	if err := readJSON(w, r, &q); err != nil {
		return badRequest("the body must be a JSON object with execution_id, target_service and optionally ttl_seconds, "+
			"allowed_paths, allowed_methods, max_requests: %s", clip(err.Error(), 200))
	}
	g := GrantRequest{Service: q.TargetService, Paths: q.AllowedPaths, Methods: q.AllowedMethods, ExecutionID: q.ExecutionID}
	if q.TTLSeconds != nil {
		if *q.TTLSeconds <= 0 || *q.TTLSeconds > int64(MaxTTL/time.Second) { // before a Duration could overflow
			return badTTL()
		}
		g.TTL = time.Duration(*q.TTLSeconds) * time.Second
	}
	if q.MaxRequests != nil {
		if *q.MaxRequests <= 0 {
			return badRequest("max_requests must be positive")
		}
		g.MaxRequests = *q.MaxRequests
	}
	t, err := p.Issue(r.Context(), caller, g)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, tokenResponse{Token: t.Token, ProxyURL: t.ProxyURL, ExpiresAt: t.Expires, JTI: t.JTI})
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
	writeJSON(w, http.StatusOK, map[string]any{"tokens": tokens})
	return nil
}

// readJSON refuses unknown fields: a misspelt allowed_paths must not give a token the service's
// defaults.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more than one JSON value")
	}
	return nil
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // an error means that the client left
}
