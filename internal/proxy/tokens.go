package proxy

import (
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

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/executiontoken"
	"mcp-code-sandbox/internal/store"
)

const (
	boundNet     = "net"
	boundSandbox = "sbx:"

	maxExecutionID = 128
	maxGrants      = 16   // services of one run
	maxLive        = 1000 // tokens of one caller at a time
)

// GrantRequest asks for a token.
type GrantRequest struct {
	Service string
	// Paths are patterns; nil: the service's defaults, empty: none.
	Paths []string
	// Methods; nil: all that the service allows.
	Methods     []string
	MaxRequests int64         // 0: not limited
	TTL         time.Duration // 0: DefaultTTL
	ExecutionID string
}

// Token is an issued execution token.
type Token struct {
	JTI            string
	Token          string // the secret; empty in lists
	Service        string
	ProxyURL       string
	Execution      string
	Sandboxed      bool // valid in its sandbox alone
	Paths, Methods []string
	Issued         time.Time
	Expires        time.Time
	Used, Max      int64 // Max 0: not limited
}

// Issue makes a token for use from anywhere. Its errors are *Error.
func (p *Proxy) Issue(ctx context.Context, caller string, r GrantRequest) (Token, error) {
	tokens, err := p.issue(ctx, caller, "", []GrantRequest{r})
	if err != nil {
		return Token{}, err
	}
	return tokens[0], nil
}

// IssueForRun makes the tokens of a run, which work from its sandbox alone, until RevokeRun. A ttl beyond MaxTTL is cut to it. On error there are
// none. Its errors are *Error.
func (p *Proxy) IssueForRun(ctx context.Context, caller, runID, sandboxID string, ttl time.Duration, rs []GrantRequest) ([]Token, error) {
	if sandboxID == "" || len(rs) == 0 {
		return nil, internalError(errors.New("a run's tokens need a sandbox and services"))
	}
	if len(rs) > maxGrants {
		return nil, refuse(http.StatusBadRequest, CodeInvalidRequest, "more than %d services for one run", maxGrants)
	}
	rs = slices.Clone(rs)
	for i := range rs {
		rs[i].ExecutionID, rs[i].TTL = runID, min(ttl, MaxTTL)
		if slices.ContainsFunc(rs[:i], func(r GrantRequest) bool { return r.Service == rs[i].Service }) {
			return nil, refuse(http.StatusBadRequest, CodeInvalidRequest, "the service %s is listed twice", clip(rs[i].Service, 64))
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
			p.log.Warn("execution_proxy: Execution token refused", "user", p.name(caller), "execution_id", clip(r.ExecutionID, maxExecutionID),
				"target_service", clip(r.Service, 64), "reason", err.why())
			return nil, err
		}
		rows[i] = row
		tokens[i] = p.token(row)
		tokens[i].Token = p.sign(row)
		if len(tokens[i].Token) > executiontoken.MaxSize {
			return nil, refuse(http.StatusBadRequest, CodeInvalidRequest, "allowed_paths are too many or too long for a token of %d bytes", executiontoken.MaxSize)
		}
	}
	switch live, err := p.store.CountExecutionTokens(ctx, caller, p.now()); {
	case err != nil:
		return nil, internalError(err)
	case live+len(rows) > maxLive:
		return nil, tooMany(fmt.Sprintf("more than %d execution tokens at a time: revoke some, or let them expire", maxLive), time.Minute)
	}
	for _, row := range rows { // no trace, no token
		if err := p.audit.append(Record{Event: EventIssued, Caller: caller, User: p.user(caller), Execution: row.Execution,
			JTI: row.JTI, Service: row.Service, Decision: "allow"}); err != nil {
			return nil, p.auditFailed(err)
		}
	}
	if err := p.store.AddExecutionTokens(ctx, rows...); err != nil {
		p.log.Error("execution_proxy: Execution token not stored", "err", err)
		return nil, internalError(err)
	}
	for _, row := range rows {
		p.metrics.tokenIssued(row.Service)
		p.log.Info("execution_proxy: Execution token issued", "user", p.name(caller), "execution_id", row.Execution,
			"target_service", row.Service, "ttl_seconds", int(row.Expires.Sub(row.Issued)/time.Second))
	}
	return tokens, nil
}

