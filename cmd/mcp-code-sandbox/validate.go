package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/store"
)

const generateSecret = "use for instance the output of openssl rand -hex 32"

// validate completes the settings, then reports everything that is wrong with them at once, each
// with its fix.
func (s *settings) validate(env map[string]string, euid int) error {
	s.setDefaults(env, euid)
	var p problems
	s.checkServer(&p)
	s.checkAccess(&p)
	s.checkIsolation(&p)
	s.checkMemory(&p)
	s.checkTags(&p)
	s.checkProject(&p)
	return errors.Join(p...)
}

// problems are what is wrong with the settings.
type problems []error

// require adds a problem of the setting unless ok.
func (p *problems) require(ok bool, setting, format string, args ...any) {
	if !ok {
		*p = append(*p, fmt.Errorf("%s: %s", setting, fmt.Sprintf(format, args...)))
	}
}

// networks requires that each entry is an address or a network.
func (p *problems) networks(setting string, list []string, example string) {
	for _, n := range list {
		_, err := closednet.Parse(n)
		p.require(err == nil, setting, "%q is not an address or a network; write it like %s", n, example)
	}
}

func (s *settings) checkServer(p *problems) {
	if s.HTTPAddr != "" {
		_, port, err := net.SplitHostPort(s.HTTPAddr)
		n, perr := strconv.Atoi(port)
		p.require(err == nil && perr == nil && n >= 0 && n <= 65535, "MCP_HTTP_ADDR",
			"%q is not a valid address; write host:port, such as 127.0.0.1:8080 or :8080", s.HTTPAddr)
	}
	p.require(s.HTTPPort >= 0 && s.HTTPPort <= 65535, "SANDBOX_HTTP_PORT", "%d is not a valid port; use 0 to 65535", s.HTTPPort)
	if s.PublicBaseURL != "" {
		u, err := url.Parse(s.PublicBaseURL)
		ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
		p.require(ok, "PUBLIC_BASE_URL", "%q is not a valid base URL; write it like https://sandbox.example.com", s.PublicBaseURL)
	}
	p.require(filepath.IsAbs(s.Root), "SANDBOX_ROOT", "this user has no data directory; set it to an absolute path")
	if !s.DatabaseURL.IsZero() {
		err := store.CheckURL(s.DatabaseURL.Reveal())
		p.require(err == nil, "SANDBOX_DATABASE_URL", "%v", err)
	}
	for _, kind := range s.Packages {
		p.require(slices.Contains(packages.Kinds, kind), "SANDBOX_PACKAGES", "%q is not a kind of packages; use pypi, npm, or pypi,npm", kind)
	}
	_, err := wantedTools(s.Tools)
	p.require(err == nil, "SANDBOX_TOOLS", "%v", err)
}

func (s *settings) checkAccess(p *problems) {
	p.require(!strings.ContainsFunc(s.APIToken.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }), "MCP_API_TOKEN",
		"must not have a space or a character that no header can carry; use letters and digits")
	for name, key := range map[string]secret.Value{"JWT_SECRET": s.JWTSecret, "JWT_SECRET_PREVIOUS": s.JWTSecretPrevious} {
		p.require(key.IsZero() || len(key.Reveal()) >= 32, name, "must have at least 32 bytes; %s", generateSecret)
	}
	if host, _, err := net.SplitHostPort(s.listenAddr()); err == nil && !hostname.IsLoopback(host) {
		for _, weak := range s.weakSecrets() {
			p.require(false, weak.name, "must have at least %d bytes, since MCP_HTTP_ADDR lets other machines guess it; %s", weak.least, generateSecret)
		}
	}
	for _, h := range s.AllowedHosts {
		p.require(h != "" && !strings.ContainsAny(h, "/@ "), "SANDBOX_ALLOWED_HOSTS",
			"%q is not a valid host; write it like sandbox.example.com", h)
	}
	for _, o := range s.AllowedOrigins {
		u, err := url.Parse(o)
		p.require(o == "*" || err == nil && u.Scheme != "" && u.Host != "" && strings.Trim(u.Path, "/") == "", "SANDBOX_ALLOWED_ORIGINS",
			"%q is not a valid origin; write it like https://app.example.com", o)
	}
	p.networks("SANDBOX_TRUSTED_PROXIES", s.TrustedProxies, "127.0.0.1 or 10.0.0.0/8")
	for _, n := range prefixes(s.TrustedProxies) {
		p.require(n.Bits() > 0, "SANDBOX_TRUSTED_PROXIES",
			"%s trusts everybody, so any client could choose its own address; name only the proxy, such as 127.0.0.1", n)
	}
}

// weakSecret is a secret that can be guessed.
type weakSecret struct {
	name  string
	least int // how many bytes it should have
}

// weakSecrets returns the operator's secrets that are too short.
func (s *settings) weakSecrets() (weak []weakSecret) {
	for _, c := range []struct {
		name  string
		value secret.Value
		least int
	}{{"MCP_API_TOKEN", s.APIToken, 16}, {"FILE_SECRET", s.FileSecret, 32}} {
		if !c.value.IsZero() && len(c.value.Reveal()) < c.least {
			weak = append(weak, weakSecret{c.name, c.least})
		}
	}
	return weak
}

