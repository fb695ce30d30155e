package proxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/store"
)

const (
	defaultTTL = 300 * time.Second
	MaxTTL     = executiontoken.MaxTTL

	boundNet     = "net"
	boundSandbox = "sbx:"

	maxExecutionID = 128
	maxGrants      = 16   // services of one run
	maxLive        = 1000 // valid tokens of one caller
)

// GrantRequest asks for a token.
type GrantRequest struct {
	Service     string
	Paths       []string      // patterns; nil: the service's defaults, empty: none
	Methods     []string      // nil: all that the service allows
	MaxRequests int64         // 0: unlimited
	TTL         time.Duration // 0: defaultTTL
	ExecutionID string
}

// Token is an issued execution token.
type Token struct {
	JTI       string    `json:"jti"`
	Token     string    `json:"token,omitempty"` // the secret; empty in lists
	Execution string    `json:"execution_id"`
	Service   string    `json:"target_service"`
	ProxyURL  string    `json:"proxy_url,omitempty"`
	Sandboxed bool      `json:"sandboxed"` // valid only in its sandbox, which has its own URL
	Paths     []string  `json:"allowed_paths"`
	Methods   []string  `json:"allowed_methods"`
	Max       int64     `json:"max_requests,omitempty"` // 0: unlimited
	Used      int64     `json:"used_requests"`
	Issued    time.Time `json:"issued_at"`
	Expires   time.Time `json:"expires_at"`
}

// Issue issues a token that is valid from anywhere. Its errors are *Error.
func (p *Proxy) Issue(ctx context.Context, caller string, r GrantRequest) (Token, error) {
	tokens, err := p.issue(ctx, caller, "", []GrantRequest{r})
	if err != nil {
		return Token{}, err
	}
	return tokens[0], nil
}

// IssueForRun issues the tokens of a run. They are valid only in the run's sandbox, until
// RevokeRun, for at most MaxTTL. On error it issues none. Its errors are *Error.
func (p *Proxy) IssueForRun(ctx context.Context, caller, runID, sandboxID string, ttl time.Duration, rs []GrantRequest) ([]Token, error) {
	if sandboxID == "" || len(rs) == 0 {
		return nil, internalError(errors.New("the tokens of a run need a sandbox and services"))
	}
	if len(rs) > maxGrants {
		return nil, badRequest("more than %d services for one run", maxGrants)
	}
	rs = slices.Clone(rs)
	for i := range rs {
		rs[i].ExecutionID, rs[i].TTL = runID, min(ttl, MaxTTL)
		if slices.ContainsFunc(rs[:i], func(r GrantRequest) bool { return r.Service == rs[i].Service }) {
			return nil, badRequest("the service %s is listed twice", clip(rs[i].Service, 64))
		}
	}
	return p.issue(ctx, caller, sandboxID, rs)
}

func (p *Proxy) issue(ctx context.Context, caller, sandboxID string, rs []GrantRequest) ([]Token, error) {
	rows := make([]store.ExecutionToken, len(rs))
	tokens := make([]Token, len(rs))
	for i, r := range rs {
		row, err := p.grant(ctx, caller, sandboxID, r)
		if err != nil {
			p.log.Warn("execution_proxy: Execution token refused", "user", p.name(caller),
				"execution_id", clip(r.ExecutionID, maxExecutionID), "target_service", clip(r.Service, 64), "reason", err.logReason())
			return nil, err
		}
		rows[i] = row
		tokens[i] = p.token(row)
		tokens[i].Token = p.sign(row)
		if len(tokens[i].Token) > executiontoken.MaxSize {
			return nil, badField(FieldPaths, "too many or too long for a token of %d bytes", executiontoken.MaxSize)
		}
	}
	switch live, err := p.store.CountExecutionTokens(ctx, caller, p.now()); {
	case err != nil:
		return nil, internalError(err)
	case live+len(rows) > maxLive:
		return nil, tooMany(fmt.Sprintf("more than %d valid execution tokens: revoke some, or let them expire", maxLive), time.Minute)
	}
	for _, row := range rows { // before any token becomes valid
		if err := p.audit.Append(audit.Record{Event: audit.EventIssued, Caller: caller, User: p.user(caller), Execution: row.Execution,
			JTI: row.JTI, Service: row.Service, Decision: "allow"}); err != nil {
			return nil, p.auditFailed(err)
		}
	}
	if err := p.store.AddExecutionTokens(ctx, rows...); err != nil {
		p.log.Error("execution_proxy: Execution token not stored", "error", err)
		return nil, internalError(err)
	}
	for _, row := range rows {
		if sandboxID != "" {
			p.live.addRun(row, p.now(), p.services[row.Service].TokenRate)
		}
		p.metrics.issued.WithLabelValues(row.Service).Inc()
		p.log.Info("execution_proxy: Execution token issued", "user", p.name(caller), "execution_id", row.Execution,
			"target_service", row.Service, "ttl_seconds", int(row.Expires.Sub(row.Issued)/time.Second))
	}
	return tokens, nil
}

