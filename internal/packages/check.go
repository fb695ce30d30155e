package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"

	xhtml "golang.org/x/net/html"
)

// maxRoot bounds how much of a list of projects the check reads.
const maxRoot = 1 << 20

// ErrAgeUnknown says that an index gives no upload times, so that nothing of it can be installed.
var ErrAgeUnknown = errors.New(CodeAgeUnknown)

// everywhere names a package of each kind that most general indexes have.
var everywhere = map[string]string{PyPI: "pip", NPM: "semver"}

// Check asks each index for a page, and returns the errors, such as ErrAgeUnknown. No index needs
// to know the package.
func (m *Mirror) Check(ctx context.Context) error {
	var errs []error
	for _, name := range m.Indexes() {
		for _, x := range m.kinds[name].indexes {
			if err := m.reach(ctx, m.kinds[name], x); err != nil {
				errs = append(errs, fmt.Errorf("%s, %s: %w", name, x.url.Redacted(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// Warnings returns what a kind's allow and deny shut out although the operator probably wants it:
// everything, or every name of an index with names. Each says what to do.
func (k Kind) Warnings(name string) (list []string) {
	allow, err := patterns(name, k.Allow)
	deny, err2 := patterns(name, k.Deny)
	section := "packages." + name
	switch {
	case err != nil || err2 != nil: // New reports it
		return nil
	case k.IsShut(name) && len(k.Deny) == 0:
		return []string{fmt.Sprintf("%s.allow is empty, so code can install nothing from %s: add names to it, or leave it out to allow all", section, name)}
	case k.IsShut(name):
		return []string{fmt.Sprintf("%s.allow and deny leave no name, so code can install nothing from %s: correct them", section, name)}
	}
	for _, x := range k.Indexes {
		names, err := patterns(name, x.Names)
		if err != nil || len(names) == 0 {
			continue
		}
		isAllowed := func(own string) bool {
			return allow == nil || slices.ContainsFunc(allow, func(p string) bool { return intersect(p, own) })
		}
		// A pattern of deny that matches the text of a pattern matches all of its names.
		isDenied := func(own string) bool { return matches(deny, own) }
		switch listed := strings.Join(names, ", "); {
		case !slices.ContainsFunc(names, isAllowed):
			list = append(list, fmt.Sprintf("%s.allow leaves out every name of the private index %s: add %s to %[1]s.allow", section, redactedURL(x.URL), listed))
		case !slices.ContainsFunc(names, func(own string) bool { return !isDenied(own) }):
			list = append(list, fmt.Sprintf("%s.deny has every name of the private index %s (%s): correct %[1]s.deny", section, redactedURL(x.URL), listed))
		}
	}
	return list
}

// IsShut reports whether allow or deny shut out every package.
func (k Kind) IsShut(name string) bool {
	allow, err := patterns(name, k.Allow)
	deny, err2 := patterns(name, k.Deny)
	return err == nil && err2 == nil && (allow != nil && len(allow) == 0 || matches(deny, "*"))
}

// redactedURL returns an address without a password.
func redactedURL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "of this kind"
	}
	return u.Redacted()
}

// maxSamples is how many of the projects that an index lists the check reads.
const maxSamples = 3

// reach returns an error unless the index answers as an index does: with the files of a package, or
// at its own address if it has no such package. It is also an error if code could install nothing
// of what the check has read, since the index does not say when it was released.
func (m *Mirror) reach(ctx context.Context, k *kind, x *index) error {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	q := &request{m: m, ctx: ctx, run: m.newRun("", "check", newSandbox("", "")), kind: k, name: everywhere[k.name]}
	defer q.run.sandbox.cancel()
	for _, name := range slices.Concat(k.allow, x.names) {
		if !strings.Contains(name, "*") && k.isOf(x, name) { // no other index may learn the name
			q.name = name
		}
	}
	p, err := q.fetch(ctx, x, q.name, nil, func() {})
	if err != nil {
		return errors.New(x.redacted(err))
	}
	if p.hasFiles() {
		return p.ageProblem()
	}
	asked := q.name
	samples, err := x.root(ctx, k, asked)
	if err != nil {
		return err
	}
	var without []string // projects whose pages have no files
	for _, q.name = range samples {
		p, err := q.fetch(ctx, x, q.name, nil, func() {})
		switch {
		case err != nil || p.missing: // a broken page of a project says nothing about the index
		case p.hasFiles():
			return p.ageProblem()
		default:
			without = append(without, q.name)
		}
	}
	if len(without) > 0 {
		return fmt.Errorf("it lists no files of %s, nor of %s, to which it has links: the address is probably not that of an index", asked, strings.Join(without, ", "))
	}
	return nil
}

// isOf reports whether code may install a package, and it belongs to an index.
func (k *kind) isOf(x *index, name string) bool {
	owner, why := k.indexOf(name)
	return why == nil && owner == x
}

func (p *project) hasFiles() bool { return len(p.files)+len(p.dropped) > 0 }

// ageProblem returns an error if nothing of a project can be installed since its age is unknown.
func (p *project) ageProblem() error {
	if p.newest == "" && p.note != nil && p.note.code == CodeAgeUnknown {
		return fmt.Errorf("%w: %w", ErrAgeUnknown, p.note)
	}
	return nil
}

// root returns an error unless the index, which has no files of a package, answers as an index at
// its own address. Otherwise it returns a few of the projects that the index lists there and code
// may install.
func (x *index) root(ctx context.Context, k *kind, name string) (samples []string, err error) {
	isOf := func(name string) bool { return k.isOf(x, name) }
	u, accept := x.url, simpleAccept
	isIndex := func(resp *http.Response) (is bool) { samples, is = x.projects(resp, isOf); return is }
	if k.name == NPM { // the root of a registry may be a page for people
		u, accept, isIndex = x.url.JoinPath("-/ping"), "application/json", isJSON
	}
	resp, err := x.get(ctx, u, http.Header{"Accept": {accept}})
	if err != nil {
		return nil, errors.New(x.redacted(err))
	}
	defer resp.Body.Close()
	answer := "a page that is not that of an index"
	switch found := resp.Request.URL; {
	case resp.StatusCode != http.StatusOK:
		answer = fmt.Sprintf("%d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	case isIndex(resp):
		return samples, nil
	case found.Host != u.Host:
		answer = "a page of " + found.Host + ", to which it redirects"
	}
	advice := ""
	if len(x.names) > 0 {
		advice = "; if it is, add one of its packages to names without a *, for this check"
	}
	return nil, fmt.Errorf("it lists no files of %s, and answers %s with %s: the address is probably not that of an index%s", name, u.Path, answer, advice)
}

// projects reports whether an answer is the list of an index's projects (PEP 503): its type or a
// meta tag says so, or it has a link to a project. It returns the first of those that are wanted.
func (x *index) projects(resp *http.Response, wanted func(name string) bool) (samples []string, isIndex bool) {
	note := func(name string) {
		if len(samples) < maxSamples && wanted(name) && !slices.Contains(samples, name) {
			samples = append(samples, name)
		}
	}
	body := io.LimitReader(resp.Body, maxRoot)
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if isIndex = strings.HasPrefix(media, "application/vnd.pypi.simple."); strings.HasSuffix(media, "+json") {
		_ = namesInJSON(body, note) // a list that is cut off is one, too
		return samples, isIndex
	}
	z := xhtml.NewTokenizer(body)
	for len(samples) < maxSamples {
		switch z.Next() {
		case xhtml.ErrorToken:
			return samples, isIndex
		case xhtml.StartTagToken, xhtml.SelfClosingTagToken:
		default:
			continue
		}
		t := z.Token()
		for _, a := range t.Attr {
			href, err := resolve(resp.Request.URL, a.Val)
			switch {
			case t.Data == "meta" && a.Key == "name" && a.Val == "pypi:repository-version":
				isIndex = true
			case t.Data == "a" && a.Key == "href" && err == nil:
				if name, ok := x.project(href); ok {
					isIndex = true
					note(name)
				}
			}
		}
	}
	return samples, isIndex
}

// namesInJSON passes the names of a list of projects (PEP 691) to note.
func namesInJSON(r io.Reader, note func(name string)) error {
	d := json.NewDecoder(r)
	return eachMember(d, func(key string) error {
		if key != "projects" {
			return skip(d)
		}
		return each(d, '[', func() error {
			var entry struct {
				Name string `json:"name"`
			}
			if err := d.Decode(&entry); err != nil {
				return err
			}
			if name, ok := parseName(PyPI, entry.Name); ok {
				note(name)
			}
			return nil
		})
	})
}

// project returns the name of the project whose page is at u.
func (x *index) project(u *url.URL) (name string, ok bool) {
	rest, below := strings.CutPrefix(u.Path, x.url.Path)
	name, valid := parseName(PyPI, strings.TrimSuffix(rest, "/"))
	return name, below && valid && x.isOwn(u)
}

// isJSON reports whether an answer is JSON.
func isJSON(resp *http.Response) bool {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return strings.HasSuffix(media, "json")
}
