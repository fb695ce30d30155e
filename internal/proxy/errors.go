package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Error codes.
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

// Fields of a token request that an Error names.
const (
	FieldPaths   = "allowed_paths"
	FieldMethods = "allowed_methods"
)

// Error is a refusal or failure as the client sees it.
type Error struct {
	Status     int
	Code       string
	Field      string // the wrong field of a token request (FieldPaths, FieldMethods), or ""
	Detail     string
	ConnectURL string        // with CodeNotConnected: where a person connects the service
	RetryAfter time.Duration // with CodeRateLimited and CodeBusy

	reason string // for audit trail and log; never sent
}

// Error returns the message that contract 3 shows: status, field and detail.
func (e *Error) Error() string {
	field := e.Field
	if field != "" {
		field += ": "
	}
	return fmt.Sprintf("%d %s: %s%s", e.Status, http.StatusText(e.Status), field, e.Detail)
}

func refuse(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Detail: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *Error {
	return refuse(http.StatusBadRequest, CodeInvalidRequest, format, args...)
}

// withReason sets the reason, which only the operator sees.
func (e *Error) withReason(format string, args ...any) *Error {
	e.reason = fmt.Sprintf(format, args...)
	return e
}

func (e *Error) logReason() string { return cmp.Or(e.reason, e.Code) }

func invalidToken() *Error {
	return refuse(http.StatusUnauthorized, CodeInvalidToken, "invalid execution token")
}

func unavailable() *Error {
	return refuse(http.StatusBadGateway, CodeUnavailable, "Backend service unavailable")
}

func timedOut() *Error {
	return refuse(http.StatusGatewayTimeout, CodeTimeout, "Backend service unavailable")
}

func internalError(err error) *Error {
	return refuse(http.StatusInternalServerError, CodeInternal, "internal error; see the server's log").withReason("%v", err)
}

func tooMany(message string, retry time.Duration) *Error {
	e := refuse(http.StatusTooManyRequests, CodeRateLimited, "%s", message)
	e.RetryAfter = retry
	return e
}

func busy(message string) *Error {
	e := refuse(http.StatusServiceUnavailable, CodeBusy, "%s; try again in a second", message)
	e.RetryAfter = time.Second
	return e
}

// asError returns err as an *Error; an unknown one becomes an internal error.
func asError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return internalError(err)
}

// proxyName marks the proxy's own answers in Proxy-Status (RFC 9209). The proxy never forwards a
// service's Proxy-Status.
const proxyName = "mcp-code-sandbox"

// writeError answers with e as JSON.
func writeError(w http.ResponseWriter, e *Error) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Proxy-Status", proxyName+"; details="+strconv.Quote(e.Code))
	if e.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="`+proxyName+`", error="invalid_token"`)
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((e.RetryAfter+time.Second-1)/time.Second)))
	}
	body := map[string]string{"error": e.Code, "message": e.Error()}
	if e.ConnectURL != "" {
		body["connect_url"] = e.ConnectURL
	}
	writeJSON(w, e.Status, body)
}
