package packages

import (
	"bytes"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/untrusted"
)

// npmInstall is the form of a packument that installers ask for.
const npmInstall = "application/vnd.npm.install-v1+json"

var (
	npmVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]{0,127}$`)
	npmRange   = regexp.MustCompile(`^[0-9A-Za-z .*^~<>=|+_-]*$`)         // of versions, or a tag
	npmFile    = regexp.MustCompile(`(?i)^ *\.|\.(?:tgz|tar|tar\.gz) *$`) // installers take such a range for a path
)

// npmFields are the fields of a version that the mirror passes on: those that installers use. There
// are no scripts among them.
var npmFields = []string{"name", "version", "description", "license", "deprecated", "dependencies", "optionalDependencies", "peerDependencies",
	"peerDependenciesMeta", "bundleDependencies", "bundledDependencies", "bin", "directories", "engines", "os", "cpu", "libc", "main", "type",
	"_hasShrinkwrap"}

// serveNPM serves packuments and tarballs.
func (q *request) serveNPM(path []string) *refusal {
	if strings.HasPrefix(path[0], "@") && !strings.Contains(path[0], "/") && len(path) > 1 {
		path = append([]string{path[0] + "/" + path[1]}, path[2:]...)
	}
	switch {
	case path[0] == "files" && len(path) > 3:
		name := strings.Join(path[1:len(path)-2], "/")
		return q.serveTarball(name, path[len(path)-2]+"/"+path[len(path)-1])
	case len(path) == 3 && path[1] == "-": // as lock files have it
		return q.serveTarball(path[0], path[2])
	case len(path) == 1 && path[0] != "-" && path[0] != "":
		p, _, why := q.project(path[0])
		if why != nil {
			return why
		}
		contentType := "application/json"
		if strings.Contains(q.r.Header.Get("Accept"), npmInstall) {
			contentType = npmInstall
		}
		return q.sendPage(p, contentType, p.json)
	}
	return notServed
}

func (q *request) serveTarball(name, key string) *refusal {
	p, x, why := q.project(name)
	if why != nil {
		return why
	}
	f := p.files[key]
	if f == nil {
		version := strings.TrimSuffix(key[strings.LastIndexByte(key, '/')+1:], ".tgz")
		return q.noFile(p, strings.TrimPrefix(version, baseName(p.name)+"-"))
	}
	return q.sendFile(x, f, f.hash, "", nil)
}

// baseName returns a name without its scope.
func baseName(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// packument is what a registry says of a package.
type packument struct {
	Name     string                     `json:"name"`
	DistTags map[string]string          `json:"dist-tags"`
	Versions map[string]json.RawMessage `json:"versions"`
	Time     map[string]json.RawMessage `json:"time,omitempty"`
}

// npmDist says where a version's tarball is, and what it must be.
type npmDist struct {
	Integrity    string `json:"integrity"`
	Shasum       string `json:"shasum,omitempty"`
	Tarball      string `json:"tarball"`
	FileCount    int64  `json:"fileCount,omitempty"`
	UnpackedSize int64  `json:"unpackedSize,omitempty"`
}

// parseNPM reads a packument and applies the policy.
func (m *Mirror) parseNPM(x *index, name string, base *url.URL, contentType string, data []byte) (*project, error) {
	if strings.HasPrefix(contentType, "text/html") {
		return nil, errors.New("it is a web page")
	}
	in, err := readPackument(data)
	if err != nil {
		return nil, err
	}
	p := newProject(name)
	out := packument{Name: name, DistTags: map[string]string{}, Versions: map[string]json.RawMessage{}, Time: map[string]json.RawMessage{}}
	for version, raw := range in.Versions {
		var uploaded string
		_ = json.Unmarshal(in.Time[version], &uploaded) // "" has no age
		f, body, why := m.admitNPM(x, p, base, version, uploaded, raw)
		if why != nil {
			p.drop(version, why)
			continue
		}
		if err := p.add(f, f.hash+"/"+f.name, f.name); err != nil {
			return nil, err
		}
		out.Versions[version] = body
		if when, ok := in.Time[version]; ok {
			out.Time[version] = when
		}
	}
	p.newest = npmLatest(in.DistTags["latest"], out.Versions)
	for tag, version := range in.DistTags {
		if out.Versions[version] != nil {
			out.DistTags[tag] = version
		}
	}
	if p.newest != "" {
		out.DistTags["latest"] = p.newest
	}
	p.finish(func(string) bool { return false })
	body, err := json.Marshal(out)
	p.body = body
	return p, err
}

// readPackument reads what the mirror uses of a packument.
func readPackument(data []byte) (in packument, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	in.DistTags = map[string]string{}
	err = eachMember(d, func(key string) (err error) {
		switch key {
		case "versions":
			in.Versions, err = members(d, npmVersion.MatchString)
		case "time":
			in.Time, err = members(d, npmVersion.MatchString)
		case "dist-tags":
			err = eachMember(d, func(tag string) error {
				var version string
				err := d.Decode(&version)
				in.DistTags[tag] = version
				return err
			})
		default:
			err = skip(d)
		}
		return err
	})
	if err == nil {
		err = ended(d)
	}
	return in, err
}

// npmLatest returns the latest version if it is allowed, otherwise the newest allowed one before
// it, otherwise the newest.
func npmLatest(latest string, versions map[string]json.RawMessage) string {
	if versions[latest] != nil {
		return latest
	}
	var before, newest string
	for v := range versions {
		if newest == "" || newer(v, newest) {
			newest = v
		}
		if latest != "" && newer(latest, v) && !isPrerelease(v) && (before == "" || newer(v, before)) {
			before = v
		}
	}
	if before != "" {
		return before
	}
	return newest
}

// admitNPM applies the policy to a version, and returns it as the mirror describes it.
func (m *Mirror) admitNPM(x *index, p *project, base *url.URL, version, uploaded string, raw json.RawMessage) (*file, json.RawMessage, *refusal) {
	if why := m.checkAge(x, p, version, uploaded); why != nil {
		return nil, nil, why
	}
	fields, err := members(json.NewDecoder(bytes.NewReader(raw)), func(name string) bool { return name == "dist" || slices.Contains(npmFields, name) })
	var dist npmDist
	if err != nil || json.Unmarshal(fields["dist"], &dist) != nil {
		return nil, nil, refuse(CodeNotAllowed, "The registry's description of %s %s cannot be read. Use another version.", p.name, showVersion(version))
	}
	for _, field := range []string{"dependencies", "optionalDependencies", "peerDependencies"} {
		if dependency := foreignDependency(fields[field]); dependency != "" {
			return nil, nil, refuse(CodeNotAllowed, "%s %s depends on something by its address (%s), which the mirror cannot check. Use another version.",
				p.name, showVersion(version), dependency)
		}
	}
	f := &file{name: baseName(p.name) + "-" + version + ".tgz", version: version, hash: sha512Of(dist.Integrity)}
	if f.hash == "" {
		return nil, nil, refuse(CodeNotAllowed, "The registry gives no sha512 hash for %s %s, so its files cannot be checked. Use another version.", p.name, showVersion(version))
	}
	u, err := resolve(base, dist.Tarball)
	if err == nil {
		err = x.checkAddress(u)
	}
	if err != nil || dist.Tarball == "" {
		return nil, nil, badAddress(p.name, version)
	}
	f.url = u
	dist.Tarball = m.cfg.Base + "/npm/files/" + p.name + "/" + f.hash + "/" + url.PathEscape(f.name)
	kept := map[string]json.RawMessage{}
	for _, name := range npmFields {
		if v, ok := fields[name]; ok {
			kept[name] = v
		}
	}
	if kept["dist"], err = json.Marshal(dist); err != nil {
		return nil, nil, badAddress(p.name, version)
	}
	body, err := json.Marshal(kept)
	if err != nil {
		return nil, nil, badAddress(p.name, version)
	}
	return f, body, nil
}

// foreignDependency returns a dependency that is not a package of the registry (git, a URL, a
// file), as messages show it, or "".
func foreignDependency(raw json.RawMessage) string {
	list, err := members(json.NewDecoder(bytes.NewReader(raw)), nil)
	if empty := len(raw) == 0 || string(raw) == "[]" || string(raw) == `""`; err != nil && !empty {
		return "an unreadable list" // installers read some lists that are not objects
	}
	for name, raw := range list {
		var spec string
		if json.Unmarshal(raw, &spec) != nil {
			return showDependency(NPM, name, "")
		}
		if alias, ok := strings.CutPrefix(spec, "npm:"); ok {
			i := strings.LastIndexByte(alias, '@')
			target := alias
			if i > 0 {
				target, alias = alias[:i], alias[i+1:]
			} else {
				alias = ""
			}
			if _, ok := parseName(NPM, target); ok {
				spec = alias
			}
		}
		if !npmRange.MatchString(spec) || npmFile.MatchString(spec) {
			return showDependency(NPM, name, spec)
		}
	}
	return ""
}

// sha512Of returns the sha512 hash of an integrity value in hex, or "".
func sha512Of(integrity string) string {
	fields := strings.Fields(untrusted.Clip(integrity, 4096))
	i := slices.IndexFunc(fields, func(s string) bool { return strings.HasPrefix(s, "sha512-") })
	if i < 0 {
		return ""
	}
	coded, _, _ := strings.Cut(strings.TrimPrefix(fields[i], "sha512-"), "?")
	sum, err := base64.StdEncoding.DecodeString(coded)
	if err != nil || len(sum) != sha512.Size {
		return ""
	}
	return hex.EncodeToString(sum)
}
