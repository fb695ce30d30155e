package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"mcp-code-sandbox/internal/backend/docker"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/hostname"
	"mcp-code-sandbox/internal/secret"
)

// settings is every setting of the program: flag, environment name, default and help of each in one place. A flag wins
// over the environment, the environment over the default; an empty variable counts as not set. Nothing else reads the environment.
//
// The tag is "environ" and not kong's own "env", whose errors quote the value, and which reads the process's
// environment rather than the one that run was given.
type settings struct {
	HTTPAddr          string       `name:"http-addr" environ:"MCP_HTTP_ADDR" group:"server" placeholder:"HOST:PORT" help:"Address to listen on; \":8080\" means every interface. Wins over --http-port. serve fails when it is taken."`
	HTTPPort          int          `name:"http-port" environ:"SANDBOX_HTTP_PORT" group:"server" default:"8080" help:"Port to listen on, on 127.0.0.1."`
	APIToken          secret.Value `name:"api-token" environ:"MCP_API_TOKEN" group:"server" placeholder:"SECRET" help:"Bearer token of /mcp and /metrics. Made and kept under the root when not given. Others on this machine can see flags: prefer the environment."`
	PublicBaseURL     string       `name:"public-base-url" environ:"PUBLIC_BASE_URL" group:"server" placeholder:"URL" help:"Address under which clients reach this server, for file links. Default: the address served."`
	AllowedHosts      []string     `name:"allowed-hosts" environ:"SANDBOX_ALLOWED_HOSTS" group:"server" placeholder:"NAME" help:"Host names by which the server may be addressed, besides loopback and the public base URL's; *.example.com and * work."`
	AllowedOrigins    []string     `name:"allowed-origins" environ:"SANDBOX_ALLOWED_ORIGINS" group:"server" placeholder:"ORIGIN" help:"Web origins that may call, besides loopback and the server's own, such as https://app.example.com."`
	TrustedProxies    []string     `name:"trusted-proxies" environ:"SANDBOX_TRUSTED_PROXIES" group:"server" placeholder:"CIDR" help:"Addresses or networks of proxies in front of this server, whose X-Forwarded-For says who the client is, such as 127.0.0.1. Default: nobody's."`
	FileSecret        secret.Value `name:"file-secret" environ:"FILE_SECRET" group:"server" placeholder:"SECRET" help:"Key that signs file links. Made and kept under the root when not given."`
	URLTTL            seconds      `name:"url-ttl" environ:"SANDBOX_URL_TTL" group:"server" default:"0s" help:"How long file links work (seconds, or 24h); 0: for ever, and 7 days for those of logged-in users."`
	Config            string       `name:"config" environ:"SANDBOX_CONFIG" group:"server" type:"path" placeholder:"FILE" help:"Configuration file of the outside services that code may call, and of where people log in (JSON)."`
	JWTSecret         secret.Value `name:"jwt-secret" environ:"JWT_SECRET" group:"server" placeholder:"SECRET" help:"Key of execution tokens, logins and stored connections, 32 bytes or more. Made and kept under the root when not given."`
	JWTSecretPrevious secret.Value `name:"jwt-secret-previous" environ:"JWT_SECRET_PREVIOUS" group:"server" placeholder:"SECRET" help:"The JWT_SECRET before this one, to change it: what was sealed with it is sealed anew."`
	Tools             []string     `name:"tools" environ:"SANDBOX_TOOLS" group:"server" placeholder:"NAME" help:"Tools to offer: names, or the presets conversation, session, run and all. For chat clients, run is recommended. Default: all."`
	ResourceLinks     string       `name:"resource-links" environ:"SANDBOX_RESOURCE_LINKS" group:"server" default:"off" help:"Resource links to the files of a run in its result: on, or off (only for a client that asks for them in _meta). Some frameworks pass them to the model's provider, which refuses them."`

	Root              string       `name:"root" environ:"SANDBOX_ROOT" group:"sandbox" type:"path" placeholder:"DIR" help:"Directory of all sessions, keys and logs. Default: /var/lib/mcp-code-sandbox for root, else the user's data directory."`
	Backend           string       `name:"backend" environ:"SANDBOX_BACKEND" group:"sandbox" default:"auto" help:"How to isolate: auto, jail or docker. auto is docker when an engine has this project's images or --image or --images names some, else the jail."`
	DockerHost        string       `name:"docker-host" environ:"DOCKER_HOST" group:"sandbox" placeholder:"URL" help:"Address of the Docker or Podman engine. Default: the first usual socket that is there, such as unix:///var/run/docker.sock."`
	Image             string       `name:"image" environ:"SANDBOX_IMAGE" group:"sandbox" placeholder:"IMAGE" help:"Image for Python on docker, whatever other images are labelled, such as llm-sandbox:latest."`
	Images            []string     `name:"images" environ:"SANDBOX_IMAGES" group:"sandbox" placeholder:"IMAGE" help:"Labelled images that docker may use, by name (runner-python, registry.example.com/r:1) or digest (sha256:…, name@sha256:…). Default: all that are labelled."`
	HostPath          string       `name:"host-path" environ:"SANDBOX_HOST_PATH" group:"sandbox" placeholder:"DIR" help:"The root as the engine's host names it, where the server itself is in a container."`
	DockerRuntime     string       `name:"docker-runtime" environ:"SANDBOX_DOCKER_RUNTIME" group:"sandbox" placeholder:"NAME" help:"The engine's OCI runtime for sandboxes, such as runsc or kata. Default: the engine's own."`
	RunnersDir        string       `name:"runners-dir" environ:"SANDBOX_RUNNERS_DIR" group:"sandbox" type:"path" placeholder:"DIR" help:"Directory of your own runners, a directory each. Default: runners.d under the root."`
	WrapperDir        string       `name:"nix-sandbox-dir" environ:"NIX_SANDBOX_DIR" group:"sandbox" type:"path" placeholder:"DIR" help:"Directory of environments that isolate themselves, a directory each with metadata.json and bin/run. Default: ~/.config/nix-sandbox-mcp/sandboxes."`
	NixEnvs           []string     `name:"nix-sandbox-envs" environ:"NIX_SANDBOX_ENVS" group:"sandbox" placeholder:"REF" help:"Flake references of such environments, to build with nix at the start."`
	ProjectDir        string       `name:"project-dir" environ:"PROJECT_DIR" group:"sandbox" placeholder:"DIR" help:"Directory that all code sees, read-only; an absolute path."`
	ProjectMount      string       `name:"project-mount" environ:"PROJECT_MOUNT" group:"sandbox" default:"/project" placeholder:"DIR" help:"Where code sees it."`
	MemoryLimit       byteSize     `name:"memory-limit" environ:"SANDBOX_MEMORY_LIMIT" group:"sandbox" default:"512MB" help:"Memory of a sandbox (512MB, 512m, or bytes; 1 KB is 1024 bytes)."`
	CPULimit          float64      `name:"cpu-limit" environ:"SANDBOX_CPU_LIMIT" group:"sandbox" default:"1.0" help:"CPU cores of a sandbox."`
	PIDsLimit         int          `name:"pids-limit" environ:"SANDBOX_PIDS_LIMIT" group:"sandbox" default:"256" help:"Processes and threads of a sandbox."`
	TmpBytes          byteSize     `name:"tmp-bytes" environ:"SANDBOX_TMP_BYTES" group:"sandbox" default:"256MB" help:"Size of a run's private /tmp, and of its /dev/shm; both count as memory."`
	SharedZygote      string       `name:"shared-zygote" environ:"SANDBOX_SHARED_ZYGOTE" group:"sandbox" default:"on" help:"Share the memory of Python's imported libraries among the jail's sandboxes (on), or have each import them for itself (off: about a second of CPU and 80 MB each, for separate address-space layouts)."`
	Network           string       `name:"network" environ:"SANDBOX_NETWORK" group:"sandbox" default:"full" help:"What network: true gives a run: full (the internet, nothing private) or off."`
	NetworkAllow      []string     `name:"network-allow" environ:"SANDBOX_NETWORK_ALLOW" group:"sandbox" placeholder:"CIDR" help:"Private addresses or networks that runs with network may reach after all."`
	NetworkDeny       []string     `name:"network-deny" environ:"SANDBOX_NETWORK_DENY" group:"sandbox" placeholder:"CIDR" help:"Public addresses or networks that runs with network and services must not reach either. Wins over --network-allow."`
	ExecTimeout       seconds      `name:"exec-timeout" environ:"SANDBOX_EXEC_TIMEOUT_S" group:"sandbox" default:"60s" help:"Longest run that does not ask for more time (seconds, or 2m)."`
	MaxExecTimeout    seconds      `name:"max-exec-timeout" environ:"SANDBOX_MAX_EXEC_TIMEOUT_S" group:"sandbox" default:"600s" help:"Most that a run can ask for with timeout_seconds (seconds, or 10m)."`
	Handover          seconds      `name:"handover" environ:"SANDBOX_HANDOVER_S" group:"sandbox" default:"45s" help:"Time after which a run tool lets an MCP client's long code go on in the background (seconds); 0: never. Many clients give up after 60."`
	MaxCodeBytes      byteSize     `name:"max-code-bytes" environ:"SANDBOX_MAX_CODE_BYTES" group:"sandbox" default:"100KB" help:"Longest piece of code."`
	MaxOutputBytes    byteSize     `name:"max-output-bytes" environ:"SANDBOX_MAX_OUTPUT_BYTES" group:"sandbox" default:"100KB" help:"Output kept of each of stdout and stderr; the middle of more is left out."`
	ResultMemory      optionalSize `name:"result-memory" environ:"SANDBOX_RESULT_MEMORY" group:"sandbox" placeholder:"SIZE" help:"Server memory that the results of all runs may hold: output, plots, answers being sent. Callers share it; beyond it, plots and output are left out. Default: a sixteenth of the memory, 64MB to 1GB."`
	MaxUploadBytes    byteSize     `name:"max-upload-bytes" environ:"SANDBOX_MAX_UPLOAD_BYTES" group:"sandbox" default:"50MB" help:"Largest uploaded file."`
	MaxReadBytes      byteSize     `name:"max-artifact-read-bytes" environ:"SANDBOX_MAX_ARTIFACT_READ_BYTES" group:"sandbox" default:"10MB" help:"Largest file that read_artifact returns; larger ones have a link."`
	WorkspaceBytes    byteSize     `name:"workspace-bytes" environ:"SANDBOX_WORKSPACE_BYTES" group:"sandbox" default:"2GB" help:"Size of a session's files; a run that exceeds it is stopped."`
	WorkspaceFiles    int          `name:"workspace-files" environ:"SANDBOX_WORKSPACE_FILES" group:"sandbox" default:"50000" help:"Number of a session's files and directories."`
	CallerBytes       byteSize     `name:"caller-bytes" environ:"SANDBOX_CALLER_BYTES" group:"sandbox" default:"10GB" help:"Size of all files of one logged-in user, closed sessions included; 0: no limit. The API token's holder has none."`
	CallerFiles       int          `name:"caller-files" environ:"SANDBOX_CALLER_FILES" group:"sandbox" default:"500000" help:"Number of files and directories of one logged-in user, closed sessions included; 0: no limit. The API token's holder has none."`
	CallerSessions    int          `name:"caller-sessions" environ:"SANDBOX_CALLER_SESSIONS" group:"sandbox" default:"1000" help:"Sessions of one logged-in user on disk, closed ones included; 0: no limit. The API token's holder has none."`
	MaxSessions       int          `name:"max-sessions" environ:"SANDBOX_MAX_SESSIONS" group:"sandbox" default:"10" help:"Sessions that have a live sandbox at one time."`
	EvictIdle         seconds      `name:"evict-idle" environ:"SANDBOX_EVICT_IDLE_S" group:"sandbox" default:"60s" help:"Idle time after which an interpreter may be ended, and its variables lost, when there are too many sessions for a further one (seconds, or 2m)."`
	PoolSize          *int         `name:"pool-size" environ:"SANDBOX_POOL_SIZE" group:"sandbox" placeholder:"N" help:"Sandboxes of each kind without network that serve keeps ready for new sessions, at most; 0: none. Default: 2 on the jail, 0 on docker."`
	MaxRunsPerSession int          `name:"max-runs-per-session" environ:"SANDBOX_MAX_RUNS_PER_SESSION" group:"sandbox" default:"4" help:"Overlapping runs of one session."`
	SessionTTL        minutes      `name:"session-ttl" environ:"SANDBOX_SESSION_TTL_M" group:"sandbox" default:"30m" help:"Idle time after which a session's processes end; files stay (minutes, or 1h30m)."`
	IdleTimeout       seconds      `name:"session-idle-timeout" environ:"SESSION_IDLE_TIMEOUT" group:"sandbox" placeholder:"SECONDS" help:"The same in seconds; wins over --session-ttl."`
	MaxLifetime       seconds      `name:"session-max-lifetime" environ:"SESSION_MAX_LIFETIME" group:"sandbox" placeholder:"SECONDS" help:"Longest life of a session's processes (seconds). Default: no limit."`
	CleanupInterval   minutes      `name:"cleanup-interval" environ:"SANDBOX_CLEANUP_INTERVAL_M" group:"sandbox" default:"5m" help:"How often to clean up after idle sessions and dead instances (minutes)."`
	ClosedRetention   hours        `name:"closed-retention" environ:"SANDBOX_CLOSED_RETENTION_H" group:"sandbox" default:"24h" help:"How long file links of a closed session go on working; then its files are deleted (hours, or 90m). Files of open sessions are never deleted."`

	LogLevel  logLevel `name:"log-level" environ:"SANDBOX_LOG_LEVEL" group:"logs" default:"INFO" help:"DEBUG, INFO, WARN or ERROR."`
	LogFile   string   `name:"log-file" environ:"SANDBOX_LOG_FILE" group:"logs" default:"logs/sandbox.log" help:"Log file besides stderr, relative to the root; none: stderr only."`
	LogFormat string   `name:"log-format" environ:"SANDBOX_LOG_FORMAT" group:"logs" default:"console" help:"console or json."`
}

