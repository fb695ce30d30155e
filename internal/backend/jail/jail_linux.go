package jail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/sandbox"
)

// SandboxUID is the host uid and gid of sandboxes when the server is root. It lies in a range that
// distributions leave unused, so no account owns it; outside a sandbox nothing runs as it.
const SandboxUID = 61000

// Config of a Backend.
type Config struct {
	// Dir is a directory of this server instance alone. The directories of other instances lie beside it,
	// each named by its instance.
	Dir      string
	Instance string
	// AgentBinary is the agent for this machine.
	AgentBinary []byte
	// Closed lists what a sandbox with network cannot reach.
	Closed *closednet.List
	// NoTemplates has each sandbox import a runner's libraries for itself, in place of sharing the memory of an interpreter
	// that has.
	NoTemplates bool
	// TemplateLife is how old such an interpreter may be when a sandbox is started; zero is an hour. The first start
	// after that has a new one made, which takes its place when it is ready.
	TemplateLife time.Duration
	Logger       *slog.Logger // nil is silent
}

// Backend starts bubblewrap sandboxes.
type Backend struct {
	cfg      Config
	log      *slog.Logger
	bwrap    string
	uid      int // of the sandboxes, outside
	files    string
	launch   *launcher
	cgroups  *cgroups
	done     chan struct{}  // closed by Close
	watching sync.WaitGroup // watchSockets

	templates templates
	nets      userNets

	close sync.Once
}

var (
	_ sandbox.Backend  = (*Backend)(nil)
	_ sandbox.Prober   = (*Backend)(nil)
	_ sandbox.Reaper   = (*Backend)(nil)
	_ sandbox.Preparer = (*Backend)(nil)
)

// errNoBwrap is the error of New where bubblewrap is not installed.
var errNoBwrap = &sandbox.Error{
	Op: "find bubblewrap", Err: errors.New("bwrap is not installed"), Fix: "apt-get install bubblewrap",
}

// Owner is the host uid and gid that own what sandboxes write.
func Owner() (uid, gid int) {
	if os.Geteuid() == 0 {
		return SandboxUID, SandboxUID
	}
	return os.Geteuid(), os.Getegid()
}

// New prepares the backend. It starts no sandbox: Probe tells whether one can be started.
func New(cfg Config) (*Backend, error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, errNoBwrap
	}
	b := &Backend{cfg: cfg, log: cfg.Logger, bwrap: path, files: filepath.Join(cfg.Dir, "jail")}
	b.nets.live, b.nets.unsubscribe = map[*userNet]struct{}{}, func() {}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.uid, _ = Owner()
	if err := b.writeFiles(); err != nil {
		return nil, fmt.Errorf("prepare the jail: %w", err)
	}
	if b.launch, err = newLauncher(os.Geteuid() == 0); err != nil {
		return nil, &sandbox.Error{Op: "prepare the jail", Err: err, Fix: "run mcp-code-sandbox doctor"}
	}
	b.cgroups = findCgroups(cfg.Instance)
	b.done = make(chan struct{})
	if b.cgroups.v1 != nil && !b.cgroups.looseTCP {
		b.watching.Go(func() { b.cgroups.watchSockets(b.done) })
	}
	homes, err := json.Marshal(b.cgroups.homes())
	if err == nil {
		err = os.WriteFile(filepath.Join(b.files, "cgroups.json"), homes, 0o600)
	}
	if err != nil {
		b.Close()
		return nil, fmt.Errorf("prepare the jail: %w", err)
	}
	b.nets.unsubscribe = cfg.Closed.Subscribe(b.refilter)
	return b, nil
}

// Close releases what New took. Every sandbox must be closed before; one that is not dies now.
func (b *Backend) Close() {
	b.close.Do(func() {
		b.nets.unsubscribe()
		b.templates.close()
		b.launch.close()
		close(b.done)
		b.watching.Wait()
		b.cgroups.close()
		_ = os.RemoveAll(b.files)
	})
}

// etcFiles are the sandbox's own files in /etc.
var etcFiles = map[string]string{
	"passwd":        "root:x:0:0:root:/:/usr/sbin/nologin\nsandbox:x:1000:1000:sandbox:/tmp:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
	"group":         "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
	"hosts":         "127.0.0.1 localhost sandbox\n::1 localhost\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
	"resolv.conf":   "nameserver " + slirpDNS + "\n",
	"protocols":     "ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6 41 IPv6\nipv6-icmp 58 IPv6-ICMP\n",
	"services":      services(),
}

// services is an /etc/services with the names that programs ask for.
func services() string {
	var b strings.Builder
	for _, s := range []struct {
		names string
		port  int
	}{
		{"echo", 7}, {"discard", 9}, {"daytime", 13}, {"ftp-data", 20}, {"ftp", 21}, {"ssh", 22}, {"telnet", 23}, {"smtp mail", 25}, {"time", 37},
		{"domain", 53}, {"tftp", 69}, {"gopher", 70}, {"finger", 79}, {"http www", 80}, {"kerberos", 88}, {"pop3", 110}, {"sunrpc", 111},
		{"nntp", 119}, {"ntp", 123}, {"imap2 imap", 143}, {"snmp", 161}, {"irc", 194}, {"ldap", 389}, {"https", 443}, {"submissions ssmtp smtps", 465},
		{"syslog", 514}, {"submission", 587}, {"ldaps", 636}, {"domain-s", 853}, {"ftps", 990}, {"imaps", 993}, {"pop3s", 995}, {"mysql", 3306},
		{"postgresql", 5432}, {"amqp", 5672}, {"redis", 6379}, {"http-alt", 8080},
	} {
		name, aliases, _ := strings.Cut(s.names, " ")
		for _, protocol := range []string{"tcp", "udp"} {
			fmt.Fprintf(&b, "%s %d/%s %s\n", name, s.port, protocol, aliases)
		}
	}
	return b.String()
}

// writeFiles puts what sandboxes mount into the instance's directory.
func (b *Backend) writeFiles() error {
	if err := os.MkdirAll(b.files, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.files, "agent"), b.cfg.AgentBinary, 0o755); err != nil {
		return err
	}
	for name, text := range etcFiles {
		if err := os.WriteFile(filepath.Join(b.files, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Reap implements sandbox.Reaper. The kernel has ended a dead instance's processes and mounts; its cgroups
// are left, and cgroups.json in its directory lists where.
func (b *Backend) Reap(ctx context.Context, alive func(instance string) bool) error {
	instances := filepath.Dir(b.cfg.Dir)
	entries, err := os.ReadDir(instances)
	errs := []error{err}
	for _, e := range entries {
		instance := e.Name()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !e.IsDir() || instance == b.cfg.Instance || strings.ContainsAny(instance, "*?[") || alive(instance) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(instances, instance, "jail", "cgroups.json"))
		var homes []string
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, fmt.Errorf("reap %s: %w", instance, err))
		case json.Unmarshal(text, &homes) == nil: // an instance that died while writing it started no sandbox
			reapGroups(instance, homes)
		}
	}
	return errors.Join(errs...)
}

// credential makes a root server start sandboxes as SandboxUID.
func (b *Backend) credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: uint32(b.uid), Gid: uint32(b.uid), Groups: []uint32{}}
}
