package packages

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	xhtml "golang.org/x/net/html"

	"mcp-code-sandbox/internal/untrusted"
	"mcp-code-sandbox/internal/versionrange"
)

// maxVerdicts bounds how many files with metadata the mirror remembers.
const maxVerdicts = 20_000

const (
	simpleJSON   = "application/vnd.pypi.simple.v1+json"
	simpleHTML   = "application/vnd.pypi.simple.v1+html"
	simpleAccept = simpleJSON + ", " + simpleHTML + ";q=0.2, text/html;q=0.1"
)

// servePyPI serves the simple API (PEP 503, 691, 658).
func (q *request) servePyPI(path []string) *refusal {
	switch {
	case len(path) == 3 && path[0] == "simple" && path[2] == "":
		p, _, why := q.project(path[1])
		if why != nil {
			return why
		}
		if wantsJSON(q.r.Header.Get("Accept")) {
			return q.sendPage(p, simpleJSON, p.json)
		}
		return q.sendPage(p, "text/html; charset=utf-8", p.html)
	case len(path) == 2 && path[0] == "simple" && path[1] != "":
		name, ok := parseName(PyPI, path[1])
		if !ok {
			return notServed
		}
		q.w.Header().Set("Location", name+"/")
		q.w.WriteHeader(http.StatusMovedPermanently)
		return nil
	case len(path) == 4 && path[0] == "files":
		return q.servePyPIFile(path[1], path[2], path[3])
	}
	return notServed
}

func (q *request) servePyPIFile(name, hash, fileName string) *refusal {
	p, x, why := q.project(name)
	if why != nil {
		return why
	}
	base, isMetadata := strings.CutSuffix(fileName, ".metadata")
	f := p.files[hash+"/"+base]
	switch {
	case f == nil, isMetadata && f.metadata == "":
		version, _ := fileVersion(p.name, base)
		return q.noFile(p, version)
	case isMetadata:
		return q.sendFile(x, &file{url: f.url}, f.metadata, ".metadata", q.checkMetadata)
	}
	return q.sendFile(x, f, f.hash, "", nil)
}

// noFile says why a file of a version is not served. The note stands for the versions that are not
// remembered, and for all if none is allowed.
func (q *request) noFile(p *project, version string) *refusal {
	switch why := p.dropped[version]; {
	case why != nil:
		return why
	case p.note != nil && (p.newest == "" || len(p.dropped) >= maxDropped):
		return p.note
	}
	return refuse(codeNotFound, "The index has no such file of %s.", p.name)
}

// checkMetadata refuses a package that depends on something outside the index.
func (q *request) checkMetadata(c *content) *refusal {
	v, err := q.m.verdicts.get(q.ctx, c)
	switch {
	case err != nil:
		return q.failure(err)
	case !v.readable:
		return refuse(CodeNotAllowed, "The metadata of %s can be read in several ways, so its dependencies cannot be checked. Use another version.", q.name)
	case v.foreign != "":
		return refuse(CodeNotAllowed, "%s depends on something by its address (%s), which the mirror cannot check. Use another version.", q.name, v.foreign)
	}
	return nil
}

// verdict says what a file with metadata has that the mirror refuses.
type verdict struct {
	foreign  string // a requirement that is an address; "": none
	readable bool   // in one way only
}

// verdicts remembers what was found in metadata, so that no run can have it read again and again.
// It holds one file in memory at a time.
type verdicts struct {
	reading chan struct{} // taken while a file is read

	mu    sync.Mutex
	known map[string]verdict // by the hash of the file
}

func newVerdicts() *verdicts {
	return &verdicts{reading: make(chan struct{}, 1), known: map[string]verdict{}}
}