// outputStop is when a program that only prints is stopped; what a result keeps of it is MaxOutputBytes.
const outputStop = 64 << 20

// uploadTTL is how long a one-time upload link waits to be used.
const uploadTTL = 15 * time.Minute

// validate completes what defaults cannot say and reports everything that is wrong, with the fix, at once.
func (s *settings) validate(env map[string]string, euid int) error {
	var errs []error
	bad := func(ok bool, setting, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %s", setting, fmt.Sprintf(format, args...)))
		}
	}
	s.trimLists()
	if s.HTTPAddr != "" {
		_, port, err := net.SplitHostPort(s.HTTPAddr)
		n, perr := strconv.Atoi(port)
		bad(err == nil && perr == nil && n >= 0 && n <= 65535, "MCP_HTTP_ADDR", "%q is not a valid address; write host:port, such as 127.0.0.1:8080 or :8080", s.HTTPAddr)
	}
	bad(s.HTTPPort >= 0 && s.HTTPPort <= 65535, "SANDBOX_HTTP_PORT", "%d is not a valid port; use 0 to 65535", s.HTTPPort)
	if s.PublicBaseURL != "" {
		u, err := url.Parse(s.PublicBaseURL)
		ok := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
		bad(ok, "PUBLIC_BASE_URL", "%q is not a valid base URL; write it like https://sandbox.example.com", s.PublicBaseURL)
		s.PublicBaseURL = strings.TrimRight(s.PublicBaseURL, "/")
	}
	bad(!strings.ContainsFunc(s.APIToken.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' }), "MCP_API_TOKEN",
		"it has a space or a character that no header can carry; use letters and digits")
	for name, key := range map[string]secret.Value{"JWT_SECRET": s.JWTSecret, "JWT_SECRET_PREVIOUS": s.JWTSecretPrevious} {
		bad(key.IsZero() || len(key.Reveal()) >= 32, name, "it has fewer than 32 bytes; use for instance the output of openssl rand -hex 32")
	}
	if host, _, err := net.SplitHostPort(s.listenAddr()); err == nil && !hostname.IsLoopback(host) {
		for _, weak := range s.weakSecrets() {
			bad(false, weak.name, "%s, and MCP_HTTP_ADDR lets others than this machine guess it; use for instance the output of openssl rand -hex 32", weak.problem)
		}
	}
	for _, n := range s.TrustedProxies {
		p, err := closednet.Parse(n)
		bad(err == nil, "SANDBOX_TRUSTED_PROXIES", "%q is not an address or a network; write it like 127.0.0.1 or 10.0.0.0/8", n)
		bad(err != nil || p.Bits() > 0, "SANDBOX_TRUSTED_PROXIES", "%s trusts everybody, so that any client could choose its own address; name the proxy alone, such as 127.0.0.1", n)
	}
	for _, h := range s.AllowedHosts {
		bad(h != "" && !strings.ContainsAny(h, "/@ "), "SANDBOX_ALLOWED_HOSTS", "%q is not a valid host; write it like sandbox.example.com", h)
	}
	for _, o := range s.AllowedOrigins {
		u, err := url.Parse(o)
		bad(o == "*" || err == nil && u.Scheme != "" && u.Host != "" && strings.Trim(u.Path, "/") == "", "SANDBOX_ALLOWED_ORIGINS", "%q is not a valid origin; write it like https://app.example.com", o)
	}
	bad(slices.Contains([]string{backendAuto, backendJail, backendDocker}, s.Backend), "SANDBOX_BACKEND", "%q is not a valid backend; use auto, jail or docker", s.Backend)
	if s.DockerHost == "" {
		s.DockerHost = defaultEngine(env)
	}
	for _, i := range s.Images {
		err := docker.ParseImage(i)
		bad(err == nil, "SANDBOX_IMAGES", "%q: %v; write it like runner-python, registry.example.com/runner:1 or sha256:…", i, err)
	}
	bad(len(s.Images) <= 100, "SANDBOX_IMAGES", "it has more than 100 entries")
	bad(s.HostPath == "" || path.IsAbs(s.HostPath) || filepath.IsAbs(s.HostPath), "SANDBOX_HOST_PATH", "%q is not an absolute path", s.HostPath)
	bad(s.SharedZygote == "on" || s.SharedZygote == "off", "SANDBOX_SHARED_ZYGOTE", "%q is neither on nor off", s.SharedZygote)
	bad(s.Network == "full" || s.Network == "off", "SANDBOX_NETWORK", "%q is neither full nor off", s.Network)
	for _, n := range s.NetworkAllow {
		_, err := closednet.Parse(n)
		bad(err == nil, "SANDBOX_NETWORK_ALLOW", "%q is not an address or a network; write it like 10.1.2.3 or 10.0.0.0/8", n)
	}
	for _, n := range s.NetworkDeny {
		_, err := closednet.Parse(n)
		bad(err == nil, "SANDBOX_NETWORK_DENY", "%q is not an address or a network; write it like 203.0.114.7 or 203.0.114.0/24", n)
	}
	bad(len(s.NetworkDeny) <= closednet.MaxDeny, "SANDBOX_NETWORK_DENY", "it has more than %d entries; write networks in place of single addresses", closednet.MaxDeny)
	_, err := wantedTools(s.Tools)
	bad(err == nil, "SANDBOX_TOOLS", "%v", err)
	bad(s.ResourceLinks == "on" || s.ResourceLinks == "off", "SANDBOX_RESOURCE_LINKS", "%q is neither on nor off", s.ResourceLinks)
	bad(s.LogFormat == "console" || s.LogFormat == "json", "SANDBOX_LOG_FORMAT", "%q is neither console nor json", s.LogFormat)

	bad(s.MemoryLimit >= 32<<20, "SANDBOX_MEMORY_LIMIT", "%s is too little to start an interpreter; use 32MB or more", s.MemoryLimit)
	bad(s.CPULimit >= 0.05, "SANDBOX_CPU_LIMIT", "%g is too little; use 0.05 or more", s.CPULimit)
	bad(s.PIDsLimit >= 32, "SANDBOX_PIDS_LIMIT", "%d is too few to start an interpreter; use 32 or more", s.PIDsLimit)
	bad(s.TmpBytes >= 1<<20, "SANDBOX_TMP_BYTES", "%s is too little; use 1MB or more", s.TmpBytes)
	bad(s.CallerBytes == 0 || s.CallerBytes >= 1<<20, "SANDBOX_CALLER_BYTES", "%s is too little; use 1MB or more, or 0 for no limit", s.CallerBytes)
	bad(s.CallerFiles == 0 || s.CallerFiles >= 1000, "SANDBOX_CALLER_FILES", "%d is too few; use 1000 or more, or 0 for no limit", s.CallerFiles)
	bad(s.CallerSessions >= 0, "SANDBOX_CALLER_SESSIONS", "it must not be negative; 0 means no limit")
	bad(s.WorkspaceBytes >= 1<<20, "SANDBOX_WORKSPACE_BYTES", "%s is too little; use 1MB or more", s.WorkspaceBytes)
	for _, c := range []struct {
		name string
		n    int64
	}{
		{"SANDBOX_EXEC_TIMEOUT_S", int64(s.ExecTimeout)}, {"SANDBOX_SESSION_TTL_M", int64(s.SessionTTL)},
		{"SANDBOX_CLEANUP_INTERVAL_M", int64(s.CleanupInterval)}, {"SANDBOX_MAX_CODE_BYTES", int64(s.MaxCodeBytes)},
		{"SANDBOX_MAX_OUTPUT_BYTES", int64(s.MaxOutputBytes)}, {"SANDBOX_MAX_UPLOAD_BYTES", int64(s.MaxUploadBytes)},
		{"SANDBOX_MAX_ARTIFACT_READ_BYTES", int64(s.MaxReadBytes)},
		{"SANDBOX_WORKSPACE_FILES", int64(s.WorkspaceFiles)}, {"SANDBOX_MAX_SESSIONS", int64(s.MaxSessions)},
		{"SANDBOX_MAX_RUNS_PER_SESSION", int64(s.MaxRunsPerSession)},
	} {
		bad(c.n > 0, c.name, "it must be greater than 0")
	}
	total := doctor.System().Memory()
	if !s.ResultMemory.given {
		s.ResultMemory.byteSize = byteSize(defaultResultMemory(total))
	}
	bad(s.ResultMemory.byteSize >= 16<<20, "SANDBOX_RESULT_MEMORY", "%s is less than one run may show; use 16MB or more, or unset it for the default", s.ResultMemory)
	bad(total == 0 || int64(s.ResultMemory.byteSize) <= max(total/2, leastResultMemory), "SANDBOX_RESULT_MEMORY", "%s is more than half of the %s of memory there is", s.ResultMemory, byteSize(total>>20<<20))
	bad(s.PoolSize == nil || *s.PoolSize >= 0, "SANDBOX_POOL_SIZE", "it must not be negative; 0 means none")
	bad(s.MaxExecTimeout >= 0, "SANDBOX_MAX_EXEC_TIMEOUT_S", "it must not be negative")
	bad(s.Handover >= 0, "SANDBOX_HANDOVER_S", "it must not be negative; 0 means never")
	bad(s.EvictIdle >= 0, "SANDBOX_EVICT_IDLE_S", "it must not be negative")
	bad(s.URLTTL >= 0, "SANDBOX_URL_TTL", "it must not be negative")
	bad(s.ClosedRetention >= 0, "SANDBOX_CLOSED_RETENTION_H", "it must not be negative")
	bad(s.IdleTimeout >= 0, "SESSION_IDLE_TIMEOUT", "it must not be negative")
	bad(s.MaxLifetime >= 0, "SESSION_MAX_LIFETIME", "it must not be negative")

	if s.Root == "" {
		s.Root = defaultRoot(env, euid)
	}
	root, err := filepath.Abs(s.Root)
	bad(err == nil && s.Root != "", "SANDBOX_ROOT", "no data directory is known for this user; set it to an absolute path")
	s.Root = root
	if s.WrapperDir == "" && env["HOME"] != "" {
		s.WrapperDir = filepath.Join(env["HOME"], ".config", "nix-sandbox-mcp", "sandboxes")
	}
	for _, ref := range s.NixEnvs {
		ref = strings.TrimSpace(ref)
		bad(ref != "" && ref[0] != '-', "NIX_SANDBOX_ENVS", "%q is not a valid flake reference; write it like github:me/envs#data-science", ref)
	}
	if err := s.checkProject(); err != nil {
		errs = append(errs, err)
	}
	switch {
	case s.LogFile == "none":
		s.LogFile = ""
	case s.LogFile != "" && !filepath.IsAbs(s.LogFile):
		s.LogFile = filepath.Join(s.Root, s.LogFile)
	}
	return errors.Join(errs...)
}

