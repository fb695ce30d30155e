// Package serviceconfig reads contract 3's JSON file: the outside services, where people log in,
// and the packages that code may install.
//
// It refuses unknown fields and names their path: a misspelt restriction must not be ignored.
package serviceconfig

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/credential"
	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/oauth"
	"mcp-code-sandbox/internal/proxy"
)

// File is the content of the operator's file.
type File struct {
	Services []Service      // sorted by name
	Login    oauth.Upstream // where people log in; zero: nowhere
	Network  Network
	Packages *Packages // what code may install; off if it has no kinds
}

// Service is one of the file's services.
type Service struct {
	// Service has no Credential and no ConnectURL if OAuth is set.
	proxy.Service
	// OAuth is how callers connect the service; nil: the credential is the operator's.
	OAuth *credential.OAuthClient
}

// Load reads the file at path and the secrets it refers to; lookup returns environment variables.
// The error joins a [*proxy.FieldError] for everything that is wrong.
func Load(path string, lookup func(string) (string, bool)) (*File, error) {
	data, err := readFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	v, err := parse(data)
	if err != nil {
		return nil, err
	}
	r := &reader{dir: filepath.Dir(path), lookup: lookup}
	f := r.load(v)
	if len(r.errs) > 0 {
		slices.SortFunc(r.errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return nil, errors.Join(r.errs...)
	}
	return f, nil
}

func (r *reader) load(v any) *File {
	f := &File{}
	top, ok := r.object("", v, "mcpServers", "auth", "network", "packages", "version", "$schema")
	if !ok {
		return f
	}
	if top.has("auth") {
		f.Login = r.login(top.members["auth"])
	}
	for _, section := range []string{"network", "packages"} {
		if v, given := top.members[section]; given {
			r.refuseNulls(section, v)
		}
	}
	if top.has("network") {
		f.Network = r.network(top.members["network"])
	}
	f.Packages = r.packages(top)
	servers, ok := top.members["mcpServers"].(map[string]any)
	switch {
	case !ok && top.has("mcpServers"):
		r.fail("mcpServers", "must be an object")
	case !ok && !top.has("auth") && !top.has("network") && !top.has("packages"):
		r.fail("", "none of mcpServers, auth, network and packages is set: the file configures nothing")
	}
	variables := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s := r.service(name, servers[name])
		if s == nil {
			continue
		}
		if other, taken := variables[VariablePrefix(name)]; taken {
			r.fail("mcpServers."+name, "has the same environment variables as %s (%s_TOKEN): rename one of them",
				other, VariablePrefix(name))
		}
		variables[VariablePrefix(name)] = name
		f.Services = append(f.Services, *s)
	}
	return f
}

// VariablePrefix returns the prefix of a service's environment variables.
func VariablePrefix(service string) string {
	name := strings.Map(func(c rune) rune {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			return c
		}
		return '_'
	}, service)
	if name != "" && '0' <= name[0] && name[0] <= '9' {
		name = "_" + name
	}
	return strings.ToUpper(name)
}

