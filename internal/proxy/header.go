package proxy

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// usualHeaders are the request fields that every service gets.
var usualHeaders = []string{
	"Accept", "Accept-Language", "Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language",
	"Content-Md5", "Content-Type", "Idempotency-Key", "If-Match", "If-Modified-Since", "If-None-Match",
	"If-Unmodified-Since", "Prefer", "Traceparent", "Tracestate", "User-Agent", "X-Correlation-Id",
	"X-Idempotency-Key", "X-Request-Id",
}

// forwarded reports whether a request field goes to every service: the usual ones, and those that
// API clients use for their version (X-GitHub-Api-Version, anthropic-beta) and platform.
func forwarded(name string) bool {
	if slices.Contains(usualHeaders, name) {
		return true
	}
	version := strings.HasSuffix(name, "-Version") || strings.HasSuffix(name, "-Beta") || strings.HasPrefix(name, "X-Stainless-")
	return version && !neverForwarded(name)
}

// reserved are the fields that an operator cannot allow. They carry rights, name hosts, change the
// meaning of the request, or ask for a part of the answer, where half a secret would not be found.
var reserved = []string{
	"Accept-Charset", "Accept-Encoding", "Authorization", "Connection", "Content-Length", "Cookie", "Expect",
	"Forwarded", "Host", "If-Range", "Keep-Alive", "Range", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"X-Http-Method", "X-Http-Method-Override", "X-Method-Override", "X-Original-Url", "X-Real-Ip", "X-Rewrite-Url",
}

func neverForwarded(name string) bool {
	return slices.Contains(reserved, name) || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "Proxy-")
}

// unwanted are the answer fields that are meant for the service's own origin.
var unwanted = []string{
	"Alt-Svc", "Cdn-Cache-Control", "Clear-Site-Data", "Content-Security-Policy",
	"Content-Security-Policy-Report-Only", "Nel", "Public-Key-Pins", "Refresh", "Report-To", "Reporting-Endpoints",
	"Service-Worker-Allowed", "Set-Cookie", "Set-Cookie2", "Strict-Transport-Security", "Surrogate-Control",
	"X-Accel-Redirect", "X-Sendfile",
}

func dropped(name string) bool {
	return slices.Contains(unwanted, name) || strings.HasPrefix(name, "Proxy-") ||
		strings.HasPrefix(name, "Access-Control-") || strings.HasPrefix(name, "X-Accel-")
}

// privateCacheControl returns an answer's Cache-Control without what lets shared caches keep the
// answer.
func privateCacheControl(values []string) string {
	kept := []string{"private"}
	for _, v := range values {
		for d := range strings.SplitSeq(v, ",") {
			d = strings.TrimSpace(d)
			switch name, _, _ := strings.Cut(strings.ToLower(d), "="); name {
			case "", "public", "private", "s-maxage", "proxy-revalidate", "must-understand":
			default:
				kept = append(kept, d)
			}
		}
	}
	return strings.Join(kept, ", ")
}

// hasToken reports whether a comma-separated field contains a token, in any case.
func hasToken(values []string, token string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(values, ","), ","), func(t string) bool {
		return strings.EqualFold(strings.TrimSpace(t), token)
	})
}

// IsToken reports whether s is an HTTP token (RFC 9110): a valid method or field name.
func IsToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, c)
	})
}

// rewriteLocation makes a redirect within the service go through the proxy. It refuses any other
// redirect, so that no client takes the token or the credential elsewhere.
func (c *call) rewriteLocation(res *http.Response) error {
	locations := res.Header["Location"]
	if len(locations) == 0 {
		return nil
	}
	if len(locations) == 1 {
		if here, ok := c.proxyPath(res.Request.URL, locations[0]); ok {
			res.Header.Set("Location", here)
			return nil
		}
	}
	if res.StatusCode/100 == 3 {
		return answerError("the service redirects to another address, which is not followed")
	}
	res.Header.Del("Location")
	return nil
}

// proxyPath returns the path by which the proxy serves a URL of the service.
func (c *call) proxyPath(from *url.URL, location string) (string, bool) {
	u, err := from.Parse(location)
	base := c.service.BaseURL
	if err != nil || u.Opaque != "" || u.User != nil || !strings.EqualFold(u.Scheme, base.Scheme) ||
		!strings.EqualFold(hostPort(u), hostPort(base)) {
		return "", false
	}
	rest, ok := strings.CutPrefix(u.EscapedPath(), strings.TrimSuffix(base.EscapedPath(), "/"))
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	if rest != "" {
		// A browser might clean a path that the proxy refuses, and end up elsewhere on this server.
		path, err := parsePath(rest, true)
		if err != nil {
			return "", false
		}
		rest = path.escaped
	}
	outer := ""
	if c.sandboxID == "" {
		outer = strings.TrimSuffix(c.p.baseURL.EscapedPath(), "/")
	}
	here := outer + prefix + c.service.Name + rest
	if u.RawQuery != "" {
		here += "?" + u.RawQuery
	}
	if u.Fragment != "" {
		here += "#" + u.EscapedFragment()
	}
	return here, true
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
