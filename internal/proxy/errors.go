package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Codes of errors.
const (
	CodeInvalidRequest = "invalid_request"
	CodeInvalidToken   = "invalid_token"
	CodeNotConnected   = "service_not_connected"
	CodeNotConfigured  = "service_not_configured"
	CodeNotEnabled     = "proxy_not_enabled"
	CodeNotAllowed     = "not_allowed"
	CodeNotFound       = "not_found"
	CodeExhausted      = "max_requests"
	CodeRateLimited    = "rate_limited"
	CodeBusy           = "busy"
	CodeUnavailable    = "backend_unavailable"
	CodeTimeout        = "backend_timeout"
	CodeInternal       = "internal"
)

// Error is a refusal or failure as the one who asked sees it. Message is complete: it starts with the status, as contract 3 shows it.
type Error struct {
	Status     int
	Code       string
	Message    string
	ConnectURL string        // with CodeNotConnected: where a person connects the service
	RetryAfter time.Duration // with CodeRateLimited and CodeBusy

	reason string // for audit and log; never sent
}

func (e *Error) Error() string { return e.Message }

func refuse(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf("%d %s: %s", status, http.StatusText(status), fmt.Sprintf(format, args...))}
}

// because notes what only the operator is to know.
func (e *Error) because(format string, args ...any) *Error {
	e.reason = fmt.Sprintf(format, args...)
	return e
}

func (e *Error) why() string {
	if e.reason != "" {
		return e.reason
	}
	return e.Code
}

func invalidToken() *Error {
	return refuse(http.StatusUnauthorized, CodeInvalidToken, "invalid execution token")
}

func internalError(err error) *Error {
	return refuse(http.StatusInternalServerError, CodeInternal, "internal error; the server's log says more").because("%v", err)
}

// asError makes an *Error of whatever went wrong.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return internalError(err)
}

// proxyName is how responses that are the proxy's own say so (RFC 9209). A service's Proxy-Status is never passed on.
const proxyName = "mcp-code-sandbox"

// writeError answers with e as JSON.
func writeError(w http.ResponseWriter, e *Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Proxy-Status", proxyName+"; details="+strconv.Quote(e.Code))
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="`+proxyName+`", error="invalid_token"`)
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	w.WriteHeader(e.Status)
	body := map[string]string{"error": e.Code, "message": e.Message}
	if e.ConnectURL != "" {
		body["connect_url"] = e.ConnectURL
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(body)               // strings always encode
	_, _ = w.Write([]byte(b.String())) // an error is the client's going away
}
