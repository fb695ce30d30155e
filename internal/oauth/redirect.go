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

// programSchemes are the own schemes of programs that are MCP clients. Other schemes may start anything on a computer.
var programSchemes = []string{"claude", "code-oss", "cursor", "goose", "kiro", "lmstudio", "raycast", "trae", "vscode", "vscode-insiders", "vscodium", "warp", "windsurf", "zed"}

// domainScheme is a scheme made of a domain that is a program's maker's, as RFC 8252, 7.1 wants it: com.example.app.
var domainScheme = regexp.MustCompile(`^[a-z]{2,}(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)

// checkRedirectURI tells whether a client may register the address: https, http on this computer, or the scheme of a known
// program or of a domain.
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

// matchRedirect reports whether a client that registered those addresses may be answered at one. They are compared as texts; only the
// port of http on this computer is free, since a program takes what port it gets (RFC 8252, 7.3).
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

// withoutLoopbackPort returns the address of http on this computer less its port. The text is otherwise left alone, so two texts
// that are equal without it differ in the port only.
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

// consentKey is the address for which a consent is remembered.
func consentKey(redirect string) string {
	if s, ok := withoutLoopbackPort(redirect); ok {
		return s
	}
	return redirect
}

// withQuery adds parameters to an address that may have some.
func withQuery(raw string, q url.Values) string {
	if strings.Contains(raw, "?") {
		return raw + "&" + q.Encode()
	}
	return raw + "?" + q.Encode()
}

// secureURL tells whether an address that the operator configured may be used: https, or http on this computer.
func secureURL(what, raw string) error {
	u, err := url.Parse(raw)
	if err != nil || u.Hostname() == "" || u.User != nil || (u.Scheme != "https" && (u.Scheme != "http" || !hostname.IsLoopback(u.Hostname()))) {
		return fmt.Errorf("%s: %q must be an https:// URL", what, raw)
	}
	return nil
}
