package packages

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/untrusted"
)

// Limits of what an index may answer.
const (
	maxPage      = 64 << 20 // decoded
	maxMetadata  = 8 << 20
	maxRedirects = 5
	dialTimeout  = 10 * time.Second
	pageTimeout  = time.Minute
	fileTimeout  = 15 * time.Minute
)

// index is an opened Index. Its client authenticates to the index's own host only.
type index struct {
	url    *url.URL // ends in a slash
	names  []string
	client *http.Client
	cfg    Index
	closed *closednet.List
	// The forms of the credential in which an index may repeat it.
	secrets []string

	mu  sync.Mutex
	own map[netip.Addr]bool // addresses of the index's own host
}

func (m *Mirror) openIndex(kind string, cfg Index) (*index, error) {
	u, err := url.Parse(strings.TrimRight(cfg.URL, "/") + "/")
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("the address of an index must look like https://packages.example.com/simple")
	}
	x := &index{url: u, cfg: cfg, closed: m.cfg.Closed, secrets: formsOf(cfg.Credential.Reveal()), own: map[netip.Addr]bool{}}
	if x.names, err = patterns(kind, cfg.Names); err != nil {
		return nil, fmt.Errorf("names: %w", err)
	}
	roots, err := certificates(cfg.CAFile)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{
		DialContext: x.dial, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: pageTimeout, MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost: 16, IdleConnTimeout: 90 * time.Second, // each run has a few slots: see upstream
	}
	x.client = &http.Client{Transport: authenticated{x, t}, CheckRedirect: x.checkRedirect}
	return x, nil
}

// certificates returns the system's trusted certificates and those of file. Nil means the system's.
func certificates(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificates of the index: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("certificates of the index: %s has none", file)
	}
	return pool, nil
}

// dial connects to the index's own host wherever it is, since the operator named it. It connects to
// another host only at an open address, or at one of the index's own on the same port.
func (x *index) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address == hostPort(x.url) {
		conn, err := (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext(ctx, network, address)
		if err == nil {
			x.noteOwn(conn.RemoteAddr())
		}
		return conn, err
	}
	allowed := append([]netip.Prefix(nil), x.cfg.AllowPrivate...)
	if _, port, _ := net.SplitHostPort(address); port == portOf(x.url) {
		x.mu.Lock()
		for a := range x.own {
			allowed = append(allowed, netip.PrefixFrom(a, a.BitLen()))
		}
		x.mu.Unlock()
	}
	return x.closed.Dialer(dialTimeout, allowed).DialContext(ctx, network, address)
}

func (x *index) noteOwn(addr net.Addr) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return
	}
	a := tcp.AddrPort().Addr().Unmap().WithZone("")
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.own) < 32 {
		x.own[a] = true
	}
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "http":
		return "80"
	}
	return "443"
}

func hostPort(u *url.URL) string { return net.JoinHostPort(u.Hostname(), portOf(u)) }

// isOwn reports whether u is at the index's own origin.
func (x *index) isOwn(u *url.URL) bool {
	return u.Scheme == x.url.Scheme && strings.EqualFold(hostPort(u), hostPort(x.url))
}

// authenticated adds the credential to requests to the index's own origin, and to no other. It
// reports each attempt to the attempts in the request's context.
type authenticated struct {
	x    *index
	next http.RoundTripper
}

func (a authenticated) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	if t, ok := ctx.Value(attemptsKey{}).(attempts); ok {
		if err := t.record(r.URL); err != nil {
			return nil, err
		}
		ctx = t.trace(ctx, r.URL)
	}
	r = r.Clone(ctx)
	if !a.x.cfg.Credential.IsZero() {
		r.Header.Del(a.x.cfg.Header)
		if a.x.isOwn(r.URL) {
			r.Header.Set(a.x.cfg.Header, a.x.cfg.Credential.Reveal())
		}
	}
	r.Header.Del("Referer")
	return a.next.RoundTrip(r)
}

// formsOf returns the texts that reveal the value of a credential's header, if they are long enough
// not to be in many a page by chance: the token, or the user and password, and the password.
func formsOf(value string) (forms []string) {
	const guessable = 8
	token := value[strings.IndexByte(value, ' ')+1:]
	forms = []string{token}
	if login, err := base64.StdEncoding.DecodeString(token); err == nil && strings.HasPrefix(value, "Basic ") {
		_, password, _ := strings.Cut(string(login), ":")
		forms = append(forms, string(login), password)
	}
	return slices.DeleteFunc(forms, func(form string) bool { return len(form) < guessable })
}

// repeatsCredential reports whether a page has the index's credential in it, as a page for
// debugging may: code in a sandbox would read it there.
func (x *index) repeatsCredential(page []byte) bool {
	return slices.ContainsFunc(x.secrets, func(form string) bool { return bytes.Contains(page, []byte(form)) })
}

// redacted returns the text of an error without the index's credential, which it may have repeated.
func (x *index) redacted(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok { // whose address may be long
		err = u.Err
	}
	text := err.Error()
	for _, form := range x.secrets {
		text = strings.ReplaceAll(text, form, "[redacted]")
	}
	return untrusted.Clip(untrusted.Printable(text), 300)
}

// CloseIdleConnections is for http.Client.
func (a authenticated) CloseIdleConnections() {
	if t, ok := a.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// errAddress refuses an address that an index gave.
var errAddress = errors.New("the index refers to an address that is not allowed")

// checkAddress refuses an address unless it is https, or at the index's own origin.
func (x *index) checkAddress(u *url.URL) error {
	if u.User != nil || u.Hostname() == "" || u.Scheme != "https" && !x.isOwn(u) {
		return errAddress
	}
	return nil
}

func (x *index) checkRedirect(r *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("the index redirects too often")
	}
	if err := x.checkAddress(r.URL); err != nil {
		return fmt.Errorf("%w: it redirects to %s", err, r.URL.Host)
	}
	return nil
}

// attempts is notified of each attempt to send a request: the first, redirects and retries.
type attempts struct {
	record func(*url.URL) error // before each; its error prevents it
	sent   func()               // once the index may learn the address
}

// attemptsKey is the context's key of attempts.
type attemptsKey struct{}

// trace returns a context for a request that was recorded. If a connection ends that was used
// before, the transport repeats the request by itself; the repeat is recorded or not sent.
func (t attempts) trace(ctx context.Context, u *url.URL) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	recorded := true
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		if !recorded {
			if err := t.record(u); err != nil {
				cancel(err)
				_ = c.Conn.Close() // the request would be written before the transport looks at ctx
				return
			}
		}
		recorded = false
		t.sent()
	}})
}

// get requests u and returns the answer, whose body the caller closes.
func (x *index) get(ctx context.Context, u *url.URL, header http.Header) (*http.Response, error) {
	if err := x.checkAddress(u); err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errAddress
	}
	r.Header = header
	r.Header.Set("User-Agent", "mcp-code-sandbox")
	return x.client.Do(r)
}

// readAll reads at most limit bytes and counts them against a budget that all pages share.
func readAll(r io.Reader, limit int64, shared *quota, who *sandbox) ([]byte, func(), error) {
	counted := shared.reader(r, who)
	data, err := io.ReadAll(io.LimitReader(counted, limit+1))
	if int64(len(data)) > limit {
		err = fmt.Errorf("%w: it has more than %d MB", errTooLarge, limit>>20)
	}
	return data, counted.release, err
}
