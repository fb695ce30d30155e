package oauth

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// documentHost serves one client's document over https and counts requests.
type documentHost struct {
	*httptest.Server
	asked  atomic.Int32
	answer func(w http.ResponseWriter, r *http.Request)
}

func newDocumentHost(t *testing.T) *documentHost {
	h := &documentHost{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.asked.Add(1)
		h.answer(w, r)
	}))
	t.Cleanup(h.Close)
	h.answer = func(w http.ResponseWriter, r *http.Request) { h.document(w, r, nil) }
	return h
}

func (h *documentHost) id() string { return h.URL + "/client.json" }

func (h *documentHost) document(w http.ResponseWriter, _ *http.Request, edit func(map[string]any)) {
	doc := map[string]any{"client_id": h.id(), "client_name": "Document Client", "redirect_uris": []string{loopbackRedirect, webRedirect}, "token_endpoint_auth_method": "none"}
	if edit != nil {
		edit(doc)
	}
	writeJSON(w, 200, doc)
}

func TestClientByDocument(t *testing.T) {
	h := newDocumentHost(t)
	s := newSite(t, func(c *Config) { c.ClientDocuments = h.Client().Transport })
	b := s.browser()

	// The server fetches documents for logged-in users only.
	b.StopAt = append(b.StopAt, s.idp.URL)
	if p := b.Get(s.authorizeURL(s.ask(h.id(), loopbackRedirect))); p.Status != 0 || h.asked.Load() != 0 {
		t.Errorf("at %s, asked %d times", p.URL, h.asked.Load())
	}
	b.StopAt = b.StopAt[:len(b.StopAt)-1]

	page := b.Get(s.authorizeURL(s.ask(h.id(), loopbackRedirect)))
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	wantPage(t, page, 200, "described by <b>"+u.Host+"</b>")
	wantPage(t, page, 200, "Document Client")
	a := s.ask(h.id(), loopbackRedirect)
	r := s.tokens(b, a)
	if !s.alive(r.AccessToken) || h.asked.Load() != 1 {
		t.Errorf("asked %d times, want once", h.asked.Load())
	}
	if r = s.post("/oauth/token", a.refresh(r.RefreshToken)); r.Status != 200 {
		t.Errorf("refresh: %s", r.Body)
	}
	wantPage(t, b.Get(s.authorizeURL(s.ask(h.id(), "https://evil.example/"))), 400, "redirect_uri")
	s.clock.advance(defaultDocumentAge)
	b.Get(s.url("/oauth/login"))
	b.Get(s.authorizeURL(s.ask(h.id(), loopbackRedirect)))
	if h.asked.Load() != 2 {
		t.Errorf("asked %d times after the document's age, want twice", h.asked.Load())
	}
}

func TestDocumentsThatAreRefused(t *testing.T) {
	edited := func(edit func(map[string]any)) func(*documentHost) {
		return func(h *documentHost) {
			h.answer = func(w http.ResponseWriter, r *http.Request) { h.document(w, r, edit) }
		}
	}
	set := func(k string, v any) func(*documentHost) { return edited(func(d map[string]any) { d[k] = v }) }
	for name, c := range map[string]struct {
		edit func(*documentHost)
		want string
	}{
		"of another client":  {set("client_id", "https://claude.ai/client.json"), "another client_id"},
		"of no client":       {edited(func(d map[string]any) { delete(d, "client_id") }), "another client_id"},
		"with a secret":      {set("client_secret", "x"), "client_secret"},
		"with a method":      {set("token_endpoint_auth_method", "private_key_jwt"), "token_endpoint_auth_method"},
		"without addresses":  {set("redirect_uris", []string{}), "redirect_uris"},
		"with a bad address": {set("redirect_uris", []string{"javascript:alert(1)"}), "redirect_uris[0]"},
		"too large":          {set("client_uri", strings.Repeat("x", maxDocument)), "larger than"},
		"not JSON": {func(h *documentHost) {
			h.answer = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }
		}, "not JSON"},
		"a list": {func(h *documentHost) {
			h.answer = func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, 200, []string{}) }
		}, "does not describe"},
		"missing": {func(h *documentHost) { h.answer = http.NotFound }, "status 404"},
		"elsewhere": {func(h *documentHost) {
			h.answer = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
			}
		}, "status 302"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newDocumentHost(t)
			c.edit(h)
			d := newDocuments(h.Client().Transport, nil, time.Now)
			for range 2 {
				if _, err := d.get(t.Context(), h.id()); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
			}
			if h.asked.Load() != 1 {
				t.Errorf("asked %d times: a failure is not remembered", h.asked.Load())
			}
		})
	}
}

// The real transport reaches no address of our own network.
func TestDocumentsOfOurOwnNetwork(t *testing.T) {
	h := newDocumentHost(t)
	u, err := url.Parse(h.URL)
	if err != nil {
		t.Fatal(err)
	}
	d := newDocuments(nil, nil, time.Now)
	transport := d.http.Transport.(*http.Transport)
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "127.1"} {
		id := "https://" + host + ":" + u.Port() + "/client.json"
		if _, err := d.get(t.Context(), id); err == nil || !strings.Contains(err.Error(), "public https URL") {
			t.Errorf("%s: %v", id, err)
		}
	}
	if h.asked.Load() != 0 {
		t.Errorf("asked %d times", h.asked.Load())
	}
	if _, err := transport.DialContext(t.Context(), "tcp", u.Host); !errors.Is(err, errNotPublic) {
		t.Errorf("dial: %v", err)
	}
	if transport.Proxy != nil {
		t.Error("a proxy would dial in our place")
	}
}

// roundTripper is an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestDocumentThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDocuments(roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}), nil, time.Now)
		begin := time.Now()
		if _, err := d.get(t.Context(), "https://slow.example/client.json"); err == nil || time.Since(begin) > documentTimeout+time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		// A flood of clients is rate-limited.
		var busy int
		for i := range 40 {
			d.http.Transport = roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("no such host") })
			if _, err := d.get(t.Context(), fmt.Sprintf("https://flood.example/%d", i)); strings.Contains(err.Error(), "too many") {
				busy++
			}
		}
		if busy < 15 {
			t.Errorf("%d of 40 at once were put off", busy)
		}
	})
}

func TestDocumentAge(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": time.Hour, "max-age=600": 10 * time.Minute, "public, MAX-AGE=7200": 2 * time.Hour, "max-age=1": 5 * time.Minute, "no-store": 5 * time.Minute,
		"max-age=99999999999": 24 * time.Hour, "max-age=-5": 5 * time.Minute, "max-age=x": time.Hour,
	} {
		if got := documentAge(header); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}
