package main

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"mcp-code-sandbox/internal/doctor"
)

// parse reads a command line as run does, up to the command.
func parse(t *testing.T, args []string, env map[string]string) (*settings, error) {
	t.Helper()
	var c cli
	parser, err := newParser(&c, env, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"serve"}, args...)); err != nil {
		return nil, err
	}
	return &c.settings, c.validate(env, 1000)
}

// TestEverySettingByEnvironment: every variable of the contracts and the design, and its default.
func TestEverySettingByEnvironment(t *testing.T) {
	tested := map[string]bool{}
	for _, tc := range []struct {
		name  string
		value string
		get   func(*settings) any
		deflt any
		want  any
	}{
		{"MCP_HTTP_ADDR", ":9000", func(s *settings) any { return s.listenAddr() }, "127.0.0.1:8080", ":9000"},
		{"SANDBOX_HTTP_PORT", "9001", func(s *settings) any { return s.listenAddr() }, "127.0.0.1:8080", "127.0.0.1:9001"},
		{"MCP_API_TOKEN", "tok", func(s *settings) any { return s.APIToken.Reveal() }, "", "tok"},
		{"FILE_SECRET", "sec", func(s *settings) any { return s.FileSecret.Reveal() }, "", "sec"},
		{"PUBLIC_BASE_URL", "https://x.example.com/", func(s *settings) any { return s.PublicBaseURL }, "", "https://x.example.com"},
		{"SANDBOX_ALLOWED_HOSTS", "a.example,b.example", func(s *settings) any { return strings.Join(s.AllowedHosts, "|") }, "", "a.example|b.example"},
		{"SANDBOX_ALLOWED_ORIGINS", "https://a.example", func(s *settings) any { return strings.Join(s.AllowedOrigins, "|") }, "", "https://a.example"},
		{"SANDBOX_TRUSTED_PROXIES", "127.0.0.1,10.0.0.0/8", func(s *settings) any { return fmt.Sprint(prefixes(s.TrustedProxies)) }, "[]", "[127.0.0.1/32 10.0.0.0/8]"},
		{"SANDBOX_URL_TTL", "3600", func(s *settings) any { return time.Duration(s.URLTTL) }, time.Duration(0), time.Hour},
		{"SANDBOX_DRAIN_S", "90", func(s *settings) any { return s.Drain }, time.Duration(0), 90 * time.Second},
		{"SANDBOX_DATABASE_URL", "postgres://u@h/d", func(s *settings) any { return s.database() }, "/home/u/.local/share/mcp-code-sandbox/state.db", "postgres://u@h/d"},
		{"SANDBOX_CONFIG", "/etc/x.json", func(s *settings) any { return s.Config }, "", "/etc/x.json"},
		{"JWT_SECRET", "0123456789abcdef0123456789abcdef", func(s *settings) any { return s.JWTSecret.Reveal() }, "", "0123456789abcdef0123456789abcdef"},
		{"JWT_SECRET_PREVIOUS", "fedcba9876543210fedcba9876543210", func(s *settings) any { return s.JWTSecretPrevious.Reveal() }, "", "fedcba9876543210fedcba9876543210"},
		{"SANDBOX_TOOLS", "run_code", func(s *settings) any { return strings.Join(s.Tools, "|") }, "", "run_code"},
		{"SANDBOX_ROOT", "/srv/x", func(s *settings) any { return s.Root }, "/home/u/.local/share/mcp-code-sandbox", "/srv/x"},
		{"SANDBOX_BACKEND", "jail", func(s *settings) any { return s.Backend }, "auto", "jail"},
		{"DOCKER_HOST", "unix:///srv/e.sock", func(s *settings) any { return s.DockerHost }, defaultEngine(nil), "unix:///srv/e.sock"},
		{"SANDBOX_USER_BUS", "/srv/bus", func(s *settings) any { return s.UserBus }, "", "/srv/bus"},
		{"XDG_RUNTIME_DIR", "/run/user/1000", func(s *settings) any { return s.UserBus }, "", "/run/user/1000/bus"},
		{"SANDBOX_IMAGES", "mine:1,b@sha256:" + strings.Repeat("0", 64), func(s *settings) any { return strings.Join(s.Images, " ") }, "", "mine:1 b@sha256:" + strings.Repeat("0", 64)},
		{"SANDBOX_IMAGE", "mine:1", func(s *settings) any { return s.Image }, "", "mine:1"},
		{"SANDBOX_HOST_PATH", "/srv/h", func(s *settings) any { return s.HostPath }, "", "/srv/h"},
		{"SANDBOX_DOCKER_RUNTIME", "runsc", func(s *settings) any { return s.DockerRuntime }, "", "runsc"},
		{"SANDBOX_PACKAGES", "pypi,npm", func(s *settings) any { return strings.Join(s.Packages, "|") }, "", "pypi|npm"},
		{"SANDBOX_RUNNERS_DIR", "/srv/r", func(s *settings) any { return ownRunnersDir(s) }, "/home/u/.local/share/mcp-code-sandbox/runners.d", "/srv/r"},
		{"NIX_SANDBOX_DIR", "/srv/n", func(s *settings) any { return s.WrapperDir }, "/home/u/.config/nix-sandbox-mcp/sandboxes", "/srv/n"},
		{"NIX_SANDBOX_ENVS", "github:a/b,.#c", func(s *settings) any { return strings.Join(s.NixEnvs, "|") }, "", "github:a/b|.#c"},
		{"PROJECT_DIR", "/usr/share", func(s *settings) any { return s.ProjectDir }, "", "/usr/share"},
		{"PROJECT_MOUNT", "/code", func(s *settings) any { return s.ProjectMount }, "/project", "/code"},
		{"SANDBOX_MEMORY_LIMIT", "1GB", func(s *settings) any { return int64(s.MemoryLimit) }, int64(512 << 20), int64(1 << 30)},
		{"SANDBOX_CPU_LIMIT", "0.5", func(s *settings) any { return s.CPULimit }, 1.0, 0.5},
		{"SANDBOX_PIDS_LIMIT", "99", func(s *settings) any { return s.PIDsLimit }, 256, 99},
		{"SANDBOX_TMP_BYTES", "64m", func(s *settings) any { return int64(s.TmpBytes) }, int64(256 << 20), int64(64 << 20)},
		{"SANDBOX_RESOURCE_LINKS", "on", func(s *settings) any { return s.ResourceLinks }, "off", "on"},
		{"SANDBOX_OUTER_NAMESPACE", "off", func(s *settings) any { return s.OuterNamespace }, "auto", "off"},
		{"SANDBOX_SHARED_ZYGOTE", "off", func(s *settings) any { return s.SharedZygote }, "on", "off"},
		{"SANDBOX_NETWORK", "off", func(s *settings) any { return s.Network }, "full", "off"},
		{"SANDBOX_NETWORK_ALLOW", "10.1.2.3,192.168.0.7/16", func(s *settings) any { return fmt.Sprint(prefixes(s.NetworkAllow)) }, "[]", "[10.1.2.3/32 192.168.0.0/16]"},
		{"SANDBOX_NETWORK_DENY", "9.9.9.9,::ffff:8.8.0.0/112", func(s *settings) any { return fmt.Sprint(prefixes(s.NetworkDeny)) }, "[]", "[9.9.9.9/32 8.8.0.0/16]"},
		{"SANDBOX_EXEC_TIMEOUT_S", "90", func(s *settings) any { return time.Duration(s.ExecTimeout) }, time.Minute, 90 * time.Second},
		{"SANDBOX_MAX_EXEC_TIMEOUT_S", "120", func(s *settings) any { return time.Duration(s.MaxExecTimeout) }, 10 * time.Minute, 2 * time.Minute},
		{"SANDBOX_HANDOVER_S", "5", func(s *settings) any { return time.Duration(s.Handover) }, 45 * time.Second, 5 * time.Second},
		{"SANDBOX_SESSION_TTL_M", "5", func(s *settings) any { return s.idleTTL() }, 30 * time.Minute, 5 * time.Minute},
		{"SESSION_IDLE_TIMEOUT", "45", func(s *settings) any { return s.idleTTL() }, 30 * time.Minute, 45 * time.Second},
		{"SESSION_MAX_LIFETIME", "3600", func(s *settings) any { return time.Duration(s.MaxLifetime) }, time.Duration(0), time.Hour},
		{"SANDBOX_MAX_UPLOAD_BYTES", "1048576", func(s *settings) any { return int64(s.MaxUploadBytes) }, int64(50 << 20), int64(1 << 20)},
		{"SANDBOX_MAX_OUTPUT_BYTES", "5KB", func(s *settings) any { return int64(s.MaxOutputBytes) }, int64(100 << 10), int64(5 << 10)},
		{"SANDBOX_RESULT_BYTES", "5KB", func(s *settings) any { return int64(s.ResultBytes) }, int64(24 << 10), int64(5 << 10)},
		{"SANDBOX_RESULT_MEMORY", "32MB", func(s *settings) any { return int64(s.ResultMemory.byteSize) }, defaultResultMemory(doctor.System().Memory()), int64(32 << 20)},
		{"SANDBOX_MAX_CODE_BYTES", "5kb", func(s *settings) any { return int64(s.MaxCodeBytes) }, int64(100 << 10), int64(5 << 10)},
		{"SANDBOX_MAX_ARTIFACT_READ_BYTES", "1MB", func(s *settings) any { return int64(s.MaxReadBytes) }, int64(10 << 20), int64(1 << 20)},
		{"SANDBOX_CALLER_BYTES", "3GB", func(s *settings) any { return int64(s.CallerBytes) }, int64(10 << 30), int64(3 << 30)},
		{"SANDBOX_CALLER_FILES", "7000", func(s *settings) any { return s.CallerFiles }, 500_000, 7000},
		{"SANDBOX_CALLER_SESSIONS", "7", func(s *settings) any { return s.CallerSessions }, 1000, 7},
		{"SANDBOX_WORKSPACE_BYTES", "1.5GiB", func(s *settings) any { return int64(s.WorkspaceBytes) }, int64(2 << 30), int64(3 << 29)},
		{"SANDBOX_WORKSPACE_FILES", "7", func(s *settings) any { return s.WorkspaceFiles }, 50000, 7},
		{"SANDBOX_MAX_SESSIONS", "3", func(s *settings) any { return s.MaxSessions }, 10, 3},
		{"SANDBOX_EVICT_IDLE_S", "5", func(s *settings) any { return time.Duration(s.EvictIdle) }, time.Minute, 5 * time.Second},
		{"SANDBOX_POOL_SIZE", "7", func(s *settings) any { return fmt.Sprint(s.poolSize(backendJail), s.poolSize(backendDocker)) }, "2 0", "7 7"},
		{"SANDBOX_MAX_RUNS_PER_SESSION", "2", func(s *settings) any { return s.MaxRunsPerSession }, 4, 2},
		{"SANDBOX_CLEANUP_INTERVAL_M", "1", func(s *settings) any { return time.Duration(s.CleanupInterval) }, 5 * time.Minute, time.Minute},
		{"SANDBOX_CLOSED_RETENTION_H", "1.5", func(s *settings) any { return time.Duration(s.ClosedRetention) }, 24 * time.Hour, 90 * time.Minute},
		{"SANDBOX_LOG_LEVEL", "warning", func(s *settings) any { return slog.Level(s.LogLevel) }, slog.LevelInfo, slog.LevelWarn},
		{"SANDBOX_LOG_FILE", "/var/log/x.log", func(s *settings) any { return s.LogFile }, "/home/u/.local/share/mcp-code-sandbox/logs/sandbox.log", "/var/log/x.log"},
		{"SANDBOX_LOG_FORMAT", "json", func(s *settings) any { return s.LogFormat }, "console", "json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for value, want := range map[string]any{tc.value: tc.want, "": tc.deflt} { // an empty variable is not set
				s, err := parse(t, nil, map[string]string{"HOME": "/home/u", tc.name: value})
				if err != nil {
					t.Fatalf("%s=%s: %v", tc.name, value, err)
				}
				if got := tc.get(s); got != want {
					t.Errorf("%s=%s: got %v, want %v", tc.name, value, got, want)
				}
			}
			tested[tc.name] = true
		})
	}
	typ := reflect.TypeFor[settings]()
	for i := range typ.NumField() {
		name := typ.Field(i).Tag.Get("environ")
		if name == "" || !tested[name] {
			t.Errorf("field %s (%q) has no environment name, or no line in this test", typ.Field(i).Name, name)
		}
	}
}

