package main

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/secret"
)

// settings holds every setting: its flag, environment variable, default and meaning. A flag wins
// over the variable; an empty variable counts as unset. Nothing else reads the environment.
// docs/settings.md is generated from this type (make docs).
type settings struct {
	HTTPAddr      string   `name:"http-addr" environ:"MCP_HTTP_ADDR" placeholder:"HOST:PORT" group:"server" help:"Address to listen on; \":8080\" listens on every interface. Wins over --http-port. serve fails if another program uses it."`
	HTTPPort      int      `name:"http-port" environ:"SANDBOX_HTTP_PORT" default:"8080" group:"server" help:"Port to listen on, on 127.0.0.1."`
	PublicBaseURL string   `name:"public-base-url" environ:"PUBLIC_BASE_URL" placeholder:"URL" group:"server" help:"Address at which clients reach this server, for file links. Default: the address it listens on."`
	Root          string   `name:"root" environ:"SANDBOX_ROOT" type:"path" placeholder:"DIR" group:"server" help:"Directory for all sessions, keys and logs. Default: /var/lib/mcp-code-sandbox for root, otherwise the user's data directory."`
	Config        string   `name:"config" environ:"SANDBOX_CONFIG" type:"path" placeholder:"FILE" group:"server" help:"Configuration file (JSON) of the services that code may call, of the login, of the hosts that runs may name, and of packages."`
	Tools         []string `name:"tools" environ:"SANDBOX_TOOLS" placeholder:"NAME" group:"server" help:"Tools to offer: names, or the presets conversation, session, run and all. Use run for chat clients. Default: all."`
	ResourceLinks string   `name:"resource-links" environ:"SANDBOX_RESOURCE_LINKS" default:"off" oneof:"on,off" group:"server" help:"Whether results link to the run's files as MCP resources: on, or off (only for clients that ask for it in _meta). Some frameworks send such links to model providers, which refuse them."`

	DatabaseURL secret.Value `name:"database-url" environ:"SANDBOX_DATABASE_URL" placeholder:"URL" group:"server" help:"Postgres database (postgres://user@host:5432/database) to use instead of SQLite in the root. The password may be in PGPASSWORD or ~/.pgpass. Files and sessions stay in the root. Prefer the variable: other users of this machine can see flags."`

	Drain time.Duration `unit:"s" name:"drain" environ:"SANDBOX_DRAIN_S" default:"0s" min:"0" group:"server" help:"How long serve lets running code finish after SIGTERM, while it takes no new sessions (seconds, or 1m). 0: it ends all runs at once."`

	APIToken          secret.Value  `name:"api-token" environ:"MCP_API_TOKEN" placeholder:"SECRET" group:"access" help:"Bearer token for /mcp and /metrics. Default: generated and stored under the root. Prefer the variable: other users of this machine can see flags."`
	FileSecret        secret.Value  `name:"file-secret" environ:"FILE_SECRET" placeholder:"SECRET" group:"access" help:"Key that signs file links. Default: generated and stored under the root."`
	URLTTL            time.Duration `unit:"s" name:"url-ttl" environ:"SANDBOX_URL_TTL" default:"0s" min:"0" group:"access" help:"How long file links work (seconds, or 24h). 0: forever, and 7 days for those of logged-in users."`
	JWTSecret         secret.Value  `name:"jwt-secret" environ:"JWT_SECRET" placeholder:"SECRET" group:"access" help:"Key for execution tokens, logins and stored connections; at least 32 bytes. Default: generated and stored under the root."`
	JWTSecretPrevious secret.Value  `name:"jwt-secret-previous" environ:"JWT_SECRET_PREVIOUS" placeholder:"SECRET" group:"access" help:"The previous JWT_SECRET, while you change it. The server encrypts stored connections again with the new one."`
	AllowedHosts      []string      `name:"allowed-hosts" environ:"SANDBOX_ALLOWED_HOSTS" placeholder:"NAME" group:"access" help:"Host names in requests that the server accepts besides loopback and the public base URL, such as *.example.com; * accepts all."`
	AllowedOrigins    []string      `name:"allowed-origins" environ:"SANDBOX_ALLOWED_ORIGINS" placeholder:"ORIGIN" group:"access" help:"Web origins that may call the server besides loopback and its own, such as https://app.example.com."`
	TrustedProxies    []string      `name:"trusted-proxies" environ:"SANDBOX_TRUSTED_PROXIES" placeholder:"CIDR" group:"access" help:"Addresses or networks of reverse proxies whose X-Forwarded-For names the client, such as 127.0.0.1. Default: none."`

	Backend        string   `name:"backend" environ:"SANDBOX_BACKEND" default:"auto" group:"isolation" help:"How to isolate code: auto, jail or docker. auto uses docker if an engine has this project's images, or those that --image or --images name; otherwise the jail."`
	DockerHost     string   `name:"docker-host" environ:"DOCKER_HOST" placeholder:"URL" group:"isolation" help:"Address of the Docker or Podman engine. Default: the first of the usual sockets that exists, such as unix:///var/run/docker.sock."`
	Image          string   `name:"image" environ:"SANDBOX_IMAGE" placeholder:"IMAGE" group:"isolation" help:"Image for Python on docker, such as llm-sandbox:latest. It wins over every labelled image."`
	Images         []string `name:"images" environ:"SANDBOX_IMAGES" placeholder:"IMAGE" group:"isolation" help:"Labelled images that docker may use, by name (runner-python, registry.example.com/r:1) or digest (sha256:…, name@sha256:…). Default: all labelled images."`
	HostPath       string   `name:"host-path" environ:"SANDBOX_HOST_PATH" placeholder:"DIR" group:"isolation" help:"Path of the root on the engine's host, if the server itself runs in a container."`
	DockerRuntime  string   `name:"docker-runtime" environ:"SANDBOX_DOCKER_RUNTIME" placeholder:"NAME" group:"isolation" help:"OCI runtime for sandboxes on docker, such as runsc or kata. Default: the engine's default."`
	SharedZygote   string   `name:"shared-zygote" environ:"SANDBOX_SHARED_ZYGOTE" default:"on" oneof:"on,off" group:"isolation" help:"Whether the jail's sandboxes share the memory of Python's libraries: on, or off (each imports its own, which costs a second of CPU and 80 MB, and has its own address-space layout)."`
	OuterNamespace string   `name:"outer-namespace" environ:"SANDBOX_OUTER_NAMESPACE" default:"auto" oneof:"auto,off" group:"isolation" help:"Whether an ordinary user's server with the jail runs in a user namespace of its own, which makes it as fast and as isolated as root's: auto (if the machine allows it and no environment isolates itself), or off."`
	UserBus        string   `name:"user-bus" environ:"SANDBOX_USER_BUS" placeholder:"SOCKET" group:"isolation" help:"Socket of the message bus on which an ordinary user's server asks systemd for a cgroup, so that limits apply to whole sandboxes; none: do not ask. The server then ends with the user's last login, unless loginctl enable-linger was called. Default: bus in $XDG_RUNTIME_DIR."`
	PoolSize       *int     `name:"pool-size" environ:"SANDBOX_POOL_SIZE" placeholder:"N" min:"0" group:"isolation" help:"Most sandboxes of each kind, without network, that serve, or the server that editor windows share, starts in advance for new sessions; 0: none. Default: 2 on the jail, 0 on docker."`
	Network        string   `name:"network" environ:"SANDBOX_NETWORK" default:"full" oneof:"full,list,off" group:"isolation" help:"What code can reach: full (runs with network: true the internet, nothing private; runs with hosts those), list (only hosts that runs name), or off."`
	NetworkAllow   []string `name:"network-allow" environ:"SANDBOX_NETWORK_ALLOW" placeholder:"CIDR" group:"isolation" help:"Private addresses or networks that runs with network or hosts may also reach."`
	NetworkDeny    []string `name:"network-deny" environ:"SANDBOX_NETWORK_DENY" placeholder:"CIDR" group:"isolation" help:"Public addresses or networks that runs with network or hosts, and services, must not reach. Wins over --network-allow."`

	Packages     []string `name:"packages" environ:"SANDBOX_PACKAGES" placeholder:"KIND" group:"environments" help:"Packages that code may install, from this server's mirror: pypi, npm, or both. The indexes are those of this host's own pip and npm, unless --config names others. Default: none."`
	RunnersDir   string   `name:"runners-dir" environ:"SANDBOX_RUNNERS_DIR" type:"path" placeholder:"DIR" group:"environments" help:"Directory of your own runners, one subdirectory each. Default: runners.d under the root."`
	WrapperDir   string   `name:"nix-sandbox-dir" environ:"NIX_SANDBOX_DIR" type:"path" placeholder:"DIR" group:"environments" help:"Directory of environments that isolate themselves, one subdirectory each with metadata.json and bin/run. Default: ~/.config/nix-sandbox-mcp/sandboxes."`
	NixEnvs      []string `name:"nix-sandbox-envs" environ:"NIX_SANDBOX_ENVS" placeholder:"REF" group:"environments" help:"Flake references of such environments. The server builds them with nix when it starts."`
	ProjectDir   string   `name:"project-dir" environ:"PROJECT_DIR" placeholder:"DIR" group:"environments" help:"Directory that all code can read (absolute path). Default: none."`
	ProjectMount string   `name:"project-mount" environ:"PROJECT_MOUNT" default:"/project" placeholder:"DIR" group:"environments" help:"Where code finds the project directory."`

	MemoryLimit       byteSize      `name:"memory-limit" environ:"SANDBOX_MEMORY_LIMIT" default:"512MB" min:"32MB" group:"runs" help:"Memory of a sandbox (512MB, 512m, or bytes; 1 KB is 1024 bytes)."`
	CPULimit          float64       `name:"cpu-limit" environ:"SANDBOX_CPU_LIMIT" default:"1.0" group:"runs" help:"CPU cores of a sandbox."`
	PIDsLimit         int           `name:"pids-limit" environ:"SANDBOX_PIDS_LIMIT" default:"256" min:"32" group:"runs" help:"Processes and threads of a sandbox."`
	TmpBytes          byteSize      `name:"tmp-bytes" environ:"SANDBOX_TMP_BYTES" default:"256MB" min:"1MB" group:"runs" help:"Size of a run's private /tmp, and of its /dev/shm. Both count as memory."`
	ExecTimeout       time.Duration `unit:"s" name:"exec-timeout" environ:"SANDBOX_EXEC_TIMEOUT_S" default:"60s" min:">0" group:"runs" help:"Time limit of a run that does not set timeout_seconds (seconds, or 2m)."`
	MaxExecTimeout    time.Duration `unit:"s" name:"max-exec-timeout" environ:"SANDBOX_MAX_EXEC_TIMEOUT_S" default:"600s" min:"0" group:"runs" help:"Highest timeout_seconds that a run may set (seconds, or 10m)."`
	Handover          time.Duration `unit:"s" name:"handover" environ:"SANDBOX_HANDOVER_S" default:"45s" min:"0" group:"runs" help:"Time after which an MCP client's run continues in the background (seconds); 0: never. Many clients give up after 60."`
	MaxRunsPerSession int           `name:"max-runs-per-session" environ:"SANDBOX_MAX_RUNS_PER_SESSION" default:"4" min:">0" group:"runs" help:"Concurrent runs of one session."`
	MaxCodeBytes      byteSize      `name:"max-code-bytes" environ:"SANDBOX_MAX_CODE_BYTES" default:"100KB" min:">0" group:"runs" help:"Longest code of a run."`
	MaxOutputBytes    byteSize      `name:"max-output-bytes" environ:"SANDBOX_MAX_OUTPUT_BYTES" default:"100KB" min:">0" group:"runs" help:"How much of stdout, and of stderr, a result keeps. The server cuts the middle."`
	ResultBytes       byteSize      `name:"result-bytes" environ:"SANDBOX_RESULT_BYTES" default:"24KB" min:"1KB" group:"runs" help:"How much of a run's output the tool run gives to a model. The server cuts the middle; the whole output can be read as a resource."`
	ResultMemory      optionalSize  `name:"result-memory" environ:"SANDBOX_RESULT_MEMORY" placeholder:"SIZE" group:"runs" help:"Server memory for the results of all runs: output, plots, answers being sent. Callers share it; without room, plots and output are omitted. Default: 1/16 of the memory, between 64MB and 1GB."`

	MaxSessions     int           `name:"max-sessions" environ:"SANDBOX_MAX_SESSIONS" default:"10" min:">0" group:"sessions" help:"Sessions that have a live sandbox at the same time."`
	EvictIdle       time.Duration `unit:"s" name:"evict-idle" environ:"SANDBOX_EVICT_IDLE_S" default:"60s" min:"0" group:"sessions" help:"Idle time after which the server may end an interpreter, and lose its variables, to make room for another session (seconds, or 2m)."`
	SessionTTL      time.Duration `unit:"m" name:"session-ttl" environ:"SANDBOX_SESSION_TTL_M" default:"30m" min:">0" group:"sessions" help:"Idle time after which a session's processes end (minutes, or 1h30m). Its files stay."`
	IdleTimeout     time.Duration `unit:"s" name:"session-idle-timeout" environ:"SESSION_IDLE_TIMEOUT" placeholder:"SECONDS" min:"0" group:"sessions" help:"The same in seconds. Wins over --session-ttl."`
	MaxLifetime     time.Duration `unit:"s" name:"session-max-lifetime" environ:"SESSION_MAX_LIFETIME" placeholder:"SECONDS" min:"0" group:"sessions" help:"Longest life of a session's processes (seconds). Default: no limit."`
	ClosedRetention time.Duration `unit:"h" name:"closed-retention" environ:"SANDBOX_CLOSED_RETENTION_H" default:"24h" min:"0" group:"sessions" help:"How long file links of a closed session work (hours, or 90m). Then the server deletes its files. It never deletes files of open sessions."`
	CleanupInterval time.Duration `unit:"m" name:"cleanup-interval" environ:"SANDBOX_CLEANUP_INTERVAL_M" default:"5m" min:">0" group:"sessions" help:"How often the server cleans up after idle sessions and dead instances (minutes)."`

	WorkspaceBytes byteSize `name:"workspace-bytes" environ:"SANDBOX_WORKSPACE_BYTES" default:"2GB" min:"1MB" group:"files" help:"Size of a session's files. A run that exceeds it is stopped."`
	WorkspaceFiles int      `name:"workspace-files" environ:"SANDBOX_WORKSPACE_FILES" default:"50000" min:">0" group:"files" help:"Number of a session's files and directories."`
	CallerBytes    byteSize `name:"caller-bytes" environ:"SANDBOX_CALLER_BYTES" default:"10GB" min:"1MB" zero:"no limit" group:"files" help:"Size of all files of a logged-in user, including closed sessions; 0: no limit. It does not apply to the API token."`
	CallerFiles    int      `name:"caller-files" environ:"SANDBOX_CALLER_FILES" default:"500000" min:"1000" zero:"no limit" group:"files" help:"Number of files and directories of a logged-in user, including closed sessions; 0: no limit. It does not apply to the API token."`
	CallerSessions int      `name:"caller-sessions" environ:"SANDBOX_CALLER_SESSIONS" default:"1000" min:"0" group:"files" help:"Sessions of a logged-in user on disk, including closed ones; 0: no limit. It does not apply to the API token."`
	MaxUploadBytes byteSize `name:"max-upload-bytes" environ:"SANDBOX_MAX_UPLOAD_BYTES" default:"50MB" min:">0" group:"files" help:"Largest upload."`
	MaxReadBytes   byteSize `name:"max-artifact-read-bytes" environ:"SANDBOX_MAX_ARTIFACT_READ_BYTES" default:"10MB" min:">0" group:"files" help:"Largest file that read_artifact returns. Larger files have a link."`

	LogLevel  logLevel `name:"log-level" environ:"SANDBOX_LOG_LEVEL" default:"INFO" group:"logs" help:"DEBUG, INFO, WARN or ERROR."`
	LogFile   string   `name:"log-file" environ:"SANDBOX_LOG_FILE" default:"logs/sandbox.log" group:"logs" help:"Log file besides stderr, relative to the root; none: stderr only."`
	LogFormat string   `name:"log-format" environ:"SANDBOX_LOG_FORMAT" default:"console" oneof:"console,json" group:"logs" help:"console or json."`
}

