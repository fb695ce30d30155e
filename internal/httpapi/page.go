package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/mediatype"
)

const (
	pageIndex  = "index.html"
	pageAssets = "assets/" // the names of files below change with their content

	// noncePlaceholder is replaced in the index by a nonce for each request.
	noncePlaceholder = "__CSP_NONCE__"
)

// pagePolicy runs only our scripts in the page that has the API token. They need the nonce and not
// just this origin, because files that code made share this origin. Frames show previews without
// scripts.
const pagePolicy = "default-src 'none'; script-src 'nonce-%[1]s'; style-src 'nonce-%[1]s'; img-src 'self' blob: data:; font-src 'self'; " +
	"connect-src 'self'; frame-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// assetPolicy applies to an asset that is opened by itself.
const assetPolicy = "default-src 'none'; frame-ancestors 'none'"

// pagePermissions denies browser features to the page and its frames.
const pagePermissions = "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), hid=(), magnetometer=(), " +
	"microphone=(), midi=(), payment=(), publickey-credentials-get=(), screen-wake-lock=(), serial=(), usb=(), xr-spatial-tracking=()"

// Page serves a built page: its index, with a new nonce for each request, and its assets. It has no
// secrets and needs no token.
type Page struct {
	index  [][]byte // the parts between the nonces
	assets map[string]*asset
}

// NewPage reads a page from files, which must have an index.html. It replaces __CSP_NONCE__ in it
// by the nonce for scripts and styles. The names of files under assets/ must change with their
// content.
func NewPage(files fs.FS) (*Page, error) {
	p := &Page{assets: map[string]*asset{}}
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if name == pageIndex {
			p.index = bytes.Split(content, []byte(noncePlaceholder))
			return nil
		}
		p.assets[name] = newAsset(name, content)
		return nil
	})
	if err == nil && p.index == nil {
		err = errors.New(pageIndex + " does not exist")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the page: %w", err)
	}
	return p, nil
}

// register adds the page to the mux.
func (p *Page) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", p.serveIndex)
	for name, a := range p.assets {
		mux.Handle("GET /"+name, a)
	}
}

func (p *Page) serveIndex(w http.ResponseWriter, r *http.Request) {
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Security-Policy", fmt.Sprintf(pagePolicy, nonce))
	h.Set("Permissions-Policy", pagePermissions)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("X-Frame-Options", "DENY")
	setIsolation(h)
	h.Set("Content-Type", "text/html; charset=utf-8")
	// It has no ETag: "not modified" would combine a new policy with an old nonce.
	h.Set("Cache-Control", "no-cache")
	body := bytes.Join(p.index, []byte(nonce))
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		body = compress(body, gzip.BestSpeed)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// asset is a file of the page.
type asset struct {
	content []byte
	gzipped func() []byte // compresses once; returns nil if that does not help
	kind    string
	etag    string
	cache   string
}

func newAsset(name string, content []byte) *asset {
	sum := sha256.Sum256(content)
	a := &asset{content: content, kind: mediatype.ContentType(name), etag: hex.EncodeToString(sum[:16]), cache: "no-cache"}
	if strings.HasPrefix(name, pageAssets) {
		a.cache = "public, max-age=31536000, immutable"
	}
	a.gzipped = sync.OnceValue(func() []byte {
		switch path.Ext(name) {
		case ".png", ".jpg", ".webp", ".woff2":
			return nil
		}
		if z := compress(content, gzip.BestCompression); len(z) < len(content) {
			return z
		}
		return nil
	})
	return a
}

func (a *asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", assetPolicy)
	setIsolation(h)
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", a.cache)
	body, etag := a.content, a.etag
	if acceptsGzip(r) {
		if z := a.gzipped(); z != nil {
			body, etag = z, etag+"-gzip"
			h.Set("Content-Encoding", "gzip")
		}
	}
	h.Set("ETag", `"`+etag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// setIsolation keeps other sites from embedding the page's files, and caches from mixing up
// encodings.
func setIsolation(h http.Header) {
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Vary", "Accept-Encoding")
}

func compress(b []byte, level int) []byte {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		panic(err) // not a valid level
	}
	z.Write(b) // a write to memory does not fail
	z.Close()
	return out.Bytes()
}

// acceptsGzip reports whether the answer may be compressed. Ranges count plain bytes.
func acceptsGzip(r *http.Request) bool {
	if r.Header.Get("Range") != "" {
		return false
	}
	for item := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		coding, quality, _ := strings.Cut(item, ";")
		if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			q := strings.TrimLeft(strings.ReplaceAll(quality, " ", ""), "qQ=")
			return strings.Trim(q, "0.") != "" || q == ""
		}
	}
	return false
}
