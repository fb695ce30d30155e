package oauth

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/hostname"
)

const maxRedirectURI = 2000

// programSchemes are the URL schemes of known MCP clients. Others may start any program.
var programSchemes = []string{"claude", "code-oss", "cursor", "goose", "kiro", "lmstudio", "raycast", "trae", "vscode",
	"vscode-insiders", "vscodium", "warp", "windsurf", "zed"}

// domainScheme matches a scheme that is a reversed domain (RFC 8252, 7.1): com.example.app.
var domainScheme = regexp.MustCompile(`^[a-z]{2,}(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)

// checkRedirectURI checks a URI that a client registers: https, http on loopback, or the scheme of
// a known program or a domain.
func checkRedirectURI(raw string) error {
	if len(raw) > maxRedirectURI {
		return errors.New("it is too long")
	}
	for _, c := range []byte(raw) {
		if c <= ' ' || c >= 0x7f || c == '\\' || c == '"' || c == '<' || c == '>' {
			return errors.New("it has characters that must be percent-encoded")
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Scheme == "":
		return errors.New("it is not an absolute URL")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return errors.New("it must have no fragment")
	case u.User != nil:
		return errors.New("it must have no user name")
	}
	switch u.Scheme {
	case "https":
		if u.Hostname() == "" {
			return errors.New("it has no host")
		}
	case "http":
		if !hostname.IsLoopback(u.Hostname()) {
			return errors.New("http is for 127.0.0.1, [::1] and localhost only: use https")
		}
	default:
		if !slices.Contains(programSchemes, u.Scheme) && !domainScheme.MatchString(u.Scheme) {
			return fmt.Errorf("the scheme %.40s is not accepted: use https, http on this computer, or a scheme made of your domain, such as com.example.app", u.Scheme)
		}
	}
	return nil
}

// matchRedirect reports whether raw is one of a client's registered URIs. On loopback the port may
// differ, since programs take any free one (RFC 8252, 7.3).
func matchRedirect(registered []string, raw string) bool {
	if checkRedirectURI(raw) != nil {
		return false
	}
	if slices.Contains(registered, raw) {
		return true
	}
	return slices.ContainsFunc(registered, func(r string) bool {
		want, ok := withoutLoopbackPort(r)
		got, ok2 := withoutLoopbackPort(raw)
		return ok && ok2 && want == got
	})
}

// withoutLoopbackPort returns an http URL on loopback without its port and otherwise unchanged.
func withoutLoopbackPort(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" || !hostname.IsLoopback(u.Hostname()) {
		return "", false
	}
	rest, ok := strings.CutPrefix(raw, "http://"+u.Host)
	if !ok {
		return "", false
	}
	return "http://" + u.Hostname() + rest, true
}

// consentKey returns the URI for which a consent is stored.
func consentKey(redirect string) string {
	if s, ok := withoutLoopbackPort(redirect); ok {
		return s
	}
	return redirect
}

// withQuery adds parameters to a URL.
func withQuery(raw string, q url.Values) string {
	if strings.Contains(raw, "?") {
		return raw + "&" + q.Encode()
	}
	return raw + "?" + q.Encode()
}

// secureURL checks a configured URL: it must be https, or http on loopback.
func secureURL(what, raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.User != nil || (u.Scheme != "https" && (u.Scheme != "http" || !hostname.IsLoopback(u.Hostname()))) {
		return fmt.Errorf("%s: %q must be an https:// URL", what, raw)
	}
	return nil
}