func TestNoUserBus(t *testing.T) {
	s, err := parse(t, nil, map[string]string{"HOME": "/home/u", "XDG_RUNTIME_DIR": "/run/user/1000", "SANDBOX_USER_BUS": "none"})
	if err != nil || s.UserBus != "" {
		t.Errorf("the bus is %q, %v", s.UserBus, err)
	}
}

func TestPrecedence(t *testing.T) {
	env := map[string]string{"HOME": "/home/u", "SANDBOX_MAX_SESSIONS": "3", "MCP_HTTP_ADDR": ":1", "SANDBOX_HTTP_PORT": "2",
		"SESSION_IDLE_TIMEOUT": "7", "SANDBOX_SESSION_TTL_M": "9", "SANDBOX_LOG_FILE": "none"}
	s, err := parse(t, []string{"--max-sessions=4"}, env)
	if err != nil {
		t.Fatal(err)
	}
	if s.MaxSessions != 4 {
		t.Errorf("the flag must win over the environment: %d", s.MaxSessions)
	}
	if s.listenAddr() != ":1" {
		t.Errorf("MCP_HTTP_ADDR must win over SANDBOX_HTTP_PORT: %s", s.listenAddr())
	}
	if s.idleTTL() != 7*time.Second {
		t.Errorf("SESSION_IDLE_TIMEOUT must win over SANDBOX_SESSION_TTL_M: %v", s.idleTTL())
	}
	if s.LogFile != "" {
		t.Errorf("none must mean no log file: %q", s.LogFile)
	}
}