// weakSecret is a setting that can be guessed.
type weakSecret struct{ name, problem string }

// weakSecrets are the operator's secrets that are shorter than they should be.
func (s *settings) weakSecrets() (weak []weakSecret) {
	for _, c := range []struct {
		name  string
		value secret.Value
		least int
	}{{"MCP_API_TOKEN", s.APIToken, 16}, {"FILE_SECRET", s.FileSecret, 32}} {
		if !c.value.IsZero() && len(c.value.Reveal()) < c.least {
			weak = append(weak, weakSecret{c.name, fmt.Sprintf("it has fewer than %d bytes", c.least)})
		}
	}
	return weak
}

// listenAddr is what to listen on, and whether somebody asked for it.
func (s *settings) listenAddr() string {
	if s.HTTPAddr != "" {
		return s.HTTPAddr
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.HTTPPort))
}

// addrIsDefault reports whether nobody chose the address.
func (s *settings) addrIsDefault() bool { return s.HTTPAddr == "" && s.HTTPPort == 8080 }

// poolSize is how many sandboxes of a kind are ready at most. A container's labels cannot tell later whose it has become, so
// on docker it takes an operator's word.
func (s *settings) poolSize(backend string) int {
	switch {
	case s.PoolSize != nil:
		return *s.PoolSize
	case backend == backendJail:
		return 2
	}
	return 0
}

