package main

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// identityOf returns the id of the server that a window with these variables may share.
func identityOf(t *testing.T, env map[string]string) (id string, environ []string) {
	t.Helper()
	var c cli
	parser, err := newParser(&c, env, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse([]string{"stdio"}); err != nil {
		t.Fatal(err)
	}
	if err := c.validate(env, os.Geteuid()); err != nil {
		t.Fatal(err)
	}
	id, environ, err = identify(&invocation{settings: &c.settings, env: env, program: program{self: env["SELF"]}})
	if err != nil {
		t.Fatal(err)
	}
	return id, environ
}

// TestIdentity: windows share a server if nothing that its server would use differs.
func TestIdentity(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := map[string]string{
		"SANDBOX_ROOT": root, "PATH": "/bin", "HOME": dir, "SELF": write("program", "x"), "MCP_API_TOKEN": "a-token-of-16-bytes", "KEY": "a", "OTHER_KEY": "a",
		"SANDBOX_CONFIG":      write("config.json", `{"a": [{"b": {"$env": "KEY"}}, {"$file": "key"}]}`),
		"SANDBOX_RUNNERS_DIR": filepath.Join(dir, "own"),
	}
	write("key", "1")
	write("own/r/runner.json", "{}")
	id, environ := identityOf(t, base)
	if again, _ := identityOf(t, base); again != id || len(id) != 24 {
		t.Errorf("the same settings give %s and %s", id, again)
	}
	for _, name := range []string{"TERM", "PWD", "OTHER_KEY", "SSH_CONNECTION", "VSCODE_PID"} {
		env := maps.Clone(base)
		env[name] = "something else"
		if got, _ := identityOf(t, env); got != id {
			t.Errorf("%s must not count", name)
		}
	}
	want := []string{"HOME=" + dir, "KEY=a", "MCP_API_TOKEN=a-token-of-16-bytes", "PATH=/bin", "SANDBOX_CONFIG=" + base["SANDBOX_CONFIG"],
		"SANDBOX_ROOT=" + root, "SANDBOX_RUNNERS_DIR=" + base["SANDBOX_RUNNERS_DIR"]}
	if !slices.Equal(environ, want) {
		t.Errorf("the server's environment is %q, want %q", environ, want)
	}

	seen := map[string]string{id: "the same"}
	differs := func(name string, env map[string]string) {
		t.Helper()
		got, _ := identityOf(t, env)
		if other := seen[got]; other != "" {
			t.Errorf("%s: the server of %q", name, other)
		}
		seen[got] = name
	}
	for name, value := range map[string]string{
		"PATH": "/usr/bin", "KEY": "b", "PROJECT_DIR": t.TempDir(), "SANDBOX_TOOLS": "run", "MCP_API_TOKEN": "another-of-16-bytes", "SANDBOX_POOL_SIZE": "1",
		"SANDBOX_NETWORK_DENY": "203.0.114.7", "HTTPS_PROXY": "http://proxy", "SANDBOX_LOG_LEVEL": "DEBUG", "SANDBOX_UNKNOWN": "1", "SELF": write("upgrade", "x"),
		"SANDBOX_CONFIG": write("config2.json", "{}"), "GOMEMLIMIT": "1GiB", "PGUSER": "ann", "PGREQUIREAUTH": "scram-sha-256",
	} {
		env := maps.Clone(base)
		env[name] = value
		differs(name, env)
	}
	write("config.json", `{"a": [{"b": {"$env": "KEY"}}, {"$file": "key"}, 1]}`)
	differs("configuration", base)
	write("key", "22")
	differs("file of the configuration", base)
	write("own/r/runner.json", `{"name": "r"}`)
	differs("runner", base)
	write("program", "xy")
	differs("program", base)
}

// TestIdentityHasIndexes: with packages on, a shared server has the variables with which the
// window's own pip and npm find their indexes. Otherwise, it has none of them.
func TestIdentityHasIndexes(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{".npmrc": "//npm.example.com/:_authToken=${NPM_SECRET}\n", "on.json": `{"packages": {"pypi": {}}}`, "program": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	base := map[string]string{"SANDBOX_ROOT": filepath.Join(dir, "root"), "HOME": dir, "SELF": filepath.Join(dir, "program")}
	variables := map[string]string{"PIP_INDEX_URL": "https://a.example.com", "PIP_CONFIG_FILE": "/a", "PIP_CERT": "/b", "NETRC": "/c", "NODE_EXTRA_CA_CERTS": "/d",
		"npm_config_registry": "https://b.example.com", "NPM_CONFIG_USERCONFIG": filepath.Join(dir, ".npmrc"), "NPM_SECRET": "s3cret"}
	for on, setting := range map[bool][2]string{false: {"SANDBOX_LOG_LEVEL", "DEBUG"}, true: {"SANDBOX_PACKAGES", "npm"}} {
		env := maps.Clone(base)
		env[setting[0]] = setting[1]
		id, _ := identityOf(t, env)
		for name, value := range variables {
			with := maps.Clone(env)
			with[name] = value
			other, environ := identityOf(t, with)
			if slices.Contains(environ, name+"="+value) != on || (other != id) != on {
				t.Errorf("%s with %s: the same server %t, environment %q", name, setting[0], other == id, environ)
			}
		}
	}
	base["SANDBOX_CONFIG"], base["PIP_CERT"] = filepath.Join(dir, "on.json"), "/b"
	if _, environ := identityOf(t, base); !slices.Contains(environ, "PIP_CERT=/b") {
		t.Errorf("packages are on in the configuration: %q", environ)
	}
}

// TestIdentityHasEverySetting: no field of the settings is left out.
func TestIdentityHasEverySetting(t *testing.T) {
	var text strings.Builder
	addSettings(&text, &settings{})
	for f := range reflect.TypeFor[settings]().Fields() {
		if !strings.Contains("\n"+text.String(), "\n"+f.Name+" ") {
			t.Errorf("%s is missing", f.Name)
		}
	}
}
