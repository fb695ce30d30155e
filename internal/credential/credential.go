// Package credential provides the credentials of services: the operator's keys, and the tokens of
// callers who connected a service. It seals tokens in the store and refreshes them before they
// expire.
//
// It knows neither the proxy that uses the credentials nor the pages on which people connect.
package credential

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/secret"
)

// ErrNotConnected means that the caller has not connected the service, or has to connect it again.
var ErrNotConnected = errors.New("service not connected")

// Credential authenticates a request to a service.
type Credential struct {
	Header, Value string    // the header field to set
	Secrets       []string  // texts that must not appear in an answer
	Expires       time.Time // zero: unknown
}

// Source provides the credentials of a service. It is safe for concurrent use.
type Source interface {
	// Credential returns a credential that is valid now, or [ErrNotConnected].
	Credential(ctx context.Context, caller string) (Credential, error)
}

// static is an operator's credential, the same for every caller.
type static Credential

func (s static) Credential(context.Context, string) (Credential, error) { return Credential(s), nil }

// Bearer sends "Authorization: Bearer token".
func Bearer(token secret.Value) Source { return static(bearer(token.Reveal(), time.Time{})) }

func bearer(token string, expires time.Time) Credential {
	return Credential{Header: "Authorization", Value: "Bearer " + token, Secrets: []string{token}, Expires: expires}
}

// minPassword is the length of a password with which the user name is not a secret.
const minPassword = 10

// Basic sends "Authorization: Basic …".
func Basic(user string, password secret.Value) Source {
	pair := user + ":" + password.Reveal()
	coded := base64.StdEncoding.EncodeToString([]byte(pair))
	secrets := []string{coded, pair}
	if !password.IsZero() {
		secrets = append(secrets, password.Reveal())
	}
	if len(password.Reveal()) < minPassword { // some services take their key as the user name, with the password "x"
		secrets = append(secrets, user)
	}
	return static{Header: "Authorization", Value: "Basic " + coded, Secrets: secrets}
}

// Header sends a header field of the service, such as "DD-API-KEY".
func Header(name string, value secret.Value) Source {
	return static{Header: name, Value: value.Reveal(), Secrets: secretsIn(value.Reveal())}
}

// minPart is the length of the shortest part of a value that is a secret by itself.
const minPart = 8

// secretsIn returns a header field's value and its secret parts. A service may parse "SSWS key" or
// "Token token=key" and repeat only "key".
func secretsIn(value string) []string {
	rest := value
	if _, after, found := strings.Cut(value, " "); found { // the scheme is not a secret
		rest = after
	}
	secrets := []string{value}
	add := func(part string) {
		if len(part) >= minPart && !slices.Contains(secrets, part) {
			secrets = append(secrets, part)
		}
	}
	add(rest)
	for _, part := range strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(` ,;="`, r) }) {
		add(part)
	}
	return secrets
}
