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
	// A document is believed for as long as its host says, within these bounds; a failure, for the last.
	minDocumentAge, defaultDocumentAge, maxDocumentAge = 5 * time.Minute, time.Hour, 24 * time.Hour
	failureAge                                         = 30 * time.Second
)

// documents fetches the descriptions of clients whose id is the address of one (client id metadata documents). The address is a
// stranger's choice: it must be a public one, is asked once in a while, without credentials, for a few kilobytes, and no redirect is followed.
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
			Proxy:                  nil, // it would dial in our place
			DialContext:            dialer.DialContext,
			TLSHandshakeTimeout:    documentTimeout,
			MaxResponseHeaderBytes: 16 << 10,
			DisableKeepAlives:      true,
			DisableCompression:     true, // a bomb in a few kilobytes
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

// isDocumentID reports whether a client's id is meant to be the address of its description.
func isDocumentID(id string) bool { return strings.HasPrefix(id, "https://") }

// checkDocumentID tells what is wrong with such an address.
func checkDocumentID(id string) error {
	u, err := url.Parse(id)
	switch {
	case err != nil || len(id) > maxClientID || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Contains(id, "#"):
		return errors.New("the client_id is not the address of a client's description: https, no user name, no fragment")
	case u.Path == "" || u.Path == "/":
		return errors.New("the client_id is an address without a path")
	case u.String() != id:
		return errors.New("the client_id is an address in an unusual spelling")
	}
	for segment := range strings.SplitSeq(u.Path, "/") {
		if segment == "." || segment == ".." {
			return errors.New("the client_id is an address with dot segments")
		}
	}
	return nil
}

// get returns the client that the document describes. Its error can be shown: it tells nothing of what the address answered.
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
		return client{}, 0, errors.New("the client_id is not an address")
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "mcp-code-sandbox")
	resp, err := d.http.Do(req)
	if err != nil {
		// One text for all: whoever asks must not learn what our network looks like.
		return client{}, 0, errors.New("the client's description cannot be fetched from its client_id, which must be a public https address")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return client{}, 0, fmt.Errorf("the client's description cannot be fetched from its client_id: it answers with status %d", resp.StatusCode)
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" && !(strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return client{}, 0, errors.New("what is at the client_id is not JSON")
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDocument+1))
	if err != nil || len(body) > maxDocument {
		return client{}, 0, fmt.Errorf("the client's description cannot be read, or is larger than %d bytes", maxDocument)
	}
	c, err := parseDocument(id, body)
	return c, documentAge(resp.Header.Get("Cache-Control")), err
}

// parseDocument checks a description. It must name itself, or any JSON on any host could be taken for one.
func parseDocument(id string, body []byte) (client, error) {
	var m struct {
		clientMetadata
		Secret any `json:"client_secret"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return client{}, errors.New("what is at the client_id does not describe a client")
	}
	switch {
	case m.ClientID != id:
		return client{}, errors.New("the client's description is of another client_id")
	case m.Secret != nil:
		return client{}, errors.New("the client's description has a client_secret, which everybody can read")
	case m.AuthMethod != "" && m.AuthMethod != "none":
		return client{}, errors.New("the client's description asks for a token_endpoint_auth_method other than none")
	}
	if err := m.check(); err != nil {
		return client{}, fmt.Errorf("the client's description: %s", err.(*apiError).description)
	}
	u, err := url.Parse(id)
	if err != nil {
		return client{}, err
	}
	return client{ID: id, Name: cleanName(m.ClientName), Redirects: m.RedirectURIs, Document: u.Host}, nil
}

// documentAge reads for how long a document may be kept.
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

// publicOnly returns a net.Dialer's Control. It sees the address that is really dialled, whatever a name resolved to before.
func publicOnly(closed *closednet.List) func(network, address string, _ syscall.RawConn) error {
	return func(network, address string, _ syscall.RawConn) error {
		ap, err := netip.ParseAddrPort(address)
		if err != nil || !strings.HasPrefix(network, "tcp") || closed.Contains(ap.Addr()) {
			return errNotPublic
		}
		return nil
	}
}
