package packages

import (
	"container/list"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"
)

const (
	pageTTL     = 10 * time.Minute
	missingTTL  = time.Minute
	maxPages    = 96 << 20  // bytes of all pages in the cache
	maxReading  = 128 << 20 // bytes of pages that are being read
	maxSending  = 256 << 20 // bytes of projects whose pages are being sent
	minSending  = 32 << 20  // of these, what each sandbox may have in any case
	largePage   = 1 << 20   // the server parses one such page at a time
	maxProjects = 20_000
)

// file is a file of a package that may be installed.
type file struct {
	name     string
	version  string
	url      *url.URL
	hash     string // hex; sha256, or sha512 for npm
	size     int64  // 0: unknown
	metadata string // the sha256 hash of its metadata, which has the same address plus ".metadata"
}

// offer lists the versions of a project.
type offer struct {
	newest   string              // allowed version; "": none
	versions map[string]bool     // of all files
	dropped  map[string]*refusal // by version, those of which no file is allowed, as far as remembered
}

// project is what an index has of one package, as far as the policy allows it.
type project struct {
	*offer
	name    string
	missing bool             // the index does not know it
	files   map[string]*file // by hash and name; for npm also by name alone
	note    *refusal         // why the newest of the dropped versions is missing, or nil
	kept    int64            // about the bytes of files and dropped
	matures time.Time        // when the policy would allow more; zero: never
	body    []byte           // as JSON
	html    func() []byte    // as HTML, for PyPI

	etag    string
	fetched time.Time
}

func newProject(name string) *project {
	return &project{name: name, files: map[string]*file{}, offer: &offer{versions: map[string]bool{}, dropped: map[string]*refusal{}}}
}

// cost approximates the memory that p takes: the page in JSON, in HTML and as a list, and the rest.
func (p *project) cost() int64 { return int64(4*len(p.body)) + p.kept + 1024 }

func (p *project) json() []byte { return p.body }

// pageCache keeps projects in memory.
type pageCache struct {
	now     func() time.Time
	fetches group[*project]
	reading quota
	sending sending
	parsing chan struct{} // taken while a large page is parsed

	mu    sync.Mutex
	size  int64
	order *list.List // of *page, the last used first
	pages map[string]*list.Element
}

type page struct {
	key     string
	project *project
}

func newPageCache(now func() time.Time) *pageCache {
	return &pageCache{now: now, order: list.New(), pages: map[string]*list.Element{}, reading: quota{limit: maxReading},
		sending: sending{quota: quota{limit: maxSending, least: minSending}, to: map[*offer][]*sandbox{}}, parsing: make(chan struct{}, 1)}
}

// sending bounds the projects whose pages are being sent. A project counts once, for the first of
// the sandboxes that still receive it.
type sending struct {
	quota quota

	mu sync.Mutex
	to map[*offer][]*sandbox // with one entry per page
}

// begin reports whether a sandbox may receive a page. If so, end is to be called afterwards.
func (s *sending) begin(who *sandbox, p *project) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.to[p.offer]) == 0 && !s.quota.add(who, p.cost()) {
		s.quota.add(who, -p.cost())
		return false
	}
	s.to[p.offer] = append(s.to[p.offer], who)
	return true
}

func (s *sending) end(who *sandbox, p *project) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.to[p.offer], who)
	left := slices.Delete(s.to[p.offer], i, i+1)
	if s.to[p.offer] = left; len(left) == 0 {
		delete(s.to, p.offer)
	}
	if i > 0 {
		return
	}
	s.quota.add(who, -p.cost())
	if len(left) > 0 {
		s.quota.add(left[0], p.cost())
	}
}

// get returns a project and whether it is fresh. A stale one can be revalidated.
func (c *pageCache) get(key string) (p *project, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.pages[key]
	if e == nil {
		return nil, false
	}
	c.order.MoveToFront(e)
	p = e.Value.(*page).project
	ttl := pageTTL
	if p.missing {
		ttl = missingTTL
	}
	age := c.now().Sub(p.fetched)
	return p, 0 <= age && age < ttl
}

func (c *pageCache) put(key string, p *project) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(c.pages[key])
	c.pages[key] = c.order.PushFront(&page{key, p})
	c.size += p.cost()
	for c.order.Len() > 1 && (c.size > maxPages || c.order.Len() > maxProjects) {
		c.remove(c.order.Back())
	}
}

func (c *pageCache) remove(e *list.Element) {
	if e == nil {
		return
	}
	old := c.order.Remove(e).(*page)
	delete(c.pages, old.key)
	c.size -= old.project.cost()
}

// validator returns the entity tag with which p can be revalidated, or "". A page of which the
// policy allows more by now must be read again.
func (p *project) validator(now time.Time) string {
	if p == nil || !p.matures.IsZero() && !now.Before(p.matures) {
		return ""
	}
	return p.etag
}

// etagOf returns the entity tag of an answer, unless it is unreasonable.
func etagOf(h http.Header) string {
	if tag := h.Get("ETag"); len(tag) <= 256 {
		return tag
	}
	return ""
}
