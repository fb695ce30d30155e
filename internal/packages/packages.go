// Package packages is the mirror from which sandboxes install packages: a room of the door that
// answers pip, uv and npm from the operator's indexes. It drops what is too new or not allowed,
// checks every file against the index's own hash before a byte of it is sent on, and keeps files by
// hash for all sessions.
//
// It never unpacks a package and knows nothing of runs but their ids. See docs/packages.md.
package packages

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/closednet"
	"mcp-code-sandbox/internal/secret"
)

// The kinds of packages.
const (
	PyPI = "pypi"
	NPM  = "npm"
)

// Kinds lists the kinds of packages.
var Kinds = []string{PyPI, NPM}

// Defaults of a Config.
const (
	DefaultMinAge     = 72 * time.Hour
	DefaultCacheBytes = 2 << 30
	// DefaultBase is where sandboxes find the mirror.
	DefaultBase = "http://127.0.0.1:8099/packages"
)

// Index is a package index.
type Index struct {
	// URL is the address: of the simple API for PyPI, of the registry for npm.
	URL string
	// Names are patterns of the names that belong to this index alone, such as "acme-*". An index
	// without patterns has all other names; a kind has one such index at most.
	Names []string
	// Header and Credential authenticate the server to the index. They go to its own host only.
	Header     string
	Credential secret.Value
	// CAFile has certificates to trust besides the system's.
	CAFile string
	// AllowPrivate are networks that files may come from even if they are private. The index's own
	// host needs no entry.
	AllowPrivate []netip.Prefix
	// MinAge replaces that of the Mirror, such as for an index without upload times. Nil: it does
	// not.
	MinAge *time.Duration
}

// Kind is what the operator configured for one kind of packages.
type Kind struct {
	Indexes     []Index
	Allow, Deny []string // patterns of names; if Allow is nil, every name is allowed
}

// Budget bounds what one run may use. Zero fields have defaults.
type Budget struct {
	Requests     int
	Bytes        int64
	UnknownNames int // distinct names that the index does not know: each tells its owner something
}

// Config of a Mirror.
type Config struct {
	Kinds      map[string]Kind // by PyPI, NPM
	MinAge     time.Duration   // how old a release must be; 0: any age
	WheelsOnly bool            // no source distributions for Python
	CacheDir   string          // processes may share it
	CacheBytes int64           // 0: DefaultCacheBytes
	Base       string          // "": DefaultBase
	Budget     Budget

	Closed     *closednet.List            // nil: what is closed on every host
	Audit      *audit.Trail               // nil: none
	Registerer prometheus.Registerer      // nil: none
	Logger     *slog.Logger               // nil: silent
	User       func(caller string) string // the e-mail address for the audit trail; nil: none
	Now        func() time.Time           // nil: time.Now
}

// Mirror serves packages to sandboxes. It is safe for concurrent use.
type Mirror struct {
	cfg     Config
	log     *slog.Logger
	kinds   map[string]*kind
	files   *store
	pages   *pageCache
	metrics *metrics

	verdicts *verdicts // about the metadata of wheels

	mu        sync.Mutex
	runs      map[string]*run     // that have a grant, by id
	sandboxes map[string]*sandbox // of these runs, by id
}

// kind is a kind of packages that is on.
type kind struct {
	name        string
	indexes     []*index
	allow, deny []string
}

// New returns a Mirror. It fails if a name could belong to two indexes.
func New(cfg Config) (*Mirror, error) {
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, DefaultCacheBytes)
	cfg.Base = strings.TrimRight(cmp.Or(cfg.Base, DefaultBase), "/")
	cfg.Budget = Budget{
		Requests: cmp.Or(cfg.Budget.Requests, 10_000), Bytes: cmp.Or(cfg.Budget.Bytes, 4<<30),
		UnknownNames: cmp.Or(cfg.Budget.UnknownNames, 50),
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.User == nil {
		cfg.User = func(string) string { return "" }
	}
	m := &Mirror{cfg: cfg, log: cfg.Logger, kinds: map[string]*kind{}, runs: map[string]*run{}, sandboxes: map[string]*sandbox{}}
	for name, k := range cfg.Kinds {
		if !slices.Contains(Kinds, name) {
			return nil, fmt.Errorf("packages.%s: must be one of %s", name, strings.Join(Kinds, ", "))
		}
		opened, err := m.openKind(name, k)
		if err == nil && len(opened.indexes) == 0 {
			err = errors.New("no index is configured")
		}
		if err != nil {
			return nil, fmt.Errorf("packages.%s: %w", name, err)
		}
		m.kinds[name] = opened
	}
	var err error
	if m.files, err = openStore(cfg.CacheDir, cfg.CacheBytes); err != nil {
		return nil, fmt.Errorf("open the package cache: %w", err)
	}
	m.pages, m.verdicts = newPageCache(cfg.Now), newVerdicts()
	m.files.work.log, m.pages.fetches.log = m.log, m.log
	m.metrics, err = newMetrics(cfg.Registerer)
	return m, err
}

