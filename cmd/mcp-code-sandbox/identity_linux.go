package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"mcp-code-sandbox/internal/packages"
	"mcp-code-sandbox/internal/secret"
	"mcp-code-sandbox/internal/version"
)

// sharedVariables are the variables that a shared server has besides its settings: how it finds
// interpreters, engines, the database and the user's manager. It has no others, so none reaches
// another window.
var sharedVariables = strings.Fields(`
	PATH HOME USER LOGNAME LANG LC_ALL LC_CTYPE TZ TMPDIR
	XDG_DATA_HOME XDG_CONFIG_HOME XDG_CACHE_HOME XDG_STATE_HOME XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS
	DOCKER_CONFIG DOCKER_CONTEXT DOCKER_CERT_PATH DOCKER_TLS_VERIFY DOCKER_API_VERSION CONTAINER_HOST
	SSL_CERT_FILE SSL_CERT_DIR HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy
	PGHOST PGPORT PGUSER PGDATABASE PGOPTIONS PGPASSWORD PGPASSFILE PGSERVICE PGSERVICEFILE PGCONNECT_TIMEOUT
	PGSSLMODE PGSSLCERT PGSSLKEY PGSSLROOTCERT PGSSLPASSWORD PGSSLCERTMODE PGSSLSNI PGSSLNEGOTIATION PGTZ
	PGCHANNELBINDING PGREQUIREAUTH PGTARGETSESSIONATTRS PGMINPROTOCOLVERSION PGMAXPROTOCOLVERSION
	NIX_PATH NIX_REMOTE NIX_CONFIG NIX_SSL_CERT_FILE GOMEMLIMIT GOGC GODEBUG GOMAXPROCS GOTRACEBACK`)

// identify returns the id of the server that this window may share, and the server's environment.
// Windows have the same id if program, settings, that environment, runners and namespaces are the
// same. The id is keyed, since everybody can see the names of sockets.
func identify(inv *invocation) (id string, environ []string, err error) {
	key, _, err := secret.Load(filepath.Join(inv.settings.Root, "keys"), "installation")
	if err != nil {
		return "", nil, err
	}
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	fmt.Fprintf(mac, "shared server %q\n", version.String())
	if err := addFile(mac, inv.self); err != nil {
		return "", nil, err
	}
	if err := addRights(mac); err != nil {
		return "", nil, err
	}
	addSettings(mac, inv.settings)
	config, _ := os.ReadFile(inv.settings.Config) // the server reports what is wrong with it
	variables, files := references(config)
	if hasPackages(inv.settings, config) {
		variables = append(variables, packages.Host{Env: inv.env, ReadFile: os.ReadFile}.Variables()...)
	}
	fmt.Fprintf(mac, "%q\n", config)
	for _, name := range files {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(inv.settings.Config), name)
		}
		_ = addFile(mac, name)
	}
	environ = sharedEnvironment(inv.env, variables)
	fmt.Fprintf(mac, "%q\n", environ)
	addRunners(mac, inv.settings)
	return hex.EncodeToString(mac.Sum(nil)[:12]), environ, nil
}

// addRights adds what this process sees and may do: namespaces, groups, capabilities, filters.
func addRights(h io.Writer) error {
	for _, kind := range []string{"user", "mnt", "pid", "net"} {
		ns, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		fmt.Fprintln(h, ns)
	}
	status, err := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		switch name, _, _ := strings.Cut(line, ":"); name {
		case "Umask", "Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp":
			fmt.Fprint(h, line)
		}
	}
	return err
}

// addFile adds what tells a file from its replacement.
func addFile(h io.Writer, path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	st := fi.Sys().(*syscall.Stat_t)
	fmt.Fprintf(h, "%q %d %d %d %d\n", path, st.Dev, st.Ino, fi.Size(), fi.ModTime().UnixNano())
	return nil
}

func addSettings(h io.Writer, s *settings) {
	for f, v := range reflect.ValueOf(s).Elem().Fields() {
		value := reflect.Indirect(v)
		switch {
		case !value.IsValid():
			fmt.Fprintf(h, "%s unset\n", f.Name)
		case value.Type() == reflect.TypeFor[secret.Value]():
			fmt.Fprintf(h, "%s %q\n", f.Name, value.Interface().(secret.Value).Reveal())
		default:
			fmt.Fprintf(h, "%s %#v\n", f.Name, value.Interface())
		}
	}
}

// addRunners adds the files that change when an environment is installed or edited.
func addRunners(h io.Writer, s *settings) {
	installed := filepath.Join(s.Root, "runners")
	for _, pattern := range []string{
		filepath.Join(installed, "*", "stamp.json"), filepath.Join(installed, "custom", "*", "*.json"),
		filepath.Join(ownRunnersDir(s), "*", "*"), filepath.Join(s.WrapperDir, "*", "metadata.json"),
	} {
		files, _ := filepath.Glob(pattern) // a malformed pattern matches nothing, in every window
		for _, name := range files {
			_ = addFile(h, name)
		}
	}
}

// sharedEnvironment returns the variables of a shared server: settings, sharedVariables, and names.
func sharedEnvironment(env map[string]string, names []string) (environ []string) {
	for f := range reflect.TypeFor[settings]().Fields() {
		names = append(names, f.Tag.Get("environ"))
	}
	names = append(names, sharedVariables...)
	for name, value := range env {
		if slices.Contains(names, name) || strings.HasPrefix(name, "SANDBOX_") {
			environ = append(environ, name+"="+value)
		}
	}
	slices.Sort(environ)
	return environ
}

// hasPackages reports whether the settings or the configuration turn packages on.
func hasPackages(s *settings, config []byte) bool {
	var file struct{ Packages json.RawMessage }
	_ = json.Unmarshal(config, &file)
	return len(s.Packages) > 0 || file.Packages != nil
}

// references returns what a configuration refers to as {"$env": "NAME"} and {"$file": "path"}.
func references(config []byte) (variables, files []string) {
	var collect func(v any)
	collect = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				collect(item)
			}
		case map[string]any:
			if name, ok := v["$env"].(string); ok {
				variables = append(variables, name)
			}
			if name, ok := v["$file"].(string); ok {
				files = append(files, name)
			}
			for _, name := range slices.Sorted(maps.Keys(v)) {
				collect(v[name])
			}
		}
	}
	var root any
	_ = json.Unmarshal(config, &root)
	collect(root)
	return variables, files
}