// service reads one service. It returns nil without a proxy section, which is for other programs.
func (r *reader) service(name string, v any) *Service {
	// The fields in the second line are for programs that run MCP servers from the same file.
	o, ok := r.object("mcpServers."+name, v, "userAuthentication", "proxy", "displayName",
		"transportType", "requiresUserToken", "command", "args", "env", "url", "headers", "options", "timeout")
	if !ok || !o.has("proxy") {
		return nil
	}
	p, ok := r.object(o.at("proxy"), o.members["proxy"], "enabled", "baseURL", "timeout", "defaultAllowedPaths",
		"allowedPaths", "allowedMethods", "allowedHeaders", "allowEncodedSlash", "allowPrivateAddresses", "rateLimit", "tokenRateLimit")
	if !ok {
		return nil
	}
	before := len(r.errs)
	if !p.has("enabled") {
		p.fail("enabled", "is missing; write true or false")
	}
	s := &Service{Service: proxy.Service{
		Name: name, Disabled: !p.flag("enabled"), DisplayName: o.text("displayName", false),
		Timeout:  time.Duration(p.number("timeout", 0.001, 900, proxy.DefaultTimeout.Seconds()) * float64(time.Second)),
		Ceiling:  p.texts("allowedPaths"),
		Defaults: p.texts("defaultAllowedPaths"), Methods: p.texts("allowedMethods"), Headers: p.texts("allowedHeaders"),
		AllowEncodedSlash: p.flag("allowEncodedSlash"),
		AllowPrivate:      p.networks("allowPrivateAddresses"),
		RateLimit:         p.rate("rateLimit"), TokenRate: p.rate("tokenRateLimit"),
	}}
	s.BaseURL = p.address("baseURL", true, len(s.AllowPrivate) > 0, secretSent)
	if s.Disabled {
		return s // its credential may be missing
	}
	r.authentication(o, s)
	if len(r.errs) > before {
		return s
	}
	check := s.Service
	if check.Credential == nil {
		check.Credential = credential.Bearer(s.OAuth.ClientSecret) // only to pass the check
	}
	if err := check.Check(); err != nil {
		r.errs = append(r.errs, err)
	}
	return s
}

// authentication reads the credential of a service.
func (r *reader) authentication(o object, s *Service) {
	if !o.has("userAuthentication") {
		o.fail("userAuthentication", "is missing: configure the credential of the service")
		return
	}
	at := o.at("userAuthentication")
	kind := typeOf(o.members["userAuthentication"])
	fields := map[string][]string{
		"oauth":  {"clientId", "clientSecret", "authorizationUrl", "tokenUrl", "revocationUrl", "scopes", "parameters"},
		"bearer": {"token"},
		"basic":  {"username", "password"},
		"header": {"name", "value"},
	}
	if fields[kind] == nil {
		r.fail(at+".type", "must be one of oauth, bearer, basic, header")
		return
	}
	a, ok := r.object(at, o.members["userAuthentication"], append([]string{"type", "displayName"}, fields[kind]...)...)
	if !ok {
		return
	}
	if name := a.text("displayName", false); name != "" {
		s.DisplayName = name
	}
	switch kind {
	case "oauth":
		s.OAuth = &credential.OAuthClient{
			Service: s.Name, ClientID: a.text("clientId", true), ClientSecret: a.secret("clientSecret", false),
			AuthorizationURL: a.url("authorizationUrl", true), TokenURL: a.url("tokenUrl", true), RevocationURL: a.url("revocationUrl", false),
			Scopes: a.texts("scopes"), Parameters: a.parameters("parameters"),
		}
	case "bearer":
		s.Credential = credential.Bearer(a.secret("token", true))
	case "basic":
		user, password := a.text("username", true), a.secret("password", false)
		if strings.Contains(user, ":") {
			a.fail("username", "must not contain a colon")
		}
		s.Credential = credential.Basic(user, password)
	case "header":
		name := a.text("name", true)
		if !proxy.IsToken(name) {
			a.fail("name", "must be the name of a header field, such as DD-API-KEY")
		} else if slices.Contains(framing, http.CanonicalHeaderKey(name)) {
			a.fail("name", "is a header field of HTTP itself, which cannot carry a credential")
		}
		s.Credential = credential.Header(name, a.secret("value", true))
	}
}

// framing are the header fields that HTTP itself uses.
var framing = []string{"Accept-Encoding", "Connection", "Content-Length", "Expect", "Host", "Keep-Alive", "Te",
	"Trailer", "Transfer-Encoding", "Upgrade"}

// typeOf returns an object's type field, or "".
func typeOf(v any) string {
	m, _ := v.(map[string]any)
	kind, _ := m["type"].(string)
	return kind
}

// discoveryPath is where an OpenID provider describes itself, relative to its issuer.
const discoveryPath = "/.well-known/openid-configuration"

