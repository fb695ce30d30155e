package oauth

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"mcp-code-sandbox/internal/credential"
)

// oidcLogin is OpenID Connect. It discovers the provider at the first use, and again until that
// succeeds.
type oidcLogin struct {
	*provider
	redirect string
	now      func() time.Time

	mu    sync.Mutex
	found *oidcProvider
}

// oidcProvider is a discovered provider.
type oidcProvider struct {
	config   oauth2.Config
	verifier *oidc.IDTokenVerifier
	provider *oidc.Provider
	tokens   credential.Source
	sendsIss bool
}

func (l *oidcLogin) discover(ctx context.Context) (*oidcProvider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.found != nil {
		return l.found, nil
	}
	// The provider keeps the context to fetch keys later.
	p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), l.http), l.upstream.Issuer)
	if err != nil {
		return nil, fmt.Errorf("discover the login provider: %w", err)
	}
	var meta struct {
		Authorization string   `json:"authorization_endpoint"`
		Token         string   `json:"token_endpoint"`
		Keys          string   `json:"jwks_uri"`
		AuthMethods   []string `json:"token_endpoint_auth_methods_supported"`
		Scopes        []string `json:"scopes_supported"`
		SendsIss      bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := p.Claims(&meta); err != nil {
		return nil, fmt.Errorf("discover the login provider: %w", err)
	}
	for what, raw := range map[string]string{
		"authorization_endpoint": meta.Authorization, "token_endpoint": meta.Token, "jwks_uri": meta.Keys,
	} {
		if err := secureURL("the login provider's "+what, raw); err != nil {
			return nil, err
		}
	}
	endpoint := p.Endpoint()
	endpoint.AuthStyle = oauth2.AuthStyleInParams
	if !l.upstream.ClientSecret.IsZero() && (meta.AuthMethods == nil || slices.Contains(meta.AuthMethods, "client_secret_basic")) {
		endpoint.AuthStyle = oauth2.AuthStyleInHeader
	}
	config := l.config(endpoint, l.redirect)
	if slices.Contains(meta.Scopes, oidc.ScopeOfflineAccess) && !slices.Contains(config.Scopes, oidc.ScopeOfflineAccess) {
		config.Scopes = append(slices.Clone(config.Scopes), oidc.ScopeOfflineAccess) // for recheck
	}
	l.found = &oidcProvider{
		config:   config,
		verifier: p.Verifier(&oidc.Config{ClientID: l.upstream.ClientID, Now: l.now}),
		provider: p,
		tokens:   l.tokens(meta.Token),
		sendsIss: meta.SendsIss,
	}
	return l.found, nil
}

func (l *oidcLogin) authURL(ctx context.Context, state, nonce, verifier string, choose bool) (string, error) {
	p, err := l.discover(ctx)
	if err != nil {
		return "", err
	}
	return p.config.AuthCodeURL(state, authOptions(verifier, choose, oidc.Nonce(nonce))...), nil
}

func (l *oidcLogin) checkIssuer(ctx context.Context, iss []string) error {
	p, err := l.discover(ctx)
	if err != nil {
		return err
	}
	if len(iss) == 0 && !p.sendsIss {
		return nil
	}
	if len(iss) != 1 || iss[0] != l.upstream.Issuer {
		return errWrongIssuer
	}
	return nil
}

func (l *oidcLogin) identify(ctx context.Context, code, nonce, verifier string) (person, error) {
	p, err := l.discover(ctx)
	if err != nil {
		return person{}, err
	}
	token, err := l.exchange(ctx, p.config, code, verifier)
	if err != nil {
		return person{}, err
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return person{}, errors.New("the login provider sent no id_token")
	}
	ctx = oidc.ClientContext(ctx, l.http)
	id, err := p.verifier.Verify(ctx, raw)
	if err != nil {
		return person{}, fmt.Errorf("the login provider's id_token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(nonce)) != 1 {
		return person{}, errors.New("the login provider's id_token belongs to another login")
	}
	var claims userClaims
	if err := id.Claims(&claims); err != nil {
		return person{}, fmt.Errorf("the login provider's id_token: %w", err)
	}
	if len(id.Audience) > 1 && claims.AuthorizedParty != l.upstream.ClientID {
		return person{}, errors.New("the login provider's id_token is for another client")
	}
	if id.Subject == "" {
		return person{}, errors.New("the login provider's id_token has no subject")
	}
	if claims.verifiedEmail() == "" && p.provider.UserInfoEndpoint() != "" {
		info, err := p.provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
		var more userClaims
		if err == nil && info.Subject == id.Subject && info.Claims(&more) == nil {
			claims = more // all of them: the address of one and the "verified" of the other prove nothing
		}
	}
	return person{issuer: l.upstream.Issuer, subject: id.Subject, name: cleanName(claims.Name),
		email: claims.verifiedEmail(), token: token}, nil
}

func (l *oidcLogin) recheck(ctx context.Context, caller string) (person, error) {
	p, err := l.discover(ctx)
	if err != nil {
		return person{}, err
	}
	var user struct {
		userClaims
		Subject string `json:"sub"`
	}
	err = l.getAs(ctx, p.tokens, caller, p.provider.UserInfoEndpoint(), &user)
	return person{subject: user.Subject, email: user.verifiedEmail()}, err
}