func TestBadSettingsSayTheFix(t *testing.T) {
	for _, tc := range []struct{ name, value, says string }{
		{"MCP_HTTP_ADDR", "8080", "host:port"},
		{"MCP_HTTP_ADDR", "localhost:http", "host:port"},
		{"SANDBOX_HTTP_PORT", "70000", "0 to 65535"},
		{"SANDBOX_HTTP_PORT", "x", "SANDBOX_HTTP_PORT"},
		{"SANDBOX_DATABASE_URL", "mysql://u:pw@h/d", "write it like postgres://"},
		{"SANDBOX_DATABASE_URL", "state.db", "write it like postgres://"},
		{"MCP_API_TOKEN", "has space", "letters and digits"},
		{"PUBLIC_BASE_URL", "sandbox.example.com", "https://"},
		{"PUBLIC_BASE_URL", "https://x.example.com?a=b", "https://"},
		{"SANDBOX_ALLOWED_HOSTS", "https://app.example.com", "sandbox.example.com"},
		{"SANDBOX_ALLOWED_ORIGINS", "app.example.com", "https://"},
		{"SANDBOX_MEMORY_LIMIT", "plenty", "512MB"},
		{"SANDBOX_MEMORY_LIMIT", "-1", "512MB"},
		{"SANDBOX_MEMORY_LIMIT", "1k", "32MB"},
		{"SANDBOX_RESULT_MEMORY", "1MB", "16MB"},
		{"SANDBOX_RESULT_MEMORY", "0", "unset it for the default"},
		{"SANDBOX_WORKSPACE_BYTES", "1PB", "units: KB, MB, GB, TB"},
		{"SANDBOX_TRUSTED_PROXIES", "127.0.0.1,0.0.0.0/0", "trusts everybody"},
		{"SANDBOX_TRUSTED_PROXIES", "10.1.2.3/0", "trusts everybody"},
		{"SANDBOX_TRUSTED_PROXIES", "::/0", "trusts everybody"},
		{"SANDBOX_TRUSTED_PROXIES", "::ffff:0:0/96", "trusts everybody"},
		{"SANDBOX_IMAGES", "runner-python, ", "not a valid image name"},
		{"SANDBOX_RESULT_MEMORY", "100000GB", "half"},
		{"SANDBOX_CPU_LIMIT", "0", "0.05"},
		{"SANDBOX_CPU_LIMIT", "0.00001", "0.00001 is too little"},
		{"SANDBOX_PIDS_LIMIT", "1", "32"},
		{"SANDBOX_EXEC_TIMEOUT_S", "soon", "seconds"},
		{"SANDBOX_EXEC_TIMEOUT_S", "0", "greater than 0"},
		{"SANDBOX_SESSION_TTL_M", "x", "minutes"},
		{"SANDBOX_OUTER_NAMESPACE", "on", "auto"},
		{"SANDBOX_SHARED_ZYGOTE", "yes", "on"},
		{"SANDBOX_NETWORK", "yes", "full"},
		{"SANDBOX_IMAGES", "sha256:12345", "64 hexadecimal digits"},
		{"SANDBOX_IMAGES", "Not An Image", "registry.example.com/runner:1"},
		{"SANDBOX_NETWORK_ALLOW", "db.internal", "10.0.0.0/8"},
		{"SANDBOX_NETWORK_DENY", "db.internal", "203.0.114.0/24"},
		{"SANDBOX_NETWORK_DENY", strings.Repeat("9.9.9.9,", 300) + "8.8.8.8", "at most 256"},
		{"SANDBOX_BACKEND", "none", "docker"},
		{"SANDBOX_HOST_PATH", "var/lib/x", "absolute path"},
		{"SANDBOX_LOG_LEVEL", "loud", "DEBUG"},
		{"SANDBOX_LOG_FORMAT", "xml", "json"},
		{"NIX_SANDBOX_ENVS", "--impure", "flake reference"},
		{"SANDBOX_PACKAGES", "cargo", "use pypi, npm, or pypi,npm"},
		{"PROJECT_DIR", "project", "absolute"},
		{"PROJECT_DIR", filepath.Join(t.TempDir(), "missing"), "exists"},
		{"PROJECT_DIR", "/etc/passwd", "not a directory"},
		{"PROJECT_DIR", "/", "SANDBOX_ROOT"},
		{"JWT_SECRET", "short", "32 bytes"},
		{"JWT_SECRET_PREVIOUS", "short", "32 bytes"},
		{"SANDBOX_TRUSTED_PROXIES", "proxy.internal", "10.0.0.0/8"},
		{"SANDBOX_TOOLS", "rm", "run_code"},
		{"HOME", "", "SANDBOX_ROOT"},
	} {
		t.Run(tc.name+"="+tc.value, func(t *testing.T) {
			env := map[string]string{"HOME": "/home/u"}
			env[tc.name] = tc.value
			_, err := parse(t, nil, env)
			name := tc.name
			if name == "HOME" {
				name = "SANDBOX_ROOT"
			}
			if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), name) {
				t.Fatalf("err = %v; want one that names %s and says %q", err, name, tc.says)
			}
		})
	}
}