// Check returns the error that New would return for a kind. It asks no index.
func (k Kind) Check(name string) error {
	_, err := (&Mirror{}).openKind(name, k)
	return err
}

func (m *Mirror) openKind(name string, k Kind) (*kind, error) {
	opened := &kind{name: name}
	var err error
	if opened.allow, err = patterns(name, k.Allow); err != nil {
		return nil, fmt.Errorf("allow: %w", err)
	}
	if opened.deny, err = patterns(name, k.Deny); err != nil {
		return nil, fmt.Errorf("deny: %w", err)
	}
	for _, cfg := range k.Indexes {
		x, err := m.openIndex(name, cfg)
		if err != nil {
			return nil, err
		}
		for _, other := range opened.indexes {
			if err := overlap(x, other); err != nil {
				return nil, err
			}
		}
		opened.indexes = append(opened.indexes, x)
	}
	return opened, nil
}

// overlap returns an error if a name could belong to both indexes.
func overlap(x, y *index) error {
	if len(x.names) == 0 && len(y.names) == 0 {
		return fmt.Errorf("the indexes %s and %s both have no names: say which names belong to which", x.url.Redacted(), y.url.Redacted())
	}
	for _, a := range x.names {
		for _, b := range y.names {
			if intersect(a, b) {
				return fmt.Errorf("a name can match %q of %s and %q of %s: a name must belong to one index",
					a, x.url.Redacted(), b, y.url.Redacted())
			}
		}
	}
	return nil
}

// Indexes lists the kinds of packages that can be installed.
func (m *Mirror) Indexes() []string { return slices.Sorted(maps.Keys(m.kinds)) }

// Downloads returns how many files were downloaded from indexes.
func (m *Mirror) Downloads() int64 { return m.metrics.files.Load() }

// Close closes idle connections. Grants must have been released.
func (m *Mirror) Close() error {
	for _, k := range m.kinds {
		for _, x := range k.indexes {
			x.client.CloseIdleConnections()
		}
	}
	return nil
}

// Environment returns the variables that lead the clients of packages to the mirror.
func (m *Mirror) Environment() map[string]string {
	env := map[string]string{}
	base, err := url.Parse(m.cfg.Base)
	if err != nil {
		return env
	}
	if m.kinds[PyPI] != nil {
		simple := m.cfg.Base + "/pypi/simple/"
		maps.Copy(env, map[string]string{
			"PIP_INDEX_URL": simple, "PIP_TRUSTED_HOST": base.Hostname(), "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_NO_INDEX": "false",
			"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_PROGRESS_BAR": "off",
			// A file's first byte comes when the mirror has checked all of it. pip takes false for
			// "do not compile": imports do it.
			"PIP_DEFAULT_TIMEOUT": "600", "UV_HTTP_TIMEOUT": "600", "PIP_NO_COMPILE": "false",
			"UV_DEFAULT_INDEX": simple, "UV_INDEX": "", "UV_EXTRA_INDEX_URL": "", "UV_FIND_LINKS": "", "UV_INSECURE_HOST": base.Host,
		})
		if m.cfg.WheelsOnly {
			env["PIP_ONLY_BINARY"], env["UV_NO_BUILD"] = ":all:", "1"
		}
	}
	if m.kinds[NPM] != nil {
		registry := m.cfg.Base + "/npm/"
		maps.Copy(env, map[string]string{
			"npm_config_registry": registry, "npm_config_ignore_scripts": "true", "npm_config_audit": "false", "npm_config_fund": "false",
			"npm_config_update_notifier": "false", "npm_config_fetch_timeout": "600000",
			// A project's lock file is also for hosts that have no such registry.
			"npm_config_omit_lockfile_registry_resolved": "true",
			// Yarn 1 and pnpm read npm's variables. Later yarns read these and refuse others.
			"YARN_NPM_REGISTRY_SERVER": registry, "YARN_UNSAFE_HTTP_WHITELIST": base.Hostname(), "YARN_HTTP_TIMEOUT": "600000",
			"YARN_ENABLE_SCRIPTS": "false", "YARN_ENABLE_TELEMETRY": "false",
		})
	}
	return env
}