// login reads where people log in.
func (r *reader) login(v any) oauth.Upstream {
	kind := typeOf(v)
	common := []string{"type", "displayName", "clientId", "clientSecret", "scopes", "allowedDomains", "allowedEmails", "issuer"}
	if kind == "oauth" {
		common = append(common, "authorizationUrl", "tokenUrl", "userInfoUrl", "emailsUrl")
	}
	a, ok := r.object("auth", v, common...)
	if !ok {
		return oauth.Upstream{}
	}
	u := oauth.Upstream{
		Kind: kind, DisplayName: a.text("displayName", false),
		ClientID: a.text("clientId", true), ClientSecret: a.secret("clientSecret", false),
		Scopes: a.texts("scopes"), AllowedDomains: a.texts("allowedDomains"), AllowedEmails: a.texts("allowedEmails"),
	}
	switch kind {
	case "oidc":
		u.Issuer = a.url("issuer", true)
		if strings.HasSuffix(u.Issuer, discoveryPath) {
			a.fail("issuer", "must not end in %s; write %s", discoveryPath, strings.TrimSuffix(u.Issuer, discoveryPath))
		}
	case "oauth":
		u.Issuer = a.text("issuer", false)
		u.AuthorizationURL, u.TokenURL = a.url("authorizationUrl", true), a.url("tokenUrl", true)
		u.UserInfoURL, u.EmailsURL = a.url("userInfoUrl", true), a.url("emailsUrl", false)
	default:
		a.fail("type", "must be oidc or oauth")
	}
	if err := u.CheckAllowed(); err != nil {
		r.fail("", "%v", err)
	}
	return u
}

// secretSent is why an address to which a credential is sent must not be http.
const secretSent = "since a secret is sent there"

// address reads a URL. With plain, it may be http on another host; why says why not.
func (o object) address(name string, required, plain bool, why string) *url.URL {
	text := o.text(name, required)
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err == nil && u.User != nil {
		o.fail(name, "must be an address without user and password: give the credential in userAuthentication")
		return nil
	}
	if err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		o.fail(name, "must be an address like https://api.example.com")
		return nil
	}
	if u.Scheme == "http" && !plain && !hostname.IsLoopback(u.Hostname()) {
		o.fail(name, "must start with https://, %s", why)
	}
	return u
}

func (o object) url(name string, required bool) string {
	if o.address(name, required, false, secretSent) == nil {
		return ""
	}
	return o.text(name, false)
}

// networks reads a list of addresses and networks.
func (o object) networks(name string) []netip.Prefix {
	var list []netip.Prefix
	for i, text := range o.texts(name) {
		if addr, err := netip.ParseAddr(text); err == nil {
			list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			o.fail(fmt.Sprintf("%s[%d]", name, i), "must be an address or network, such as 10.1.2.3 or 10.0.0.0/8")
			continue
		}
		list = append(list, p.Masked())
	}
	return list
}

func (o object) rate(name string) proxy.Rate {
	if !o.has(name) {
		return proxy.Rate{}
	}
	limit, ok := o.r.object(o.at(name), o.members[name], "perSecond", "burst")
	if !ok {
		return proxy.Rate{}
	}
	if !limit.has("perSecond") {
		limit.fail("perSecond", "is missing")
	}
	return proxy.Rate{PerSecond: limit.number("perSecond", 0.001, 1e6, 1), Burst: int(limit.number("burst", 1, 1e6, 0))}
}

// parameters reads additional parameters of an authorization request.
func (o object) parameters(name string) map[string]string {
	if !o.has(name) {
		return nil
	}
	m, ok := o.members[name].(map[string]any)
	if !ok {
		o.fail(name, "must be an object of strings")
		return nil
	}
	list := map[string]string{}
	for key, v := range m {
		switch key {
		case "response_type", "client_id", "redirect_uri", "scope", "state", "code_challenge", "code_challenge_method":
			o.fail(name+"."+key, "is set by the server and cannot be configured")
			continue
		}
		if text, ok := o.r.resolve(o.at(name)+"."+key, v); ok {
			list[key] = text
		}
	}
	return list
}
