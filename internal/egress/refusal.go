package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Codes of refusals, which are also the results in metrics.
const (
	codeInvalid     = "invalid_request"
	codeNotAllowed  = "host_not_allowed"
	codePrivate     = "private_address"
	codeToken       = "invalid_token"
	codeTLS         = "tls_refused"
	codeBudget      = "upload_budget"
	codeConnections = "connection_budget"
	codeBusy        = "busy"
	codeTimeout     = "timeout"
	codeUnreachable = "unreachable"
	codeEnded       = "run_ended"
	codeInternal    = "internal"
	resultOK        = "ok"
	// resultInterrupted: the server stops, or code left before the answer ended.
	resultInterrupted = "interrupted"
)

// refusal is an answer of the server's own.
type refusal struct {
	status  int
	code    string
	message string // what is wrong and what to do
	rule    string // for Blocked; empty: it is not noted
}

func refuse(status int, code, format string, args ...any) *refusal {
	return &refusal{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

// because sets why no entry allows it. Code that connects by name sees no other reason.
func (r *refusal) because(reason string) *refusal {
	r.rule = "none: " + reason
	return r
}

func (r *refusal) Error() string { return r.message }

// Why connections end before their time.
var (
	errEnded = refuse(http.StatusForbidden, codeEnded, "The run has ended, and its connections with it.")
	errLeft  = refuse(http.StatusBadGateway, resultInterrupted, "The code closed its connection.").
			because("the code left before the host had answered")
	errYielded = refuse(http.StatusServiceUnavailable, codeBusy, "The connection was ended to make room for another user: use fewer at a time.").
			because("the connection was ended to make room for another user")
)

// causeOf returns why ctx has ended, or nil if it has not or the code has left.
func causeOf(ctx context.Context) *refusal {
	p, _ := errors.AsType[*refusal](context.Cause(ctx))
	return p
}

// write answers a request with a refusal.
func (r *refusal) write(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(refusalTimeout)) // code may never read it
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	if r.status == http.StatusProxyAuthRequired {
		h.Set("Proxy-Authenticate", `Basic realm="run"`)
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(append(r.body(), '\n'))
}

func (r *refusal) body() []byte {
	body, _ := json.Marshal(map[string]string{"error": r.code, "message": r.message})
	return body
}

// writeConnect answers a CONNECT. Clients show the status line only, so it says what to do.
func (r *refusal) writeConnect(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		r.write(w)
		return
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(refusalTimeout)) // code may never read it
	body := r.body()
	more := ""
	if r.status == http.StatusProxyAuthRequired {
		more = "Proxy-Authenticate: Basic realm=\"run\"\r\n"
	}
	_, _ = fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\nConnection: close\r\n\r\n",
		r.status, printable(r.message), more, len(body))
	_, _ = conn.Write(body)
}
