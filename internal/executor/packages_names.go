package executor

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/untrusted"
	"mcp-code-sandbox/internal/versionrange"
)

// Bounds of the packages that one run may request.
const (
	maxPackages    = 64
	maxRequirement = 200 // bytes
)

const (
	pypi = "pypi"
	npm  = "npm"
)

// What pip and npm get as arguments: names with extras, versions and markers. Nothing here is an
// option, a path or an address.
var (
	pypiRequirement = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?) ?(?:\[[A-Za-z0-9._, -]*\])? ?` +
		`(?:\(? ?(?:===|==|~=|!=|<=|>=|<|>) ?[A-Za-z0-9.*+!_-]+(?: ?, ?(?:===|==|~=|!=|<=|>=|<|>) ?[A-Za-z0-9.*+!_-]+)*,? ?\)?)?` +
		`(?: ?; ?[A-Za-z0-9_.'"<>=!~ ()-]+)?$`)
	npmRequirement = regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*(@[A-Za-z0-9^~<>=|*+-][A-Za-z0-9.^~<>=|*+ -]{0,99})?$`)
	npmName        = regexp.MustCompile(`^(@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*$`)
	// archive matches what pip takes for a file, also before extras and markers.
	archive = regexp.MustCompile(`(?i)\.(?:whl|zip|tar|tgz|tbz|txz|tlz|gz|bz2|xz|lz|lzma|egg) ?(?:\[[^\]]*\])? ?(?:;|$)`)
)

// checkPackages refuses packages that cannot be installed, and adds those that a Python program
// asks for itself.
func (e *Executor) checkPackages(r runner.Runner, req *Request) error {
	if len(req.Packages) == 0 && e.cfg.Packages == nil {
		return nil
	}
	dir, ok := e.packageDir(r)
	if ok && dir.Index == pypi && slices.Contains(r.Environments, "python") {
		header := scriptHeader(req.Code)
		dependencies, err := scriptDependencies(header)
		if err == nil {
			err = checkPython(header, r)
		}
		if err != nil {
			return err
		}
		req.Packages = append(slices.Clone(req.Packages), dependencies...)
	}
	switch {
	case len(req.Packages) == 0:
		return nil
	case e.cfg.Packages == nil:
		return refuse(CodeInvalidPackages, "%s", packagesOff(indexOf(r))+" Run the code without packages.")
	case !ok && len(r.PackageDirs()) > 0:
		return refuse(CodeInvalidPackages, "No packages can be installed for the environment %s: this server has packages from %s, not from %s. "+
			"The operator can turn them on with SANDBOX_PACKAGES=pypi,npm.",
			r.Name, strings.Join(e.cfg.Packages.Indexes(), ", "), r.PackageDirs()[0].Index)
	case !ok:
		return refuse(CodeInvalidPackages, "No packages can be installed for the environment %s: this server has packages from %s, "+
			"for environments whose libraries are installed (mcp-code-sandbox runners install).",
			r.Name, strings.Join(e.cfg.Packages.Indexes(), ", "))
	case len(req.Packages) > maxPackages:
		return refuse(CodeInvalidPackages, "A run may install %d packages at most.", maxPackages)
	}
	for i, text := range req.Packages {
		text = strings.TrimSpace(text)
		if name, package_, aliased := strings.Cut(text, "→"); aliased && strings.TrimSpace(name) != "" {
			text = strings.TrimSpace(package_) // a hint, copied
		}
		if !isRequirement(dir.Index, text) {
			example := `"shapely" or "shapely==2.*"`
			if dir.Index == npm {
				example = `"lodash" or "lodash@^4"`
			}
			return refuse(CodeInvalidPackages, "%q is not a package that can be installed.%s Give a name and a version range, such as %s: "+
				"no options, addresses or paths, and one package per entry.", untrusted.Clip(text, maxQuoted), corrected(dir.Index, text), example)
		}
		req.Packages[i] = text
	}
	slices.Sort(req.Packages)
	req.Packages = slices.Compact(req.Packages)
	return nil
}

// exact matches a name and a version, however they are joined.
var exact = regexp.MustCompile(`^([A-Za-z0-9._-]+) ?(?:=|==|@) ?([0-9][A-Za-z0-9.*]*)$`)

// corrected says how a name and a version are written for an index, if text is meant so.
func corrected(index, text string) string {
	m := exact.FindStringSubmatch(text)
	if m == nil || len(text) > maxRequirement {
		return ""
	}
	joint := "=="
	if index == npm {
		joint = "@"
	}
	better := m[1] + joint + m[2]
	if !isRequirement(index, better) {
		return ""
	}
	return fmt.Sprintf(" Write %q.", better)
}

// isRequirement reports whether pip or npm take the text for a package of the index.
func isRequirement(index, text string) bool {
	if len(text) > maxRequirement || archive.MatchString(text) {
		return false
	}
	if index == npm {
		return npmRequirement.MatchString(text)
	}
	return pypiRequirement.MatchString(text)
}

// anyVersion matches a requirement that leaves the version open.
var anyVersion = regexp.MustCompile(`^([A-Za-z0-9._-]+) ?(\[[A-Za-z0-9._, -]*\])?$`)

// keepVersions lets requirements without a version mean the one that the session or the runner has.
// For the extras of a library, pip would otherwise replace it by any version that fits.
func (p *packagesRun) keepVersions(requirements []string) []string {
	have := maps.Clone(p.e.distributions(p.runner))
	if have == nil {
		have = map[string]string{}
	}
	for _, own := range p.python(p.now) {
		have[own.Name] = own.Version
	}
	kept := slices.Clone(requirements)
	for i, text := range kept {
		if m := anyVersion.FindStringSubmatch(text); m != nil {
			if version, ok := have[versionrange.NormalizeName(m[1])]; ok {
				kept[i] = m[1] + m[2] + "==" + version
			}
		}
	}
	return kept
}

// offers reports whether code may install packages of a kind.
func (e *Executor) offers(kind string) bool {
	return e.cfg.Packages != nil && slices.Contains(e.cfg.Packages.Indexes(), kind)
}

// packageDirs returns the directories for the runner's packages whose index is offered.
func (e *Executor) packageDirs(r runner.Runner) []runner.PackageDir {
	return slices.DeleteFunc(r.PackageDirs(), func(d runner.PackageDir) bool { return !e.offers(d.Index) })
}

// packageDir returns where the packages of a request are installed.
func (e *Executor) packageDir(r runner.Runner) (runner.PackageDir, bool) {
	dirs := e.packageDirs(r)
	if len(dirs) == 0 {
		return runner.PackageDir{}, false
	}
	return dirs[0], true
}

// indexOf returns where the packages of a runner's language come from.
func indexOf(r runner.Runner) string {
	if slices.Contains(r.Environments, "node") {
		return npm
	}
	return pypi
}

// packagesOff says that nothing can be installed, and who can change that.
func packagesOff(index string) string {
	return "Packages are off; the operator of the server can turn them on with SANDBOX_PACKAGES=" + index + "."
}

// The header of a Python program that says what it depends on (PEP 723).
var (
	headerBlock     = regexp.MustCompile(`(?m)^# /// script[ \t]*\r?\n((?:#(?: [^\n]*)?\r?\n)+?)# ///[ \t]*\r?$`)
	commentMark     = regexp.MustCompile(`(?m)^# ?`)
	dependencies    = regexp.MustCompile(`(?ms)^[ \t]*dependencies[ \t]*=[ \t]*\[((?:[^\]"'#]|"[^"\n]*"|'[^'\n]*'|#[^\n]*)*)\]`)
	hasDependencies = regexp.MustCompile(`(?m)^[ \t]*dependencies\b`)
	requiresPython  = regexp.MustCompile(`(?m)^[ \t]*requires-python[ \t]*=[ \t]*(?:"([^"\n]*)"|'([^'\n]*)')`)
	tomlText        = regexp.MustCompile(`#[^\n]*|"([^"\n]*)"|'([^'\n]*)'`)
)

// maxHeader bounds the part of a program that is searched for a header.
const maxHeader = 64 << 10

// scriptHeader returns the header of a Python program in TOML, or "".
func scriptHeader(code string) string {
	block := headerBlock.FindStringSubmatch(code[:min(len(code), maxHeader)] + "\n")
	if block == nil {
		return ""
	}
	return commentMark.ReplaceAllString(block[1], "")
}

// checkPython refuses a program whose header requires another Python than the runner's.
func checkPython(header string, r runner.Runner) error {
	version, known := strings.CutPrefix(r.Version, "Python ")
	m := requiresPython.FindStringSubmatch(header)
	if !known || m == nil || versionrange.Allows(m[1]+m[2], version) {
		return nil
	}
	return refuse(CodeInvalidPackages, "The header of the program requires Python %s (requires-python), and the environment %s has Python %s. "+
		"Change the program and its header; the code was not run.", untrusted.Clip(m[1]+m[2], maxQuoted), r.Name, version)
}

// scriptDependencies returns the dependencies in the header of a Python program.
func scriptDependencies(header string) (list []string, err error) {
	found := dependencies.FindStringSubmatch(header)
	switch {
	case found == nil && hasDependencies.MatchString(header):
		return nil, refuse(CodeInvalidPackages, "The dependencies in the header of the program (# /// script) cannot be read: "+
			`write them like # dependencies = ["shapely", "rich"].`)
	case found == nil:
		return nil, nil
	}
	for _, m := range tomlText.FindAllStringSubmatch(found[1], -1) {
		if text := cmp.Or(m[1], m[2]); text != "" {
			list = append(list, text)
		}
	}
	return list, nil
}

// packageNames are the packages of modules that have another name. An empty one is unknown: the
// package of the module's own name is another.
var packageNames = map[string]string{
	"azure": "", "mpl_toolkits.basemap": "basemap", "sklearn_extra": "scikit-learn-extra",
	"google": "", "google.protobuf": "protobuf", "google.genai": "google-genai", "google.generativeai": "google-generativeai",
	"community": "python-louvain", "pkg_resources": "setuptools", "ruamel": "ruamel.yaml", "snowflake": "", "snowflake.connector": "snowflake-connector-python",
	"tabula": "tabula-py", "umap": "umap-learn", "win32com": "",
	"attr": "attrs", "bs4": "beautifulsoup4", "Crypto": "pycryptodome", "cv2": "opencv-python-headless", "dateutil": "python-dateutil",
	"docx": "python-docx", "dotenv": "python-dotenv", "fitz": "pymupdf", "git": "gitpython", "jose": "python-jose", "jwt": "pyjwt",
	"kafka": "kafka-python", "ldap": "python-ldap", "magic": "python-magic", "MySQLdb": "mysqlclient", "OpenSSL": "pyopenssl",
	"osgeo": "gdal", "PIL": "pillow", "pptx": "python-pptx", "psycopg2": "psycopg2-binary", "serial": "pyserial", "skimage": "scikit-image",
	"sklearn": "scikit-learn", "slugify": "python-slugify", "socks": "pysocks", "telegram": "python-telegram-bot", "usb": "pyusb",
	"websocket": "websocket-client", "wx": "wxpython", "yaml": "pyyaml", "zmq": "pyzmq",
}

// packageExamples are packages of modules that many packages share.
var packageExamples = map[string]string{
	"azure":     ", such as azure-storage-blob for azure.storage.blob",
	"google":    ", such as google-cloud-storage for google.cloud.storage",
	"snowflake": ", such as snowflake-connector-python for snowflake.connector",
}

// packageOf returns the package that probably has a missing module.
func packageOf(index, module string) string {
	if index == npm {
		parts := strings.SplitN(module, "/", 3)
		if strings.HasPrefix(module, "@") && len(parts) > 1 {
			return parts[0] + "/" + parts[1]
		}
		return parts[0]
	}
	if rest, ok := strings.CutPrefix(module, "google.cloud."); ok {
		top, _, _ := strings.Cut(rest, ".")
		return "google-cloud-" + strings.ReplaceAll(top, "_", "-")
	}
	top, rest, _ := strings.Cut(module, ".")
	second, _, _ := strings.Cut(rest, ".")
	for _, name := range []string{top + "." + second, top} {
		if package_, known := packageNames[name]; known {
			return package_
		}
	}
	return strings.ReplaceAll(top, "_", "-")
}