func (s *settings) checkIsolation(p *problems) {
	p.require(slices.Contains(backendNames(), s.Backend), "SANDBOX_BACKEND",
		"%q is not a valid backend; use one of %s", s.Backend, strings.Join(backendNames(), ", "))
	for _, i := range s.Images {
		err := docker.ParseImage(i)
		p.require(err == nil, "SANDBOX_IMAGES", "%q: %v; write it like runner-python, registry.example.com/runner:1 or sha256:…", i, err)
	}
	p.require(len(s.Images) <= 100, "SANDBOX_IMAGES", "must have at most 100 entries")
	p.require(s.HostPath == "" || path.IsAbs(s.HostPath) || filepath.IsAbs(s.HostPath), "SANDBOX_HOST_PATH", "%q is not an absolute path", s.HostPath)
	p.networks("SANDBOX_NETWORK_ALLOW", s.NetworkAllow, "10.1.2.3 or 10.0.0.0/8")
	p.networks("SANDBOX_NETWORK_DENY", s.NetworkDeny, "203.0.114.7 or 203.0.114.0/24")
	p.require(len(s.NetworkDeny) <= closednet.MaxDeny, "SANDBOX_NETWORK_DENY",
		"must have at most %d entries; write networks instead of single addresses", closednet.MaxDeny)
	for _, ref := range s.NixEnvs {
		p.require(ref != "" && ref[0] != '-', "NIX_SANDBOX_ENVS", "%q is not a valid flake reference; write it like github:me/envs#data-science", ref)
	}
}

func (s *settings) checkMemory(p *problems) {
	p.require(s.CPULimit >= 0.05, "SANDBOX_CPU_LIMIT", "%s is too little; use 0.05 or more", strconv.FormatFloat(s.CPULimit, 'f', -1, 64))
	results := s.ResultMemory.byteSize
	p.require(results >= 16<<20, "SANDBOX_RESULT_MEMORY", "%s is too little; use 16MB or more, or unset it for the default", results)
	if total := doctor.System().Memory(); total > 0 {
		p.require(int64(results) <= max(total/2, leastResultMemory), "SANDBOX_RESULT_MEMORY",
			"%s is more than half of the memory, which is %s", results, byteSize(total>>20<<20))
	}
}

// checkTags checks the tags min, with zero for a 0 that means something else, and oneof.
func (s *settings) checkTags(p *problems) {
	for f, v := range reflect.ValueOf(s).Elem().Fields() {
		name, zero := f.Tag.Get("environ"), ""
		if f.Tag.Get("zero") != "" {
			zero = ", or 0 for " + f.Tag.Get("zero")
		}
		least, amount := f.Tag.Get("min"), int64(0)
		if v = reflect.Indirect(v); v.CanInt() {
			amount = v.Int()
		}
		switch {
		case least == "" || !v.IsValid():
		case least == ">0":
			p.require(amount > 0, name, "must be greater than 0")
		case least == "0":
			p.require(amount >= 0, name, "must not be negative")
		default:
			var limit byteSize
			err := limit.UnmarshalText([]byte(least))
			ok := err == nil && amount >= int64(limit) || amount == 0 && zero != ""
			p.require(ok, name, "%v is too little; use %s or more%s", v, least, zero)
		}
		if values := strings.Split(f.Tag.Get("oneof"), ","); len(values) > 1 {
			last := len(values) - 1
			p.require(slices.Contains(values, v.String()), name, "must be %s or %s, not %q", strings.Join(values[:last], ", "), values[last], v)
		}
	}
}

// takenMounts are the paths that a sandbox already uses.
var takenMounts = []string{
	"/.sandbox-agent", "/bin", "/data", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/mnt", "/opt/runners",
	"/proc", "/sbin", "/sys", "/tmp", "/usr", "/workspace",
}

// checkProject checks PROJECT_DIR and PROJECT_MOUNT, and resolves the directory.
func (s *settings) checkProject(p *problems) {
	if s.ProjectDir == "" {
		return
	}
	if !filepath.IsAbs(s.ProjectDir) {
		p.require(false, "PROJECT_DIR", "%q is not absolute; write it like /home/me/project", s.ProjectDir)
		return
	}
	dir, err := filepath.EvalSymlinks(s.ProjectDir)
	if err != nil {
		p.require(false, "PROJECT_DIR", "%v; set it to a directory that exists", err)
		return
	}
	fi, err := os.Stat(dir)
	p.require(err == nil && fi.IsDir(), "PROJECT_DIR", "%s is not a directory", s.ProjectDir)
	p.require(!overlap(dir, resolve(s.Root)), "PROJECT_DIR",
		"%s and SANDBOX_ROOT (%s) must not contain each other: code could read every session and key", s.ProjectDir, s.Root)
	p.require(s.Config == "" || !overlap(resolve(s.Config), dir), "PROJECT_DIR",
		"%s must not contain SANDBOX_CONFIG (%s): code could read its secrets", s.ProjectDir, s.Config)
	s.ProjectDir = dir

	mount := s.ProjectMount
	valid := filepath.IsAbs(mount) && filepath.Clean(mount) == mount && mount != "/" && !strings.ContainsAny(mount, "\x00\n")
	p.require(valid, "PROJECT_MOUNT", "%q is not a valid mount point; write it like /project", mount)
	if i := slices.IndexFunc(takenMounts, func(taken string) bool { return overlap(mount, taken) }); valid && i >= 0 {
		p.require(false, "PROJECT_MOUNT", "%s would hide the sandbox's own %s; use /project", mount, takenMounts[i])
	}
}

// resolve follows the symbolic links of the part of path that exists.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(resolve(dir), filepath.Base(path))
	}
	return path
}

// overlap reports whether two paths are equal or one contains the other.
func overlap(a, b string) bool {
	in := func(a, b string) bool {
		rel, err := filepath.Rel(b, a)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
	}
	return in(a, b) || in(b, a)
}
