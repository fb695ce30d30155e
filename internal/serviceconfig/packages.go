package serviceconfig

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/secret"
)

// Packages is the section of the packages that code may install.
type Packages struct {
	// Kinds are those that the section names. The index without names is missing if the section
	// leaves it to the host's configuration.
	Kinds      map[string]packages.Kind
	MinAge     time.Duration
	WheelsOnly bool
	CacheBytes int64
}

// DefaultPackages returns what holds without the section: no kind is on.
func DefaultPackages() *Packages {
	return &Packages{Kinds: map[string]packages.Kind{}, MinAge: packages.DefaultMinAge, WheelsOnly: true}
}

// packages reads the section, or returns the defaults if it is missing.
func (r *reader) packages(top object) *Packages {
	p := DefaultPackages()
	if !top.has("packages") {
		return p
	}
	o, ok := r.object("packages", top.members["packages"], append([]string{"minAge", "wheelsOnly", "cacheBytes"}, packages.Kinds...)...)
	if !ok {
		return p
	}
	p.MinAge = o.minAge()
	if o.has("wheelsOnly") {
		p.WheelsOnly = o.flag("wheelsOnly")
	}
	p.CacheBytes = o.bytes("cacheBytes", 1<<20, packages.DefaultCacheBytes)
	for _, kind := range packages.Kinds {
		if o.has(kind) {
			k := r.packageKind(o.at(kind), o.members[kind])
			if err := k.Check(kind); err != nil && len(r.errs) == 0 {
				r.fail(o.at(kind), "%v", err)
			}
			p.Kinds[kind] = k
		}
	}
	if len(p.Kinds) == 0 {
		for _, kind := range packages.Kinds {
			p.Kinds[kind] = packages.Kind{}
		}
	}
	return p
}

// Enable adds kinds that the section does not name.
func (p *Packages) Enable(kinds []string) {
	for _, kind := range kinds {
		if _, ok := p.Kinds[kind]; !ok {
			p.Kinds[kind] = packages.Kind{}
		}
	}
}

// Warnings returns what the lists of names shut out although the operator probably wants it.
func (p *Packages) Warnings() (list []string) {
	for _, kind := range slices.Sorted(maps.Keys(p.Kinds)) {
		list = append(list, p.Kinds[kind].Warnings(kind)...)
	}
	return list
}

// Complete adds the host's own indexes where the section names no index for the rest of the names.
func (p *Packages) Complete(host func(kind string) ([]packages.Index, error)) error {
	for _, kind := range slices.Sorted(maps.Keys(p.Kinds)) {
		k := p.Kinds[kind]
		if slices.ContainsFunc(k.Indexes, func(x packages.Index) bool { return len(x.Names) == 0 }) {
			continue
		}
		list, err := host(kind)
		if err != nil {
			return fmt.Errorf("packages of %s: %w", kind, err)
		}
		k.Indexes = append(k.Indexes, list...)
		p.Kinds[kind] = k
	}
	return nil
}

var indexFields = []string{"index", "userAuthentication", "caFile", "allowPrivateAddresses"}

func (r *reader) packageKind(path string, v any) (k packages.Kind) {
	o, ok := r.object(path, v, append([]string{"private", "allow", "deny"}, indexFields...)...)
	if !ok {
		return k
	}
	k.Allow, k.Deny = o.texts("allow"), o.texts("deny")
	private, ok := o.members["private"].([]any)
	if !ok && o.has("private") {
		o.fail("private", "must be a list of objects")
	}
	for i, item := range private {
		x, ok := r.object(fmt.Sprintf("%s[%d]", o.at("private"), i), item, append([]string{"names", "minAge"}, indexFields...)...)
		if !ok {
			continue
		}
		index := x.packageIndex()
		if index.Names = x.texts("names"); len(index.Names) == 0 {
			x.fail("names", "is missing: list the names that belong to this index, such as acme-*")
		}
		if x.has("minAge") {
			age := x.minAge()
			index.MinAge = &age
		}
		k.Indexes = append(k.Indexes, index)
	}
	switch {
	case o.has("index"):
		k.Indexes = append(k.Indexes, o.packageIndex())
	case o.has("userAuthentication") || o.has("caFile") || o.has("allowPrivateAddresses"):
		o.fail("index", "is missing: userAuthentication, caFile and allowPrivateAddresses are for the index that it names")
	}
	return k
}

// packageIndex reads an index. Plain http is for those who also allow its private address.
func (o object) packageIndex() packages.Index {
	x := packages.Index{CAFile: o.text("caFile", false), AllowPrivate: o.networks("allowPrivateAddresses")}
	if x.CAFile != "" && !filepath.IsAbs(x.CAFile) {
		x.CAFile = filepath.Join(o.r.dir, x.CAFile)
	}
	why := secretSent
	if !o.has("userAuthentication") {
		why = "since its pages and hashes could be changed on the way"
	}
	if u := o.address("index", true, len(x.AllowPrivate) > 0, why); u != nil {
		x.URL = u.String()
	}
	if !o.has("userAuthentication") {
		return x
	}
	if kind := typeOf(o.members["userAuthentication"]); !slices.Contains([]string{"bearer", "basic", "header"}, kind) {
		o.fail("userAuthentication.type", "must be one of bearer, basic, header")
		return x
	}
	var s Service
	o.r.authentication(o, &s)
	if s.Credential == nil {
		return x
	}
	c, err := s.Credential.Credential(context.Background(), "")
	if err != nil {
		o.fail("userAuthentication", "%v", err)
	}
	x.Header, x.Credential = c.Header, secret.New(c.Value)
	return x
}

// minAge reads an age: "72h", "3d", or a number of days.
func (o object) minAge() time.Duration {
	const day, most = 24 * time.Hour, 3650
	if !o.has("minAge") {
		return packages.DefaultMinAge
	}
	text, _ := o.members["minAge"].(string)
	days, inDays := strings.CutSuffix(text, "d")
	if n, ok := o.members["minAge"].(json.Number); ok {
		days, inDays = n.String(), true
	}
	if inDays {
		if n, err := strconv.ParseFloat(days, 64); err == nil && 0 <= n && n <= most {
			return time.Duration(n * float64(day))
		}
	} else if d, err := time.ParseDuration(text); err == nil && 0 <= d && d <= most*day {
		return d
	}
	o.fail("minAge", `must be an age such as "72h" or "3d", or a number of days`)
	return packages.DefaultMinAge
}
