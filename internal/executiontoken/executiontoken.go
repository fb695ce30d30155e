// Package executiontoken signs and verifies the tokens with which code may call one service through
// the execution proxy for some minutes.
//
// A token is
//
//	xt1.<key id>.<base64url(JSON claims)>.<base64url(HMAC-SHA256)>
//
// with the MAC over everything before the last dot. The MAC is a cheap first filter: the stored row
// knows whether a token was revoked or used up. Other kinds of tokens are sealed in the same way,
// with [Keys] of another purpose and another prefix, so that none passes for another. The package
// knows neither HTTP nor services.
package executiontoken

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits of a token.
const (
	MaxTTL  = 900 * time.Second
	MaxSize = 4 << 10
)

// Prefix starts every execution token.
const Prefix = "xt1"

// notBeforeLeeway is how far the clock may be set back after a token was issued. That of a Postgres
// is read every few seconds, each time a little differently.
const notBeforeLeeway = 2 * time.Second

const (
	claimsType     = "exec"
	audiencePrefix = "proxy/"
	jtiLength      = 32 // hexadecimal digits: 128 bits
)

// Errors of Open and Verify, which may wrap them.
var (
	ErrMalformed = errors.New("malformed token")
	ErrSignature = errors.New("the token's signature is wrong or its key unknown")
	ErrExpired   = errors.New("the token has expired")
)

// Claims are the content of an execution token. Times are Unix seconds.
type Claims struct {
	Typ string   `json:"typ"`           // "exec"; Sign sets it
	JTI string   `json:"jti"`           // 128 random bits in hexadecimal; the key of the stored row
	Iss string   `json:"iss"`           // the server's public URL
	Aud string   `json:"aud"`           // "proxy/<service>", see Audience
	Sub string   `json:"sub"`           // the caller
	RID string   `json:"rid"`           // the run or execution for which it was issued
	Mth []string `json:"mth,omitempty"` // methods
	Pth []string `json:"pth,omitempty"` // path patterns
	Iat int64    `json:"iat"`
	Nbf int64    `json:"nbf"`
	Exp int64    `json:"exp"`
	Max int64    `json:"max,omitempty"` // requests; 0: unlimited
	Bnd string   `json:"bnd"`           // "net", or "sbx:<sandbox id>"
}

// Audience returns the aud claim of a token for a service.
func Audience(service string) string { return audiencePrefix + service }

// Service returns the service for which the token was issued.
func (c Claims) Service() string { return strings.TrimPrefix(c.Aud, audiencePrefix) }

// Sign returns the token for c.
func (k *Keys) Sign(c Claims) string {
	c.Typ = claimsType
	payload, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return k.Seal(Prefix, payload)
}

// Verify returns the claims of a token that these keys signed and that is valid now. The token must
// be exactly as Sign writes it: no other fields, spaces or padding, and at most [MaxSize] bytes.
// Its errors wrap [ErrMalformed], [ErrSignature] or [ErrExpired].
func (k *Keys) Verify(token string, now time.Time) (Claims, error) {
	payload, err := k.Open(Prefix, token)
	if err != nil {
		return Claims{}, err
	}
	var c Claims
	if err := json.Unmarshal(payload, &c); err != nil {
		return Claims{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	// Claims have one encoding. This refuses whatever the parser tolerates.
	if canonical, err := json.Marshal(c); err != nil || !bytes.Equal(canonical, payload) {
		return Claims{}, fmt.Errorf("%w: the claims are not in canonical form", ErrMalformed)
	}
	if err := c.check(); err != nil {
		return Claims{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	switch {
	case now.Add(notBeforeLeeway).Unix() < c.Nbf:
		return Claims{}, fmt.Errorf("%w: it is not valid yet", ErrMalformed)
	case now.Unix() >= c.Exp:
		return Claims{}, ErrExpired
	}
	return c, nil
}

func (c Claims) check() error {
	switch {
	case c.Typ != claimsType:
		return errors.New("not an execution token")
	case len(c.JTI) != jtiLength || strings.Trim(c.JTI, "0123456789abcdef") != "":
		return errors.New("jti is not 128 bits in hexadecimal")
	case !strings.HasPrefix(c.Aud, audiencePrefix) || c.Service() == "":
		return errors.New("aud does not name a service")
	case c.Sub == "" || c.RID == "":
		return errors.New("sub or rid is missing")
	case c.Bnd != "net" && (!strings.HasPrefix(c.Bnd, "sbx:") || c.Bnd == "sbx:"):
		return errors.New("bnd is neither net nor a sandbox")
	case c.Max < 0:
		return errors.New("max is negative")
	case c.Nbf < c.Iat || c.Exp <= c.Nbf || c.Exp-c.Iat > int64(MaxTTL/time.Second):
		return errors.New("its lifetime is not positive, or too long")
	}
	return nil
}