// TestWeakSecrets: the server refuses a short secret on an address that others can reach. On
// loopback it warns.
func TestWeakSecrets(t *testing.T) {
	long, longer := strings.Repeat("t", 16), strings.Repeat("s", 32)
	for _, tc := range []struct {
		addr, token, secret string
		refused             []string
		weak                int
	}{
		{":8080", "a", "x", []string{"MCP_API_TOKEN", "FILE_SECRET"}, 2},
		{"0.0.0.0:8080", long[1:], longer, []string{"MCP_API_TOKEN"}, 1},
		{"[::]:8080", long, longer[1:], []string{"FILE_SECRET"}, 1},
		{"sandbox.example.com:8080", "a", "", []string{"MCP_API_TOKEN"}, 1},
		{"192.0.2.1:8080", long, longer, nil, 0},
		{":8080", "", "", nil, 0}, // the server makes good ones
		{"", "a", "x", nil, 2},
		{"127.0.0.1:8080", "a", "x", nil, 2},
		{"[::1]:8080", "a", "x", nil, 2},
		{"localhost:8080", "a", "x", nil, 2},
	} {
		s, err := parse(t, nil, map[string]string{"HOME": "/home/u", "MCP_HTTP_ADDR": tc.addr, "MCP_API_TOKEN": tc.token, "FILE_SECRET": tc.secret})
		if (err != nil) != (tc.refused != nil) {
			t.Errorf("%q, %q, %q: %v", tc.addr, tc.token, tc.secret, err)
		}
		for _, name := range tc.refused {
			if err != nil && (!strings.Contains(err.Error(), name+": must have at least") || !strings.Contains(err.Error(), "openssl rand")) {
				t.Errorf("%q: %v", tc.addr, err)
			}
		}
		if err == nil && len(s.weakSecrets()) != tc.weak {
			t.Errorf("%q, %q, %q: %v", tc.addr, tc.token, tc.secret, s.weakSecrets())
		}
	}
	server := serve(t, t.TempDir(), "SANDBOX_HTTP_PORT=0", "MCP_API_TOKEN=a", "FILE_SECRET=x")
	for _, name := range []string{"MCP_API_TOKEN", "FILE_SECRET"} {
		server.text.wait(t, `(?i)warn.*`+name+`: should have at least`)
	}
}