// grant checks a request and returns the row to store.
func (p *Proxy) grant(ctx context.Context, caller, sandboxID string, r GrantRequest) (row store.ExecutionToken, e *Error) {
	if r.ExecutionID == "" || len(r.ExecutionID) > maxExecutionID ||
		strings.ContainsFunc(r.ExecutionID, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return row, badRequest("execution_id is required: 1 to %d printable characters", maxExecutionID)
	}
	if r.Service == "" {
		return row, badRequest("target_service is required")
	}
	s, e := p.find(r.Service)
	if e != nil {
		return row, e
	}
	r.TTL = cmp.Or(r.TTL, defaultTTL)
	if r.TTL < time.Second || r.TTL > MaxTTL {
		return row, badTTL()
	}
	if r.MaxRequests < 0 {
		return row, badRequest("max_requests must be positive")
	}
	if r.Paths == nil {
		r.Paths = s.Defaults
	}
	patterns, err := parsePatterns(r.Paths)
	if err != nil {
		return row, badField(FieldPaths, "%v", err)
	}
	for _, pt := range patterns {
		if !coveredBy(s.ceiling, pt) {
			return row, badField(FieldPaths, "%s goes beyond what is allowed for service %s", pt.text, s.Name)
		}
	}
	methods := make([]string, 0, len(r.Methods))
	for _, m := range r.Methods {
		if m = strings.ToUpper(m); !s.allowsMethod(m) {
			return row, badField(FieldMethods, "%s is not allowed for service %s", clip(m, 32), s.Name)
		}
		methods = append(methods, m)
	}
	if r.Methods == nil {
		methods = s.Methods
	}
	if _, e := p.credential(ctx, s, caller); e != nil {
		if e.Code == CodeNotConnected { // contract 3: 403 here, 401 at the proxy
			e.Status, e.Detail = http.StatusForbidden, "user has not connected to service "+s.Name
		}
		return row, e
	}
	issued := p.now().Truncate(time.Second)
	row = store.ExecutionToken{
		JTI: newJTI(), Caller: caller, Service: s.Name, Execution: r.ExecutionID, Sandbox: sandboxID,
		Paths: append([]string{}, r.Paths...), Methods: methods,
		Issued: issued, Expires: issued.Add(r.TTL.Truncate(time.Second)), Max: cmp.Or(r.MaxRequests, math.MaxInt64),
	}
	if sandboxID != "" {
		row.Instance = p.instance
	}
	return row, nil
}

func badTTL() *Error {
	return badRequest("ttl_seconds must be between 1 and %d", int(MaxTTL/time.Second))
}

func badField(field, format string, args ...any) *Error {
	e := badRequest(format, args...)
	e.Field = field
	return e
}

// credential returns the caller's credential for a service. Its error has CodeNotConnected if the
// caller has none.
func (p *Proxy) credential(ctx context.Context, s *service, caller string) (credential.Credential, *Error) {
	c, err := s.Credential.Credential(ctx, caller)
	switch {
	case err == nil && c.Header != "" && c.Value != "":
		return c, nil
	case err == nil:
		return c, internalError(fmt.Errorf("the credential of service %s is empty", s.Name))
	case errors.Is(err, credential.ErrNotConnected):
		e := refuse(http.StatusUnauthorized, CodeNotConnected, "user credentials not found for service %s", s.Name)
		e.ConnectURL = s.ConnectURL
		return c, e
	}
	return c, unavailable().withReason("credential: %v", err)
}