// get returns the verdict about a file.
func (s *verdicts) get(ctx context.Context, c *content) (verdict, error) {
	if v, ok := s.cached(c.hash); ok {
		return v, nil
	}
	select {
	case s.reading <- struct{}{}:
		defer func() { <-s.reading }()
	case <-ctx.Done():
		return verdict{}, context.Cause(ctx)
	}
	if v, ok := s.cached(c.hash); ok { // read since
		return v, nil
	}
	if c.opened.size > maxMetadata { // it is in the cache as something else
		return verdict{}, fmt.Errorf("%w: it has more than %d MB", errTooLarge, maxMetadata>>20)
	}
	var text strings.Builder
	text.Grow(int(c.opened.size))
	_, err := io.Copy(&text, bound{ctx, c})
	if err == nil {
		_, err = c.Seek(0, io.SeekStart)
	}
	if err != nil {
		return verdict{}, err
	}
	foreign, readable := foreignRequirement(text.String())
	v := verdict{strings.Clone(foreign), readable}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxVerdicts {
		clear(s.known)
	}
	s.known[c.hash] = v
	return v, nil
}

func (s *verdicts) cached(hash string) (v verdict, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok = s.known[hash]
	return v, ok
}

// wantsJSON reports whether a client prefers JSON: it lists it, since HTML is the fallback.
func wantsJSON(accept string) bool {
	return strings.Contains(accept, simpleJSON) || strings.Contains(accept, "application/vnd.pypi.simple.latest+json")
}

// hashes of a file: those that the mirror uses.
type hashes struct {
	SHA256 string `json:"sha256,omitempty"`
}

// simpleFile is a file of a project, as an index lists it and as the mirror does.
type simpleFile struct {
	Filename       string          `json:"filename"`
	URL            string          `json:"url"`
	Hashes         hashes          `json:"hashes"`
	RequiresPython string          `json:"requires-python,omitempty"`
	Size           int64           `json:"size,omitempty"`
	UploadTime     string          `json:"upload-time,omitempty"`
	Yanked         json.RawMessage `json:"yanked,omitempty"` // a boolean or the reason
	CoreMetadata   json.RawMessage `json:"core-metadata,omitempty"`
	DistInfo       json.RawMessage `json:"data-dist-info-metadata,omitempty"` // its older name
}

type simplePage struct {
	Meta  map[string]string `json:"meta"`
	Name  string            `json:"name"`
	Files []simpleFile      `json:"files"`
}

// parsePyPI reads a project's page and applies the policy.
func (m *Mirror) parsePyPI(x *index, name string, base *url.URL, contentType string, data []byte) (*project, error) {
	p := newProject(name)
	page := simplePage{Meta: map[string]string{"api-version": "1.0"}, Name: name, Files: []simpleFile{}}
	allowed := map[string]bool{}
	admit := func(base *url.URL, s simpleFile) error {
		version, ok := fileVersion(name, s.Filename)
		if !ok {
			return nil // of another project, or of a kind that no client installs
		}
		f, why := m.admitPyPI(x, p, base, version, &s)
		if why != nil {
			p.drop(version, why)
			return nil
		}
		allowed[version] = true
		if p.newest == "" || newer(version, p.newest) {
			p.newest = version
		}
		page.Files = append(page.Files, s)
		return p.add(f, f.hash+"/"+f.name)
	}
	parse := parseSimpleHTML
	if media, _, _ := mime.ParseMediaType(contentType); strings.HasSuffix(media, "json") {
		parse = parseSimpleJSON
	}
	if err := parse(base, data, admit); err != nil {
		return nil, err
	}
	p.finish(func(v string) bool { return allowed[v] })
	body, err := json.Marshal(page)
	p.body, p.html = body, sync.OnceValue(func() []byte { return renderSimple(body) })
	return p, err
}

// parseSimpleJSON reads a page of the simple API in JSON.
func parseSimpleJSON(base *url.URL, data []byte, admit func(*url.URL, simpleFile) error) error {
	d := json.NewDecoder(bytes.NewReader(data))
	err := eachMember(d, func(key string) error {
		if key != "files" {
			return skip(d)
		}
		return each(d, '[', func() error {
			var s simpleFile
			if err := d.Decode(&s); err != nil {
				return err
			}
			return admit(base, s)
		})
	})
	if err != nil {
		return err
	}
	return ended(d)
}

