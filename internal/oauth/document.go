package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"mcp-code-sandbox/internal/closednet"
)

const (
	maxDocument     = 10 << 10
	documentTimeout = 5 * time.Second
	maxDocuments    = 500
	// Bounds of the time for which a document is cached, and the time for which a failure is.
	minDocumentAge, defaultDocumentAge, maxDocumentAge = 5 * time.Minute, time.Hour, 24 * time.Hour
	failureAge                                         = 30 * time.Second
)

// documents fetches and caches client id metadata documents. Since anybody may choose their URL, it
// connects to public addresses only, follows no redirect, sends no credentials and limits size and
// rate.
type documents struct {
	http   *http.Client
	now    func() time.Time
	all    *rate.Limiter
	flight singleflight.Group

	mu    sync.Mutex
	known map[string]document
}

type document struct {
	client client
	err    error
	until  time.Time
}

func newDocuments(transport http.RoundTripper, closed *closednet.List, now func() time.Time) *documents {
	if transport == nil {
		dialer := &net.Dialer{Timeout: documentTimeout, Control: publicOnly(closed)}
		transport = &http.Transport{
			Proxy:                  nil, // a proxy would bypass publicOnly
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    documentTimeout,
			MaxResponseHeaderBytes: 16 << 10,
			DisableKeepAlives:      true,
			DisableCompression:     true, // no decompression bombs
			ForceAttemptHTTP2:      true,
		}
	}
	return &documents{
		http: &http.Client{
			Transport:     transport,
			Timeout:       documentTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		now:   now,
		all:   rate.NewLimiter(rate.Every(time.Second), 20),
		known: map[string]document{},
	}
}

// isDocumentID reports whether a client_id is the URL of a document.
func isDocumentID(id string) bool { return strings.HasPrefix(id, "https://") }

// checkDocumentID checks the form of such a URL.
func checkDocumentID(id string) error {
	u, err := url.Parse(id)
	switch {
	case err != nil || len(id) > maxClientID || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Contains(id, "#"):
		return errors.New("the client_id is not a valid URL of a client's description: it needs https, no user name and no fragment")
	case u.Path == "" || u.Path == "/":
		return errors.New("the client_id is a URL without a path")
	case u.String() != id:
		return errors.New("the client_id is a URL that is not in its normal form")
	}
	for segment := range strings.SplitSeq(u.Path, "/") {
		if segment == "." || segment == ".." {
			return errors.New("the client_id is a URL with dot segments")
		}
	}
	return nil
}

// get returns the client that a document describes. Its error is safe to show: it does not quote
// the answer.
func (d *documents) get(ctx context.Context, id string) (client, error) {
	if err := checkDocumentID(id); err != nil {
		return client{}, err
	}
	d.mu.Lock()
	doc, ok := d.known[id]
	d.mu.Unlock()
	if ok && d.now().Before(doc.until) {
		return doc.client, doc.err
	}
	done := d.flight.DoChan(id, func() (any, error) {
		if !d.all.AllowN(d.now(), 1) {
			return document{err: errors.New("too many clients are being looked up, try again in a minute")}, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), documentTimeout)
		defer cancel()
		doc := document{until: d.now().Add(failureAge)}
		var age time.Duration
		if doc.client, age, doc.err = d.fetch(ctx, id); doc.err == nil {
			doc.until = d.now().Add(age)
		}
		d.keep(id, doc)
		return doc, nil
	})
	select {
	case r := <-done:
		doc = r.Val.(document)
		return doc.client, doc.err
	case <-ctx.Done():
		return client{}, ctx.Err()
	}
}

func (d *documents) keep(id string, doc document) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= maxDocuments {
		clear(d.known)
	}
	d.known[id] = doc
}

func (d *documents) fetch(ctx context.Context, id string) (client, time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, id, nil)
	if err != nil {
		return client{}, 0, errors.New("the client_id is not a valid URL")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "mcp-code-sandbox")
	resp, err := d.http.Do(req)
	if err != nil {
		// One message for all errors, which must not reveal our network.
		return client{}, 0, errors.New("the client's description cannot be fetched from its client_id, which must be a public https URL")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return client{}, 0, fmt.Errorf("the client's description cannot be fetched from its client_id: it answers with status %d", resp.StatusCode)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && !(strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return client{}, 0, errors.New("the document at the client_id is not JSON")
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil || len(body) > maxDocument {
		return client{}, 0, fmt.Errorf("the client's description cannot be read, or is larger than %d bytes", maxDocument)
	}
	c, err := parseDocument(id, body)
	return c, documentAge(resp.Header.Get("Cache-Control")), err
}

// parseDocument checks a document. It must contain its own URL, which arbitrary JSON does not.
func parseDocument(id string, body []byte) (client, error) {
	var m struct {
		clientMetadata
		Secret any `json:"client_secret"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return client{}, errors.New("the document at the client_id does not describe a client")
	}
	switch {
	case m.ClientID != id:
		return client{}, errors.New("the client's description belongs to another client_id")
	case m.Secret != nil:
		return client{}, errors.New("the client's description has a client_secret, which everybody can read")
	case m.AuthMethod != "" && m.AuthMethod != "none":
		return client{}, errors.New("the client's description asks for a token_endpoint_auth_method other than none")
	}
	if e := m.check(); e != nil {
		return client{}, fmt.Errorf("the client's description: %s", e.description)
	}
	u, err := url.Parse(id)
	if err != nil {
		return client{}, err
	}
	return client{ID: id, Name: cleanName(m.ClientName), Redirects: m.RedirectURIs, Document: u.Host}, nil
}

// documentAge returns how long to cache a document.
func documentAge(cacheControl string) time.Duration {
	for directive := range strings.SplitSeq(cacheControl, ",") {
		directive = strings.ToLower(strings.TrimSpace(directive))
		if directive == "no-store" || directive == "no-cache" {
			return minDocumentAge
		}
		if text, ok := strings.CutPrefix(directive, "max-age="); ok {
			if n, err := strconv.Atoi(text); err == nil {
				n = max(0, min(n, int(maxDocumentAge/time.Second)))
				return max(minDocumentAge, time.Duration(n)*time.Second)
			}
		}
	}
	return defaultDocumentAge
}

var errNotPublic = errors.New("not a public address")

// publicOnly returns a net.Dialer's Control, which checks the address after name resolution.
func publicOnly(closed *closednet.List) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil || !strings.HasPrefix(network, "tcp") || closed.Contains(ap.Addr()) {
			return errNotPublic
		}
		return nil
	}
}
