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
		"SANDBOX_CONFIG": write("config2.json", "{}"), "GOMEMLIMIT": "1GiB",
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
