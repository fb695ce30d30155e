package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/credential"
)

const (
	DefaultTimeout = 30 * time.Second
	minIdleTimeout = 2 * time.Minute
)

// Service is an outside API.
type Service struct {
	Name        string // in URLs and tokens; case-sensitive
	DisplayName string
	Disabled    bool // no tokens are issued for it
	// BaseURL is prepended to the path of each call. It has no query, fragment or user.
	BaseURL *url.URL
	// Timeout bounds the time until the service starts to answer; 0: DefaultTimeout.
	Timeout time.Duration
	// IdleTimeout bounds the pauses within an answer; 0: Timeout, but at least two minutes.
	IdleTimeout time.Duration
	// Ceiling lists the path patterns that tokens may allow; nil: Defaults, or everything if those
	// are nil.
	Ceiling []string
	// Defaults are the path patterns of a token that asks for none; nil: no path.
	Defaults []string
	// Methods that tokens may allow, of usualMethods and otherMethods; nil: usualMethods.
	Methods []string
	// Headers names request header fields to forward in addition to the usual ones.
	Headers           []string
	AllowEncodedSlash bool
	// AllowPrivate lists closed networks that calls to this service may reach.
	AllowPrivate []netip.Prefix
	RateLimit    Rate // of the service, shared by its callers; zero: defaultServiceRate
	TokenRate    Rate // of each token; zero: defaultTokenRate
	Credential   credential.Source
	ConnectURL   string // where a person connects it; empty if the credential is the operator's
}

// service is a checked Service.
type service struct {
	Service
	ceiling, defaults []pattern
	transport         *http.Transport
	rate              *sharedRate
	headers           map[string]bool
	needles           atomic.Pointer[needles] // of the credential used last
}

var usualMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// otherMethods are allowed only if a service's configuration names them. Most are WebDAV's.
var otherMethods = []string{"QUERY", "LIST", "PURGE", "PROPFIND", "PROPPATCH", "MKCOL", "MKCALENDAR", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH"}

// FieldError reports a wrong field of the configuration file.
type FieldError struct {
	Path    string // such as mcpServers.datadog.proxy.timeout; empty: the whole file
	Problem string
}

func (e *FieldError) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + ": " + e.Problem
}

func (s Service) fieldError(field, format string, args ...any) *FieldError {
	path := "mcpServers." + s.Name
	if field != "" {
		path += "." + field
	}
	return &FieldError{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// Check returns the [*FieldError] that New would return for the service.
func (s Service) Check() error {
	_, err := newService(s, nil)
	return err
}

func newService(s Service, closed *closednet.List) (*service, error) {
	const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	if s.Name == "" || strings.Trim(s.Name, nameChars) != "" || len(s.Name) > 64 {
		return nil, &FieldError{fmt.Sprintf("mcpServers.%q", s.Name), "a name has 1 to 64 letters, digits, - and _"}
	}
	made := &service{Service: s, headers: map[string]bool{}}
	if s.Disabled {
		return made, nil
	}
	if s.Credential == nil {
		return nil, s.fieldError("userAuthentication", "is missing")
	}
	if err := checkBaseURL(s.BaseURL, closed, s.AllowPrivate); err != nil {
		return nil, s.fieldError("proxy.baseURL", "%v", err)
	}
	var err error
	if made.ceiling, err = parsePatterns(s.Ceiling); err != nil {
		return nil, s.fieldError("proxy.allowedPaths", "%v", err)
	}
	if made.defaults, err = parsePatterns(s.Defaults); err != nil {
		return nil, s.fieldError("proxy.defaultAllowedPaths", "%v", err)
	}
	switch {
	case s.Ceiling != nil:
	case s.Defaults != nil:
		made.ceiling = made.defaults
	default:
		made.ceiling = []pattern{{text: "/**", deep: true}}
	}
	for _, d := range made.defaults {
		if !coveredBy(made.ceiling, d) {
			return nil, s.fieldError("proxy.defaultAllowedPaths", "%s goes beyond allowedPaths", d.text)
		}
	}
	if s.Methods == nil {
		made.Methods = usualMethods
	}
	for _, m := range made.Methods {
		if !slices.Contains(usualMethods, m) && !slices.Contains(otherMethods, m) {
			return nil, s.fieldError("proxy.allowedMethods", "%q is not a method that can be allowed; use some of %s (or of %s)", m,
				strings.Join(usualMethods, ", "), strings.Join(otherMethods, ", "))
		}
	}
	for _, h := range s.Headers {
		name := http.CanonicalHeaderKey(h)
		if !IsToken(h) || neverForwarded(name) {
			return nil, s.fieldError("proxy.allowedHeaders", "%q is not a header field that can be forwarded", h)
		}
		made.headers[name] = true
	}
	if s.Timeout < 0 || s.IdleTimeout < 0 {
		return nil, s.fieldError("proxy.timeout", "must be positive")
	}
	made.Timeout = cmp.Or(s.Timeout, DefaultTimeout)
	made.IdleTimeout = cmp.Or(s.IdleTimeout, max(made.Timeout, minIdleTimeout))
	made.rate = newSharedRate(s.RateLimit.or(defaultServiceRate))
	made.transport = newTransport(closed, s.AllowPrivate)
	return made, nil
}

func checkBaseURL(u *url.URL, closed *closednet.List, allowed []netip.Prefix) error {
	switch {
	case u == nil || u.Hostname() == "":
		return errors.New("is missing or has no host")
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("must start with https:// (or http://), not %s://", u.Scheme)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return errors.New("must not have a user, query or fragment")
	}
	if _, err := parsePath(u.EscapedPath(), true); err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return advise(closed.Check(addr, allowed))
	}
	return nil
}

func (s *service) allowsMethod(m string) bool { return slices.Contains(s.Methods, m) }

// advise adds what the operator can do about an address that is refused.
func advise(err error) error {
	if errors.Is(err, closednet.ErrAddress) {
		return fmt.Errorf("%w; list it in allowPrivateAddresses if it is the service's", err)
	}
	return err
}