// TestConfigOutsideProject: the server refuses a configuration that code could read.
func TestConfigOutsideProject(t *testing.T) {
	dir := t.TempDir()
	inside := filepath.Join(dir, "services.json")
	if err := os.WriteFile(inside, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "services.json")
	if err := os.Symlink(inside, link); err != nil {
		t.Fatal(err)
	}
	for _, config := range []string{inside, link} {
		if _, err := parse(t, nil, map[string]string{"HOME": "/home/u", "PROJECT_DIR": dir, "SANDBOX_CONFIG": config}); err == nil || !strings.Contains(err.Error(), "SANDBOX_CONFIG") {
			t.Errorf("%s: %v", config, err)
		}
	}
	if _, err := parse(t, nil, map[string]string{"HOME": "/home/u", "PROJECT_DIR": dir, "SANDBOX_CONFIG": "/etc/services.json"}); err != nil {
		t.Error(err)
	}
}

// TestSecretsNeverShow: neither help nor errors print a secret.
func TestSecretsNeverShow(t *testing.T) {
	const token, key = "tok-0123456789abcdef", "key-0123456789abcdef"
	root := filepath.Join(t.TempDir(), "root")
	env := []string{"MCP_API_TOKEN=" + token, "FILE_SECRET=" + key, "JWT_SECRET=" + key + key, "SANDBOX_ROOT=" + root,
		"SANDBOX_DATABASE_URL=postgres://ann:" + key + "@127.0.0.1:1/sandbox"}
	for _, args := range [][]string{
		{"--help"}, {"serve", "--help"}, {"stdio", "--help"}, {"run", "--help"}, {"version"}, {}, {"nonsense"},
		{"serve", "--api-token=" + token, "--file-secret=" + key, "--bad-flag"},
		{"serve", "--network=bad", "--api-token", token},
		{"serve", "--api-token", token + " " + token},
		{"serve", "--database-url=postgres://ann:" + key + "@host:" + key + "/sandbox"},
		{"serve", "--database-url=" + key}, {"serve", "--http-port=0"}, {"doctor"},
		{"store", "copy", "--help"}, {"store", "copy", "--from=postgres://ann:" + key + "@127.0.0.1:1/a", "--to=x"},
		{"store", "copy", "--from=postgres://ann:" + key + "@h:" + key + "/a", "--to=x", "--bad=" + key[:3]},
	} {
		var out bytes.Buffer
		run(t.Context(), args, env, strings.NewReader(""), &out, &out)
		if strings.Contains(out.String(), token) || strings.Contains(out.String(), key) {
			t.Errorf("%q prints a secret:\n%s", args, out.String())
		}
		if out.Len() == 0 {
			t.Errorf("%q prints nothing", args)
		}
	}
}

func TestDefaultRoot(t *testing.T) {
	for _, tc := range []struct {
		env  map[string]string
		euid int
		want string
	}{
		{map[string]string{"HOME": "/root"}, 0, "/var/lib/mcp-code-sandbox"},
		{map[string]string{"HOME": "/home/u"}, 1000, "/home/u/.local/share/mcp-code-sandbox"},
		{map[string]string{"HOME": "/home/u", "XDG_DATA_HOME": "/data/u"}, 1000, "/data/u/mcp-code-sandbox"},
		{map[string]string{"HOME": "/home/u", "XDG_DATA_HOME": "relative"}, 1000, "/home/u/.local/share/mcp-code-sandbox"},
		{nil, 1000, ""},
	} {
		if got := defaultRoot(tc.env, tc.euid); got != tc.want {
			t.Errorf("defaultRoot(%v, %d) = %q, want %q", tc.env, tc.euid, got, tc.want)
		}
	}
}