// fileVersion returns the version in the name of a wheel or a source distribution of a project.
func fileVersion(project, name string) (string, bool) {
	if !fileName.MatchString(name) {
		return "", false
	}
	if rest, ok := strings.CutSuffix(name, ".whl"); ok {
		parts := strings.Split(rest, "-")
		return cmp.Or(parts[min(1, len(parts)-1)], "?"), (len(parts) == 5 || len(parts) == 6) && versionrange.NormalizeName(parts[0]) == project
	}
	for _, suffix := range []string{".tar.gz", ".zip"} {
		if rest, ok := strings.CutSuffix(name, suffix); ok {
			i := strings.LastIndexByte(rest, '-')
			return rest[i+1:], i > 0 && i+1 < len(rest) && versionrange.NormalizeName(rest[:i]) == project
		}
	}
	return "", false
}

// admitPyPI applies the policy to a file, and replaces what the index says by what the mirror does.
func (m *Mirror) admitPyPI(x *index, p *project, base *url.URL, version string, s *simpleFile) (*file, *refusal) {
	if why := m.checkAge(x, p, version, s.UploadTime); why != nil {
		return nil, why
	}
	if m.cfg.WheelsOnly && !strings.HasSuffix(s.Filename, ".whl") {
		return nil, refuse(CodeNoWheel, "%s %s has no wheel, only source, and this server installs wheels only. "+
			"Use another version or package; the operator can set packages.wheelsOnly to false in SANDBOX_CONFIG.", p.name, showVersion(version))
	}
	f := &file{name: s.Filename, version: version, hash: strings.ToLower(s.Hashes.SHA256), size: max(s.Size, 0)}
	if len(f.hash) != 64 || !hexHash.MatchString(f.hash) {
		return nil, refuse(CodeNotAllowed, "The index gives no sha256 hash for %s %s, so its files cannot be checked. Use another version.", p.name, showVersion(version))
	}
	u, err := resolve(base, s.URL)
	if err == nil {
		err = x.checkAddress(u)
	}
	if err != nil {
		return nil, badAddress(p.name, version)
	}
	u.Fragment, u.RawFragment = "", ""
	f.url = u
	f.metadata = metadataHash(s.CoreMetadata, s.DistInfo)
	var reason string // which pip prints: it must not look like another line of pip
	if json.Unmarshal(s.Yanked, &reason) == nil && reason != "" {
		s.Yanked, _ = json.Marshal(untrusted.Printable(untrusted.Clip(reason, 200)))
	}
	s.URL = "../../files/" + p.name + "/" + f.hash + "/" + url.PathEscape(f.name)
	s.Hashes.SHA256 = f.hash
	if !plainPythons.MatchString(s.RequiresPython) { // pip prints it, and ignores what it cannot parse
		s.RequiresPython = ""
	}
	s.CoreMetadata, s.DistInfo = nil, nil
	if f.metadata != "" {
		s.CoreMetadata = json.RawMessage(`{"sha256":"` + f.metadata + `"}`)
		s.DistInfo = s.CoreMetadata
	}
	return f, nil
}

func badAddress(name, version string) *refusal {
	return refuse(CodeNotAllowed, "The index refers for %s %s to an address that is not allowed. Use another version.", name, showVersion(version))
}

// metadataHash returns the sha256 hash of a file's metadata, or "" if it cannot be checked.
func metadataHash(fields ...json.RawMessage) string {
	for _, raw := range fields {
		var h hashes
		if json.Unmarshal(raw, &h) == nil && len(h.SHA256) == 64 && hexHash.MatchString(h.SHA256) {
			return h.SHA256
		}
	}
	return ""
}

// checkAge refuses a release that is too new, or whose age is unknown.
func (m *Mirror) checkAge(x *index, p *project, version, uploaded string) *refusal {
	minAge, setting := m.cfg.MinAge, "packages.minAge"
	if x.cfg.MinAge != nil {
		minAge = *x.cfg.MinAge
	}
	if minAge <= 0 {
		return nil
	}
	if len(x.names) > 0 {
		setting = "minAge in its entry of private"
	}
	t, err := time.Parse(time.RFC3339, uploaded)
	if err != nil {
		return refuse(CodeAgeUnknown, "The index does not say when %s %s was released, and packages must be %s old. "+
			"Use another version; the operator can use an index that says it, or set %s to 0 in SANDBOX_CONFIG.",
			p.name, showVersion(version), Age(minAge), setting)
	}
	if ripe := t.Add(minAge); ripe.After(m.cfg.Now()) {
		if p.matures.IsZero() || ripe.Before(p.matures) {
			p.matures = ripe
		}
		return refuse(CodeTooNew, "%s %s was released on %s; a release must be %s old, because most poisoned ones live for hours.",
			p.name, showVersion(version), t.UTC().Format("2006-01-02 15:04 UTC"), Age(minAge))
	}
	return nil
}

