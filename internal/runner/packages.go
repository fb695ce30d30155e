package runner

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/versionrange"
	"mcp-code-sandbox/runners"
)

// PackageDir says where a session keeps the packages that code installs for a runner.
type PackageDir struct {
	Index string // "pypi" or "npm"
	Name  string // of the directory
}

// packageIndexes are the indexes of the environments.
var packageIndexes = []struct{ env, index string }{{"python", "pypi"}, {"node", "npm"}}

// PackageDirs lists the directories for the runner's packages, the one for a request's packages
// first. The bundled runners share one for each environment; an operator's runner has its own.
func (r Runner) PackageDirs() (dirs []PackageDir) {
	if r.Wrapper != "" {
		return nil
	}
	for _, known := range packageIndexes {
		if !r.MayUse(known.env) {
			continue
		}
		// A Python without the runner's libraries has nothing that finds the session's packages.
		if known.env == "python" && !slices.Contains(strings.Split(r.Env["PATH"], ":"), inside+"python/bin") {
			continue
		}
		name := r.Name
		if slices.Contains(runners.Names(), r.Name) {
			name = known.env
		}
		dirs = append(dirs, PackageDir{Index: known.index, Name: name})
	}
	return dirs
}

// Installing returns the runners for a server that offers packages of these indexes: their zygotes
// have imported what installs them.
func (s Set) Installing(indexes []string) Set {
	set := slices.Clone(s)
	for i, r := range set {
		if r.Zygote == nil || !slices.ContainsFunc(r.PackageDirs(), func(d PackageDir) bool { return slices.Contains(indexes, d.Index) }) {
			continue
		}
		z := *r.Zygote
		z.Preload = slices.Concat(z.Preload, z.ToInstall)
		set[i].Zygote = &z
	}
	return set
}

// distribution is the name of a directory with the metadata of an installed Python package. Code
// can make one, and messages repeat the version, so it must be one (PEP 440) and not a sentence.
var distribution = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._]{0,99})-` +
	`(v?(?:[0-9]{1,9}!)?[0-9]{1,9}(?:\.[0-9]{1,9}){0,9}(?:[._]?(?:a|b|c|rc|alpha|beta|pre|preview|post|rev|r|dev)[._]?[0-9]{0,12}){0,3}(?:\+[a-z0-9._]{1,24})?)` +
	`\.dist-info$`)

// ParseDistribution returns the normalized name and the version of a package from the name of its
// metadata directory.
func ParseDistribution(dir string) (name, version string, ok bool) {
	m := distribution.FindStringSubmatch(dir)
	if m == nil {
		return "", "", false
	}
	return versionrange.NormalizeName(m[1]), m[2], true
}

// Distributions returns the Python packages of the runner's environment and their versions: those
// that are installed on the host, or those of this project's lock for an image.
func (r Runner) Distributions() map[string]string {
	for _, m := range r.Mounts {
		if m.Target != inside+"python" {
			continue
		}
		found := map[string]string{}
		dirs, _ := filepath.Glob(filepath.Join(m.Source, "lib/python3.*/site-packages/*.dist-info"))
		for _, dir := range dirs {
			if name, version, ok := ParseDistribution(filepath.Base(dir)); ok {
				found[name] = version
			}
		}
		return found
	}
	return locked(strings.TrimPrefix(r.Version, "Python "))
}

// DistributionsSource identifies what Distributions returns: it changes when an installation does.
func (r Runner) DistributionsSource() string {
	for _, m := range r.Mounts {
		if m.Target == inside+"python" {
			fi, err := os.Stat(m.Source)
			if err != nil {
				return ""
			}
			return m.Source + fi.ModTime().String()
		}
	}
	return r.ImageID + r.Version
}

// Lines of the bundled lock, and the parts of their markers.
var (
	lockLine     = regexp.MustCompile(`^([A-Za-z0-9._-]+)==([^ ;]+)(?: ; (.+))? \\$`)
	pythonMarker = regexp.MustCompile(`^python_full_version (<|>=|==) '([0-9.]+?)(?:\.\*)?'$`)
	linuxMarker  = regexp.MustCompile(`^sys_platform != '(?:android|cygwin|darwin|emscripten|win32)'$`)
)

// locked returns the versions in the bundled lock for a version of Python.
func locked(python string) map[string]string {
	found := map[string]string{}
	b, err := fs.ReadFile(runners.Files, "python/requirements.lock")
	if err != nil {
		return found
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if m := lockLine.FindStringSubmatch(lines.Text()); m != nil && holds(m[3], python) {
			found[versionrange.NormalizeName(m[1])] = m[2]
		}
	}
	return found
}

// holds reports whether a marker of the bundled lock holds for a version of Python on Linux.
func holds(marker, python string) bool {
	for part := range strings.SplitSeq(marker, " and ") {
		m := pythonMarker.FindStringSubmatch(part)
		switch {
		case part == "", linuxMarker.MatchString(part):
		case m == nil:
			return false
		case m[1] == "<" && compareVersions(python, m[2]) >= 0,
			m[1] == ">=" && compareVersions(python, m[2]) < 0,
			m[1] == "==" && !sameMinor(python, m[2]):
			return false
		}
	}
	return true
}
