// Package credential holds what a service wants to see on a request: keys an operator configured, and tokens people
// obtained by connecting the service, sealed in the store and refreshed when they run out.
//
// It knows nothing of the proxy that uses them, nor of the pages on which people connect.
package credential

import (
	"context"
	"encoding/base64"
	"errors"
	"time"

	"mcp-code-sandbox/internal/secret"
)

// ErrNotConnected says that the caller has not connected the service, or that the connection no longer works and has to
// be made again.
var ErrNotConnected = errors.New("service not connected")

// Credential is what is put on one request to a service.
type Credential struct {
	// Header and Value are the header field to set.
	Header, Value string
	// Secrets lists every text that must not come back in a response, in the form the service knows it.
	Secrets []string
	// Expires is when the credential stops working; zero means that nobody knows of an end.
	Expires time.Time
}

// Source gives the credential of a service for a caller. It is safe for concurrent use.
type Source interface {
	// Credential returns a credential that works now, or [ErrNotConnected].
	Credential(ctx context.Context, caller string) (Credential, error)
}

// static is an operator's own credential, the same for every caller.
type static Credential

func (s static) Credential(context.Context, string) (Credential, error) { return Credential(s), nil }

// Bearer sends "Authorization: Bearer token".
func Bearer(token secret.Value) Source { return static(bearer(token.Reveal(), time.Time{})) }

func bearer(token string, expires time.Time) Credential {
	return Credential{Header: "Authorization", Value: "Bearer " + token, Secrets: []string{token}, Expires: expires}
}

// Basic sends "Authorization: Basic …".
func Basic(user string, password secret.Value) Source {
	pair := user + ":" + password.Reveal()
	coded := base64.StdEncoding.EncodeToString([]byte(pair))
	secrets := []string{coded, pair}
	if !password.IsZero() {
		secrets = append(secrets, password.Reveal())
	} else {
		secrets = append(secrets, user) // some services take their key as the user name
	}
	return static{Header: "Authorization", Value: "Basic " + coded, Secrets: secrets}
}

// Header sends a header field of the service's own, such as "DD-API-KEY".
func Header(name string, value secret.Value) Source {
	return static{Header: name, Value: value.Reveal(), Secrets: []string{value.Reveal()}}
}