// Age returns a duration in words, such as "3 days" or "1h30m".
func Age(d time.Duration) string {
	if days := d / (24 * time.Hour); d%(24*time.Hour) == 0 && days > 1 {
		return fmt.Sprintf("%d days", days)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// parseSimpleHTML reads a page of the simple API in HTML.
func parseSimpleHTML(base *url.URL, data []byte, admit func(*url.URL, simpleFile) error) error {
	z := xhtml.NewTokenizer(bytes.NewReader(data))
	z.SetMaxBuf(1 << 20)
	for n := 0; n <= maxFiles; {
		switch z.Next() {
		case xhtml.ErrorToken:
			if err := z.Err(); err != io.EOF {
				return err
			}
			return nil
		case xhtml.StartTagToken, xhtml.SelfClosingTagToken:
		default:
			continue
		}
		t := z.Token()
		switch t.Data {
		case "form", "input":
			return errors.New("it is a page to fill in, such as one for a login, not one of an index")
		case "a", "base":
		default:
			continue
		}
		n++
		attributes := map[string]string{}
		for _, a := range t.Attr {
			attributes[a.Key] = a.Val
		}
		href, err := resolve(base, attributes["href"])
		switch {
		case err != nil:
		case t.Data == "base":
			base = href
		default:
			if err := admit(base, fromAnchor(href, attributes)); err != nil {
				return err
			}
		}
	}
	return errTooMany
}

// fromAnchor returns the file to which an anchor refers.
func fromAnchor(href *url.URL, attributes map[string]string) simpleFile {
	s := simpleFile{
		Filename: href.Path[strings.LastIndexByte(href.Path, '/')+1:], RequiresPython: attributes["data-requires-python"],
		UploadTime: attributes["data-upload-time"], // not in the standard, but some indexes have it
	}
	s.Hashes.SHA256, _ = strings.CutPrefix(href.Fragment, "sha256=") // another one is no sha256 hash
	if reason, yanked := attributes["data-yanked"]; yanked {
		s.Yanked = json.RawMessage("true")
		if coded, err := json.Marshal(reason); err == nil && reason != "" {
			s.Yanked = coded
		}
	}
	for _, name := range []string{"data-core-metadata", "data-dist-info-metadata"} {
		if sum, ok := strings.CutPrefix(attributes[name], "sha256="); ok && hexHash.MatchString(sum) {
			s.CoreMetadata = json.RawMessage(`{"sha256":"` + sum + `"}`)
		}
	}
	href.Fragment, href.RawFragment = "", ""
	s.URL = href.String()
	return s
}

// renderSimple writes a page of the mirror in HTML.
func renderSimple(body []byte) []byte {
	var page simplePage
	_ = json.Unmarshal(body, &page) // the mirror's own
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!DOCTYPE html><html><head><meta name=\"pypi:repository-version\" content=\"1.0\"><title>%s</title></head><body>\n", html.EscapeString(page.Name))
	for _, f := range page.Files {
		fmt.Fprintf(&b, `<a href="%s#sha256=%s"`, html.EscapeString(f.URL), f.Hashes.SHA256)
		attribute := func(name, value string) { fmt.Fprintf(&b, ` %s="%s"`, name, html.EscapeString(value)) }
		if f.RequiresPython != "" {
			attribute("data-requires-python", f.RequiresPython)
		}
		if sum := metadataHash(f.CoreMetadata); sum != "" {
			attribute("data-core-metadata", "sha256="+sum)
			attribute("data-dist-info-metadata", "sha256="+sum)
		}
		if y := string(f.Yanked); y != "" && y != "false" && y != "null" {
			var reason string
			_ = json.Unmarshal(f.Yanked, &reason) // true has no reason
			attribute("data-yanked", reason)
		}
		fmt.Fprintf(&b, ">%s</a><br>\n", html.EscapeString(f.Filename))
	}
	b.WriteString("</body></html>\n")
	return b.Bytes()
}