// settingGroups are the headings of --help and docs/settings.md.
var settingGroups = []kong.Group{
	{Key: "server", Title: "Server:"},
	{Key: "access", Title: "Access and secrets:"},
	{Key: "isolation", Title: "Isolation:"},
	{Key: "environments", Title: "Language environments:"},
	{Key: "runs", Title: "Limits of a run:"},
	{Key: "sessions", Title: "Sessions:"},
	{Key: "files", Title: "Files:"},
	{Key: "logs", Title: "Logs:"},
}

// outputStop is how much a run may print before the server stops it. MaxOutputBytes is how much of
// that its result keeps.
const outputStop = 64 << 20

// uploadTTL is how long a one-time upload link works.
const uploadTTL = 15 * time.Minute

// setDefaults fills in what depends on the machine or the user, and brings values into one form.
func (s *settings) setDefaults(env map[string]string, euid int) {
	for _, f := range reflect.ValueOf(s).Elem().Fields() {
		if list, ok := f.Interface().([]string); ok {
			for i := range list {
				list[i] = strings.TrimSpace(list[i])
			}
		}
	}
	s.PublicBaseURL = strings.TrimRight(s.PublicBaseURL, "/")
	if s.Root = cmp.Or(s.Root, defaultRoot(env, euid)); s.Root != "" {
		if root, err := filepath.Abs(s.Root); err == nil {
			s.Root = root
		}
	}
	s.DockerHost = cmp.Or(s.DockerHost, defaultEngine(env))
	switch {
	case s.UserBus == "none":
		s.UserBus = ""
	case s.UserBus == "" && env["XDG_RUNTIME_DIR"] != "":
		s.UserBus = filepath.Join(env["XDG_RUNTIME_DIR"], "bus")
	}
	if s.WrapperDir == "" && env["HOME"] != "" {
		s.WrapperDir = filepath.Join(env["HOME"], ".config", "nix-sandbox-mcp", "sandboxes")
	}
	if !s.ResultMemory.isSet {
		s.ResultMemory.byteSize = byteSize(defaultResultMemory(doctor.System().Memory()))
	}
	switch {
	case s.LogFile == "none":
		s.LogFile = ""
	case s.LogFile != "" && !filepath.IsAbs(s.LogFile):
		s.LogFile = filepath.Join(s.Root, s.LogFile)
	}
}

