package proxy

import (
	"slices"
	"strings"
)

// usualHeaders are the fields of a request that a service gets.
var usualHeaders = map[string]bool{
	"Accept": true, "Accept-Language": true, "Cache-Control": true, "Content-Disposition": true, "Content-Encoding": true, "Content-Language": true,
	"Content-Md5": true, "Content-Type": true, "Idempotency-Key": true, "If-Match": true, "If-Modified-Since": true, "If-None-Match": true,
	"If-Unmodified-Since": true, "Prefer": true, "Traceparent": true, "Tracestate": true, "User-Agent": true, "X-Correlation-Id": true,
	"X-Idempotency-Key": true, "X-Request-Id": true,
}

// forwarded reports whether a field of a request is passed on to every service: the usual ones, and those by which API clients say which
// version they speak (X-GitHub-Api-Version, anthropic-beta) and what they are.
func forwarded(name string) bool {
	return usualHeaders[name] || strings.HasSuffix(name, "-Version") || strings.HasSuffix(name, "-Beta") || strings.HasPrefix(name, "X-Stainless-")
}

// reserved are the fields that no operator can have passed on: they carry rights, name places, change what the request is, or have the
// service answer with a part, in which half a secret cannot be found.
var reserved = []string{
	"Accept-Charset", "Accept-Encoding", "Authorization", "Connection", "Content-Length", "Cookie", "Expect", "Forwarded", "Host", "If-Range", "Keep-Alive", "Range",
	"Te", "Trailer", "Transfer-Encoding", "Upgrade", "X-Http-Method", "X-Http-Method-Override", "X-Method-Override", "X-Original-Url", "X-Real-Ip", "X-Rewrite-Url",
}

func neverForwarded(name string) bool {
	return slices.Contains(reserved, name) || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "Proxy-")
}

// unwanted are the fields of an answer that are not passed on: they are meant for the service's own origin, not for this server's.
var unwanted = []string{
	"Alt-Svc", "Clear-Site-Data", "Content-Security-Policy", "Content-Security-Policy-Report-Only", "Nel", "Public-Key-Pins", "Refresh", "Report-To",
	"Reporting-Endpoints", "Service-Worker-Allowed", "Set-Cookie", "Set-Cookie2", "Strict-Transport-Security", "X-Accel-Redirect", "X-Sendfile",
}

func dropped(name string) bool {
	return slices.Contains(unwanted, name) || strings.HasPrefix(name, "Proxy-") || strings.HasPrefix(name, "Access-Control-") || strings.HasPrefix(name, "X-Accel-")
}

// hasToken reports whether a comma-separated field has a token in it, in any case.
func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// validName reports whether s is a token of HTTP: a method, or the name of a field.
func validName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, c)
	})
}