func (s *settings) idleTTL() time.Duration {
	if s.IdleTimeout > 0 {
		return time.Duration(s.IdleTimeout)
	}
	return time.Duration(s.SessionTTL)
}

// maxExecTimeout is the most that a run can ask for: never less than what it has without asking.
func (s *settings) maxExecTimeout() time.Duration {
	return time.Duration(max(s.MaxExecTimeout, s.ExecTimeout))
}

// closedNetworks is the one list of what code cannot reach, for backends and proxy.
func (s *settings) closedNetworks(ctx context.Context, log *slog.Logger) *closednet.List {
	cfg := closednet.Config{Allow: prefixes(s.NetworkAllow), Deny: prefixes(s.NetworkDeny), Logger: log}
	if u, err := url.Parse(s.PublicBaseURL); err == nil {
		cfg.PublicHost = u.Hostname()
	}
	return closednet.New(ctx, cfg)
}

// prefixes are the networks of a list; validate has reported what is not one.
func prefixes(texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, n := range texts {
		if p, err := closednet.Parse(n); err == nil {
			list = append(list, p)
		}
	}
	return list
}

// defaultEngine is the first usual socket of an engine that is there; empty: the client's own default.
func defaultEngine(env map[string]string) string {
	candidates := []string{"/var/run/docker.sock"}
	if dir := env["XDG_RUNTIME_DIR"]; filepath.IsAbs(dir) {
		candidates = append(candidates, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "podman", "podman.sock"))
	}
	if home := env["HOME"]; filepath.IsAbs(home) {
		candidates = append(candidates, filepath.Join(home, ".docker", "run", "docker.sock"), filepath.Join(home, ".colima", "default", "docker.sock"))
	}
	for _, socket := range append(candidates, "/run/podman/podman.sock") {
		if fi, err := os.Stat(socket); err == nil && fi.Mode()&os.ModeSocket != 0 {
			return "unix://" + socket
		}
	}
	return ""
}

// defaultRoot is the user's data directory, or the system's for root; empty when there is none.
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