// defaultRoot returns the user's data directory, or the system's for root. It is empty if the
// environment names none.
func defaultRoot(env map[string]string, euid int) string {
	const name = "mcp-code-sandbox"
	under := func(base string, more ...string) string {
		if base == "" {
			return ""
		}
		return filepath.Join(append(append([]string{base}, more...), name)...)
	}
	switch {
	case runtime.GOOS == "windows":
		return under(env["LOCALAPPDATA"])
	case euid == 0:
		return "/var/lib/" + name
	case runtime.GOOS == "darwin":
		return under(env["HOME"], "Library", "Application Support")
	case filepath.IsAbs(env["XDG_DATA_HOME"]):
		return under(env["XDG_DATA_HOME"])
	}
	return under(env["HOME"], ".local", "share")
}

// defaultEngine returns the first of the engines' usual sockets that exists. If none does, it is
// empty, and the Docker client uses its own default.
func defaultEngine(env map[string]string) string {
	candidates := []string{"/var/run/docker.sock"}
	if dir := env["XDG_RUNTIME_DIR"]; filepath.IsAbs(dir) {
		candidates = append(candidates, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "podman", "podman.sock"))
	}
	if home := env["HOME"]; filepath.IsAbs(home) {
		candidates = append(candidates,
			filepath.Join(home, ".docker", "run", "docker.sock"), filepath.Join(home, ".colima", "default", "docker.sock"))
	}
	for _, socket := range append(candidates, "/run/podman/podman.sock") {
		if fi, err := os.Stat(socket); err == nil && fi.Mode()&os.ModeSocket != 0 {
			return "unix://" + socket
		}
	}
	return ""
}