func newJTI() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

func (p *Proxy) sign(row store.ExecutionToken) string {
	c := executiontoken.Claims{
		JTI: row.JTI, Iss: p.baseURL.String(), Aud: executiontoken.Audience(row.Service), Sub: row.Caller,
		RID: row.Execution, Mth: row.Methods, Pth: row.Paths, Bnd: binding(row.Sandbox),
		Iat: row.Issued.Unix(), Nbf: row.Issued.Unix(), Exp: row.Expires.Unix(),
	}
	if row.Max != math.MaxInt64 {
		c.Max = row.Max
	}
	return p.keys.Sign(c)
}

func binding(sandboxID string) string {
	if sandboxID == "" {
		return boundNet
	}
	return boundSandbox + sandboxID
}

// token returns a row as a Token, without the secret.
func (p *Proxy) token(row store.ExecutionToken) Token {
	t := Token{
		JTI: row.JTI, Service: row.Service, Execution: row.Execution, Sandboxed: row.Sandbox != "",
		Paths: row.Paths, Methods: row.Methods, Issued: row.Issued.UTC(), Expires: row.Expires.UTC(), Used: row.Used,
	}
	if !t.Sandboxed {
		t.ProxyURL = p.baseURL.JoinPath("proxy", row.Service).String()
	}
	if row.Max != math.MaxInt64 {
		t.Max = row.Max
	}
	return t
}

// List returns a caller's valid tokens, without their secrets.
func (p *Proxy) List(ctx context.Context, caller string) ([]Token, error) {
	rows, err := p.store.ExecutionTokens(ctx, caller, p.now())
	if err != nil {
		return nil, internalError(err)
	}
	tokens := make([]Token, len(rows))
	for i, row := range rows {
		tokens[i] = p.token(row)
	}
	return tokens, nil
}

// Revoke revokes a caller's token and cancels its calls. The error for another caller's token is
// that of a token that does not exist.
func (p *Proxy) Revoke(ctx context.Context, caller, jti string) error {
	row, err := p.store.RevokeExecutionToken(ctx, caller, jti, p.now())
	if errors.Is(err, store.ErrNotFound) {
		return refuse(http.StatusNotFound, CodeNotFound, "execution token not found, or no longer valid")
	}
	if err != nil {
		return internalError(err)
	}
	p.revoked(caller, row.Execution, row.Service, []string{jti})
	return nil
}

// RevokeRun revokes the tokens of a run and cancels their calls. It is idempotent. Even if the
// store fails and RevokeRun returns an error, the tokens are revoked: they are valid in this
// process only.
func (p *Proxy) RevokeRun(ctx context.Context, runID string) error {
	p.live.endRun(runID)
	jtis, err := p.store.RevokeRunTokens(ctx, runID, p.now())
	if err != nil {
		return internalError(err)
	}
	p.revoked("", runID, "", jtis)
	return nil
}

// RevokeService revokes a caller's tokens for a service and cancels their calls.
func (p *Proxy) RevokeService(ctx context.Context, caller, service string) error {
	jtis, err := p.store.RevokeServiceTokens(ctx, caller, service, p.now())
	if err != nil {
		return internalError(err)
	}
	p.revoked(caller, "", service, jtis)
	return nil
}

// revoked cancels and records the tokens of revoked rows.
func (p *Proxy) revoked(caller, execution, service string, jtis []string) {
	p.live.revoke(jtis)
	for _, jti := range jtis {
		p.tryAudit(audit.Record{Event: audit.EventRevoked, Caller: caller, Execution: execution, JTI: jti, Service: service})
		p.log.Info("execution_proxy: Execution token revoked", "execution_id", execution, "jti", jti)
	}
}

// tryAudit writes what has already happened: a failure is only logged.
func (p *Proxy) tryAudit(r audit.Record) {
	if err := p.audit.Append(r); err != nil {
		p.log.Error("execution_proxy: Audit trail not written", "error", err)
	}
}

func (p *Proxy) auditFailed(err error) *Error {
	p.log.Error("execution_proxy: Audit trail not written, request refused", "error", err)
	return refuse(http.StatusServiceUnavailable, CodeInternal,
		"the audit trail cannot be written, so nothing is forwarded; see the server's log").withReason("audit: %v", err)
}
