package packages

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"mcp-code-sandbox/internal/secret"
)

// Host is what decides which indexes the host's own pip and npm use.
type Host struct {
	Env      map[string]string
	ReadFile func(path string) ([]byte, error)
	// Ask returns the index that the client of a kind uses when nothing is configured. Nil:
	// AskClient.
	Ask func(ctx context.Context, kind string) (string, error)
}

// Indexes returns the indexes that the host's client of a kind is configured to use, with their
// credentials, and warnings about configuration that the mirror does not use.
func (h Host) Indexes(ctx context.Context, kind string) (list []Index, warnings []string, err error) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "PIP_PROXY", "npm_config_https_proxy"} {
		if h.Env[name] != "" {
			warnings = append(warnings, name+" is set, but the package mirror connects without a proxy")
		}
	}
	if kind == NPM {
		list, err = h.npm(ctx)
		return list, warnings, err
	}
	index, more, err := h.pip(ctx)
	return []Index{index}, append(warnings, more...), err
}

// Variables returns the names of the variables that decide which indexes the host's clients use,
// besides those that any program has, such as HOME.
func (h Host) Variables() []string {
	names := []string{"PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_PROXY", "NETRC", "NODE_EXTRA_CA_CERTS"}
	for _, name := range []string{"registry", "userconfig", "globalconfig", "prefix", "cafile", "https_proxy"} {
		names = append(names, "npm_config_"+name, "NPM_CONFIG_"+strings.ToUpper(name))
	}
	for _, f := range h.npmFiles() {
		for _, value := range h.ini(f, "") {
			for _, m := range npmVariable.FindAllStringSubmatch(value, -1) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

// npmVariable is a reference to a variable in npm's files.
var npmVariable = regexp.MustCompile(`\$\{([^}]+)\}`)

// ask returns the default index of a client.
func (h Host) ask(ctx context.Context, kind string) (string, error) {
	ask := h.Ask
	if ask == nil {
		ask = h.askClient
	}
	address, err := ask(ctx, kind)
	if err != nil {
		return "", fmt.Errorf("this host's own client says no index (%w): set packages.%s.index in SANDBOX_CONFIG", err, kind)
	}
	return address, nil
}

// askClient runs the host's pip or npm.
func (h Host) askClient(ctx context.Context, kind string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	commands := [][]string{
		{"python3", "-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"},
		{"pip3", "download", "--help"}, // its help names the default
	}
	if kind == NPM {
		commands = [][]string{{"npm", "config", "get", "registry"}}
	}
	var errs []error
	for _, args := range commands {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		for name, value := range h.Env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		cmd.Dir = "/"
		out, err := cmd.Output()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for word := range strings.FieldsSeq(string(out)) {
			if word = strings.Trim(word, "()."); strings.HasPrefix(word, "https://") || strings.HasPrefix(word, "http://") {
				return word, nil
			}
		}
	}
	return "", errors.Join(append(errs, errors.New("no address in its output"))...)
}

// pip returns the index of pip's configuration.
func (h Host) pip(ctx context.Context) (x Index, warnings []string, err error) {
	home, config := h.Env["HOME"], cmp.Or(h.Env["XDG_CONFIG_HOME"], filepath.Join(h.Env["HOME"], ".config"))
	files := []string{"/etc/xdg/pip/pip.conf", "/etc/pip.conf", filepath.Join(home, ".pip", "pip.conf"), filepath.Join(config, "pip", "pip.conf")}
	if own := h.Env["PIP_CONFIG_FILE"]; own == "/dev/null" {
		files = nil
	} else if own != "" {
		files = append(files, own)
	}
	values, from := map[string]string{}, map[string]string{}
	for _, section := range []string{"global", "install"} { // the command's own section wins
		for _, f := range files {
			sections, err := h.pipFile(f)
			if err != nil {
				return x, nil, fmt.Errorf("pip cannot read its configuration file %s: %w. Correct or remove it, or set packages.pypi.index in SANDBOX_CONFIG", f, err)
			}
			for key, value := range sections[section] {
				values[key], from[key] = value, "index-url in "+f
			}
		}
	}
	for _, key := range []string{"index-url", "extra-index-url", "cert", "no-index"} {
		name := "PIP_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
		if v := h.Env[name]; v != "" {
			values[key], from[key] = v, name
		}
	}
	if values["extra-index-url"] != "" {
		warnings = append(warnings, "pip's extra-index-url is not used: a name must belong to one index. Configure packages.pypi.private in SANDBOX_CONFIG")
	}
	if slices.Contains([]string{"1", "true", "yes", "on", "y", "t"}, strings.ToLower(values["no-index"])) {
		warnings = append(warnings, "pip's no-index (PIP_NO_INDEX) is not used: the package mirror asks an index all the same. To install nothing for Python, leave pypi out of SANDBOX_PACKAGES and SANDBOX_CONFIG")
	}
	x.URL, x.CAFile = values["index-url"], values["cert"]
	if x.URL == "" {
		from["index-url"] = "this host's pip"
		if x.URL, err = h.ask(ctx, PyPI); err != nil {
			return x, warnings, err
		}
	}
	u, err := checkHostAddress(PyPI, x.URL, from["index-url"])
	if err != nil {
		return x, warnings, err
	}
	user, password := u.User.Username(), ""
	if u.User != nil {
		password, _ = u.User.Password()
		u.User = nil
		x.URL = u.String()
	} else {
		user, password = h.netrc(u.Hostname())
	}
	if user != "" || password != "" {
		x.basic(user, password)
	}
	return x, warnings, nil
}

// checkHostAddress returns an address of the host's configuration. from says where it is, for the
// error. As in SANDBOX_CONFIG, plain http is for this machine and private addresses.
func checkHostAddress(kind, address, from string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil && kind == NPM:
		return nil, fmt.Errorf("%s is not the address of an index: write it like https://packages.example.com/simple, or set packages.%s.index in SANDBOX_CONFIG", from, kind)
	case u.Scheme == "http" && !isPrivate(u.Hostname()):
		return nil, fmt.Errorf("%s names %s, which must start with https://, since its pages and hashes could be changed on the way: "+
			"use its https address; for an index in a private network, set packages.%s.index and allowPrivateAddresses in SANDBOX_CONFIG", from, u.Host, kind)
	}
	return u, nil
}

// isPrivate reports whether a host is this machine or a private address.
func isPrivate(host string) bool {
	addr, err := netip.ParseAddr(host)
	addr = addr.Unmap()
	return host == "localhost" || err == nil && (addr.IsLoopback() || addr.IsPrivate())
}

// pipFile returns the options of a file's sections as pip reads them, or nothing if pip skips the
// file. The error says what pip says, and quotes nothing, for the file may have a password.
func (h Host) pipFile(path string) (map[string]map[string]string, error) {
	data, err := h.ReadFile(path)
	if err != nil || !filepath.IsAbs(path) {
		return nil, nil
	}
	if !utf8.Valid(data) {
		return nil, errors.New("contains invalid utf-8 characters")
	}
	sections := map[string]map[string]string{}
	var section map[string]string
	var seen map[string]bool // names as they are written
	key, indent, number := "", 0, 0
	for line := range strings.Lines(string(data)) {
		number++
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		depth := len(line) - len(strings.TrimLeft(line, " \t"))
		if key != "" && depth > indent { // continues the value
			section[key] = strings.TrimSpace(section[key] + "\n" + text)
			continue
		}
		indent = depth
		if end := strings.LastIndexByte(text, ']'); text[0] == '[' && end > 1 {
			name := text[1:end]
			if sections[name] != nil {
				return nil, fmt.Errorf("line %d: section already exists", number)
			}
			section, seen, key = map[string]string{}, map[string]bool{}, ""
			sections[name] = section
			continue
		}
		if section == nil {
			return nil, fmt.Errorf("line %d: file contains no section headers", number)
		}
		i := strings.IndexAny(text, "=:")
		if i < 1 {
			return nil, fmt.Errorf("line %d: source contains parsing errors", number)
		}
		name := strings.ToLower(strings.TrimSpace(text[:i]))
		if seen[name] {
			return nil, fmt.Errorf("line %d: option already exists", number)
		}
		seen[name] = true
		key = strings.ReplaceAll(name, "_", "-")
		section[key] = strings.Trim(strings.TrimSpace(text[i+1:]), `"'`)
	}
	return sections, nil
}

func (x *Index) basic(user, password string) {
	x.Header = "Authorization"
	x.Credential = secret.New("Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

// ini returns the keys of a section of a file, or none. Section "" is before the first heading.
func (h Host) ini(path, section string) map[string]string {
	data, err := h.ReadFile(path)
	if err != nil || !filepath.IsAbs(path) {
		return nil
	}
	values := map[string]string{}
	current := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			current = strings.Trim(line, "[]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if ok && current == section && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			values[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	return values
}

// netrc returns the login for a host.
func (h Host) netrc(host string) (user, password string) {
	path := cmp.Or(h.Env["NETRC"], filepath.Join(h.Env["HOME"], ".netrc"))
	data, err := h.ReadFile(path)
	if err != nil || !filepath.IsAbs(path) {
		return "", ""
	}
	words := strings.Fields(string(data))
	i := slices.Index(words, host)
	if i < 1 || words[i-1] != "machine" {
		return "", ""
	}
	for i++; i+1 < len(words) && words[i] != "machine" && words[i] != "default"; i += 2 {
		switch words[i] {
		case "login":
			user = words[i+1]
		case "password":
			password = words[i+1]
		}
	}
	return user, password
}

// npmOption returns an option of npm that a variable sets.
func (h Host) npmOption(name string) string {
	return cmp.Or(h.Env["npm_config_"+name], h.Env["NPM_CONFIG_"+strings.ToUpper(name)])
}

// npmFiles lists npm's files; later ones win.
func (h Host) npmFiles() []string {
	user := cmp.Or(h.npmOption("userconfig"), filepath.Join(h.Env["HOME"], ".npmrc"))
	return []string{"/etc/npmrc", "/usr/etc/npmrc", "/usr/local/etc/npmrc", h.npmOption("globalconfig"), user}
}

// npm returns the registries of npm's configuration: that of each scope, and the default.
func (h Host) npm(ctx context.Context) (list []Index, err error) {
	values, from := map[string]string{}, map[string]string{}
	for _, f := range h.npmFiles() {
		for key, value := range h.ini(f, "") {
			values[key], from[key] = h.expand(value), key+" in "+f
		}
	}
	for _, name := range []string{"NPM_CONFIG_REGISTRY", "npm_config_registry"} {
		if v := h.Env[name]; v != "" {
			values["registry"], from["registry"] = v, name
		}
	}
	if values["registry"] == "" {
		from["registry"] = "this host's npm"
		if values["registry"], err = h.ask(ctx, NPM); err != nil {
			return nil, err
		}
	}
	certificates := cmp.Or(h.npmOption("cafile"), values["cafile"], h.Env["NODE_EXTRA_CA_CERTS"])
	for key, value := range values {
		scope, scoped := strings.CutSuffix(key, ":registry")
		if scoped = scoped && strings.HasPrefix(scope, "@"); !scoped && key != "registry" {
			continue
		}
		if _, err := checkHostAddress(NPM, value, from[key]); err != nil {
			return nil, err
		}
		if scoped {
			list = append(list, npmIndex(value, certificates, values, scope+"/*"))
		}
	}
	return append(list, npmIndex(values["registry"], certificates, values)), nil
}

// expand replaces ${NAME} by the variable.
func (h Host) expand(value string) string {
	for range 16 {
		before, rest, ok := strings.Cut(value, "${")
		name, after, closed := strings.Cut(rest, "}")
		if !ok || !closed {
			break
		}
		value = before + h.Env[name] + after
	}
	return value
}

// npmIndex returns the registry at an address with the credential that npm would send there.
func npmIndex(address, certificates string, values map[string]string, names ...string) Index {
	x := Index{URL: address, Names: names, CAFile: certificates}
	_, rest, _ := strings.Cut(strings.TrimRight(address, "/"), ":")
	for prefix := rest; len(prefix) > 2; prefix = prefix[:strings.LastIndexByte(prefix, '/')] {
		key := func(name string) string { return cmp.Or(values[prefix+"/:"+name], values[prefix+":"+name]) }
		switch {
		case key("_authToken") != "":
			x.Header, x.Credential = "Authorization", secret.New("Bearer "+key("_authToken"))
		case key("_auth") != "":
			x.Header, x.Credential = "Authorization", secret.New("Basic "+key("_auth"))
		case key("username") != "" && key("_password") != "":
			if password, err := base64.StdEncoding.DecodeString(key("_password")); err == nil {
				x.basic(key("username"), string(password))
			}
		default:
			continue
		}
		return x
	}
	return x
}