// grant checks a request and makes the row for it.
func (p *Proxy) grant(ctx context.Context, caller, sandboxID string, r GrantRequest) (store.ExecutionToken, *Error) {
	bad := func(format string, args ...any) (store.ExecutionToken, *Error) {
		return store.ExecutionToken{}, refuse(http.StatusBadRequest, CodeInvalidRequest, format, args...)
	}
	if r.ExecutionID == "" || len(r.ExecutionID) > maxExecutionID || strings.ContainsFunc(r.ExecutionID, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return bad("execution_id is required: 1 to %d printable characters", maxExecutionID)
	}
	if r.Service == "" {
		return bad("target_service is required")
	}
	s, e := p.find(r.Service)
	if e != nil {
		return store.ExecutionToken{}, e
	}
	if r.TTL == 0 {
		r.TTL = DefaultTTL
	}
	if r.TTL < time.Second || r.TTL > MaxTTL {
		return bad("ttl_seconds must be between 1 and %d", int(MaxTTL/time.Second))
	}
	if r.MaxRequests < 0 {
		return bad("max_requests must be positive")
	}
	if r.Paths == nil {
		r.Paths = s.Defaults
	}
	patterns, err := parsePatterns(r.Paths)
	if err != nil {
		return bad("allowed_paths: %v", err)
	}
	for _, pt := range patterns {
		if !coveredBy(s.ceiling, pt) {
			return bad("allowed_paths: %s goes beyond what is allowed for service %s", pt.text, s.Name)
		}
	}
	methods := make([]string, 0, len(r.Methods))
	for _, m := range r.Methods {
		if m = strings.ToUpper(m); !s.allowsMethod(m) {
			return bad("allowed_methods: %s is not allowed for service %s", clip(m, 32), s.Name)
		}
		methods = append(methods, m)
	}
	if r.Methods == nil {
		methods = s.Methods
	}
	if _, e := p.credential(ctx, s, caller); e != nil {
		if e.Code == CodeNotConnected { // as contract 3 has it: 403 here, 401 at the proxy
			e = refuse(http.StatusForbidden, CodeNotConnected, "user has not connected to service %s", s.Name)
			e.ConnectURL = s.ConnectURL
		}
		return store.ExecutionToken{}, e
	}
	issued := p.now().Truncate(time.Second)
	row := store.ExecutionToken{
		JTI: newJTI(), Caller: caller, Service: s.Name, Execution: r.ExecutionID, Sandbox: sandboxID,
		Paths: append([]string{}, r.Paths...), Methods: methods, Issued: issued, Expires: issued.Add(r.TTL.Truncate(time.Second)), Max: r.MaxRequests,
	}
	if sandboxID != "" {
		row.Instance = p.instance
	}
	if row.Max == 0 {
		row.Max = math.MaxInt64
	}
	return row, nil
}

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
	return c, refuse(http.StatusBadGateway, CodeUnavailable, "Backend service unavailable").because("credential: %v", err)
}

func newJTI() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see its documentation
	return hex.EncodeToString(b[:])
}

func (p *Proxy) sign(row store.ExecutionToken) string {
	c := executiontoken.Claims{
		JTI: row.JTI, Iss: p.baseURL.Load().String(), Aud: executiontoken.Audience(row.Service), Sub: row.Caller, RID: row.Execution,
		Mth: row.Methods, Pth: row.Paths, Iat: row.Issued.Unix(), Nbf: row.Issued.Unix(), Exp: row.Expires.Unix(), Bnd: binding(row.Sandbox),
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

func (p *Proxy) token(row store.ExecutionToken) Token {
	t := Token{
		JTI: row.JTI, Service: row.Service, ProxyURL: p.baseURL.Load().JoinPath("proxy", row.Service).String(), Execution: row.Execution,
		Sandboxed: row.Sandbox != "", Paths: row.Paths, Methods: row.Methods, Issued: row.Issued, Expires: row.Expires, Used: row.Used, Max: row.Max,
	}
	if t.Max == math.MaxInt64 {
		t.Max = 0
	}
	return t
}

// List returns a caller's tokens that are valid now, without their secrets.
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

// Revoke ends a caller's token and cuts its calls. Another caller's token is not found, as one that does not exist.
func (p *Proxy) Revoke(ctx context.Context, caller, jti string) error {
	row, err := p.store.RevokeExecutionToken(ctx, caller, jti, p.now())
	if errors.Is(err, store.ErrNotFound) {
		return refuse(http.StatusNotFound, CodeNotFound, "no such execution token, or it has ended already")
	}
	if err != nil {
		return internalError(err)
	}
	p.revoked(caller, row.Execution, row.Service, []string{jti})
	return nil
}

// RevokeRun ends the tokens of a run and cuts their calls. It is idempotent.
func (p *Proxy) RevokeRun(ctx context.Context, runID string) error {
	jtis, err := p.store.RevokeRunTokens(ctx, runID, p.now())
	if err != nil {
		return internalError(err)
	}
	p.revoked("", runID, "", jtis)
	return nil
}

// RevokeService ends a caller's tokens for a service, for instance when it is disconnected, and cuts their calls.
func (p *Proxy) RevokeService(ctx context.Context, caller, service string) error {
	jtis, err := p.store.RevokeServiceTokens(ctx, caller, service, p.now())
	if err != nil {
		return internalError(err)
	}
	p.revoked(caller, "", service, jtis)
	return nil
}

// revoked follows the change of the rows.
func (p *Proxy) revoked(caller, execution, service string, jtis []string) {
	p.live.cut(jtis, errRevoked)
	for _, jti := range jtis {
		if err := p.audit.append(Record{Event: EventRevoked, Caller: caller, Execution: execution, JTI: jti, Service: service}); err != nil {
			p.log.Error("execution_proxy: Audit trail not written", "err", err) // the token is dead all the same
		}
		p.log.Info("execution_proxy: Execution token revoked", "execution_id", execution, "jti", jti)
	}
}

func (p *Proxy) auditFailed(err error) *Error {
	p.log.Error("execution_proxy: Audit trail not written, request refused", "err", err)
	return refuse(http.StatusServiceUnavailable, CodeInternal, "the audit trail cannot be written, so nothing is passed on; the server's log says more").because("audit: %v", err)
}
