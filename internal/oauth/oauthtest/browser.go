package oauthtest

import (
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Browser is one person's browser. It keeps cookies, follows redirects, sends forms as browsers do
// (Origin, Sec-Fetch-Site) and enforces form-action of a page's Content-Security-Policy. It runs no
// scripts.
type Browser struct {
	t    testing.TB
	http *http.Client
	// StopAt lists prefixes of URLs at which the browser stops without fetching them, such as the
	// redirect URI of a program.
	StopAt []string
}

// Page is the page at which the browser has arrived.
type Page struct {
	URL    *url.URL
	Status int // 0: not fetched, see StopAt
	Header http.Header
	Body   string
	Chain  []string // the URLs on the way, this one last
}

// NewBrowser returns a browser without cookies. transport may be nil.
func NewBrowser(t testing.TB, transport http.RoundTripper, stopAt ...string) *Browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Browser{t: t, StopAt: stopAt, http: &http.Client{Jar: jar, Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Cookies returns the cookies for a URL.
func (b *Browser) Cookies(at string) []*http.Cookie {
	u, err := url.Parse(at)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.http.Jar.Cookies(u)
}

// SetCookies adds cookies for a URL.
func (b *Browser) SetCookies(at string, cookies ...*http.Cookie) {
	u, err := url.Parse(at)
	if err != nil {
		b.t.Fatal(err)
	}
	b.http.Jar.SetCookies(u, cookies)
}

// Get opens a URL.
func (b *Browser) Get(at string) *Page {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, at, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.visit(req, nil)
}

// Submit sends the page's form whose action ends in action, with its hidden fields and the given
// ones.
func (b *Browser) Submit(p *Page, action string, fields map[string]string) *Page {
	b.t.Helper()
	to, values := b.Form(p, action)
	for k, v := range fields {
		values.Set(k, v)
	}
	origin := p.URL.Scheme + "://" + p.URL.Host
	if p.Header.Get("Referrer-Policy") == "no-referrer" {
		origin = "null"
	}
	return b.Post(to, values, p, map[string]string{"Origin": origin, "Sec-Fetch-Site": "same-origin"})
}

// Post sends a form with the given headers. If page is not nil, its policy limits the redirects.
func (b *Browser) Post(to string, values url.Values, page *Page, headers map[string]string) *Page {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, to, strings.NewReader(values.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	return b.visit(req, page)
}

// Form returns the URL and the hidden fields of a form.
func (b *Browser) Form(p *Page, action string) (string, url.Values) {
	b.t.Helper()
	for _, form := range formPattern.FindAllStringSubmatch(p.Body, -1) {
		to := html.UnescapeString(form[1])
		if !strings.HasSuffix(to, action) {
			continue
		}
		at, err := p.URL.Parse(to)
		if err != nil {
			b.t.Fatal(err)
		}
		values := url.Values{}
		for _, field := range hiddenPattern.FindAllStringSubmatch(form[2], -1) {
			values.Set(html.UnescapeString(field[1]), html.UnescapeString(field[2]))
		}
		return at.String(), values
	}
	b.t.Fatalf("no form for %s at %s:\n%s", action, p.URL, p.Body)
	return "", nil
}

var (
	formPattern   = regexp.MustCompile(`(?s)<form method="post" action="([^"]*)">(.*?)</form>`)
	hiddenPattern = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
)

// visit follows redirects with GET.
func (b *Browser) visit(req *http.Request, from *Page) *Page {
	b.t.Helper()
	page := &Page{}
	for range 20 {
		page.URL = req.URL
		page.Chain = append(page.Chain, req.URL.String())
		if from != nil && !allowed(from, req.URL) {
			b.t.Fatalf("a browser would stop here: the form-action of %s, %q, does not allow %s", from.URL, from.Header.Get("Content-Security-Policy"), req.URL)
		}
		if slices.ContainsFunc(b.StopAt, func(prefix string) bool { return strings.HasPrefix(req.URL.String(), prefix) }) {
			return page
		}
		resp, err := b.http.Do(req)
		if err != nil {
			b.t.Fatal(err)
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		resp.Body.Close()
		if err != nil {
			b.t.Fatal(err)
		}
		page.Status, page.Header, page.Body = resp.StatusCode, resp.Header, string(body)
		location := resp.Header.Get("Location")
		if resp.StatusCode/100 != 3 || location == "" {
			return page
		}
		to, err := req.URL.Parse(location)
		if err != nil {
			b.t.Fatalf("Location: %q: %v", location, err)
		}
		page.Status, page.Header, page.Body = 0, nil, ""
		if req, err = http.NewRequestWithContext(b.t.Context(), http.MethodGet, to.String(), nil); err != nil {
			b.t.Fatal(err)
		}
	}
	b.t.Fatalf("too many redirects: %v", page.Chain)
	return nil
}

// allowed reports whether a page's form-action allows a URL. Like Chromium, it checks redirects,
// too.
func allowed(from *Page, to *url.URL) bool {
	for directive := range strings.SplitSeq(from.Header.Get("Content-Security-Policy"), ";") {
		sources, ok := strings.CutPrefix(strings.TrimSpace(directive), "form-action ")
		if !ok {
			continue
		}
		return slices.ContainsFunc(strings.Fields(sources), func(source string) bool {
			if source == "'self'" {
				source = from.URL.Scheme + "://" + from.URL.Host
			}
			return source == to.Scheme+":" || source == to.Scheme+"://"+to.Host
		})
	}
	return true
}