// database returns where the store is: the URL of a Postgres database, or the path of an SQLite
// file. Never print it.
func (s *settings) database() string {
	return cmp.Or(s.DatabaseURL.Reveal(), filepath.Join(s.Root, stateFile))
}

// listenAddr returns the address to listen on.
func (s *settings) listenAddr() string {
	return cmp.Or(s.HTTPAddr, net.JoinHostPort("127.0.0.1", strconv.Itoa(s.HTTPPort)))
}

// addrIsDefault reports whether the operator chose no address.
func (s *settings) addrIsDefault() bool { return s.HTTPAddr == "" && s.HTTPPort == 8080 }

// poolSize returns how many sandboxes of each kind the pool keeps. On docker the operator must ask
// for a pool: a container's labels cannot change, so they would not name its session.
func (s *settings) poolSize(backend string) int {
	if s.PoolSize != nil {
		return *s.PoolSize
	}
	return backendNamed(backend).poolSize
}

func (s *settings) idleTTL() time.Duration {
	return cmp.Or(s.IdleTimeout, s.SessionTTL)
}

// maxExecTimeout returns the highest timeout_seconds of a run, which is at least ExecTimeout.
func (s *settings) maxExecTimeout() time.Duration {
	return max(s.MaxExecTimeout, s.ExecTimeout)
}

// closedNetworks returns the addresses that neither sandboxes nor the proxy may reach.
func (s *settings) closedNetworks(ctx context.Context, log *slog.Logger) *closednet.List {
	cfg := closednet.Config{Allow: prefixes(s.NetworkAllow), Deny: prefixes(s.NetworkDeny), Logger: log}
	if u, err := url.Parse(s.PublicBaseURL); err == nil {
		cfg.PublicHost = u.Hostname()
	}
	return closednet.New(ctx, cfg)
}

// prefixes parses a list of networks. It drops invalid ones, which validate reports.
func prefixes(texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, n := range texts {
		if p, err := closednet.Parse(n); err == nil {
			list = append(list, p)
		}
	}
	return list
}
