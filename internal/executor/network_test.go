package executor

import (
	"strings"
	"testing"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/session"
)

// anyHosts is a Hosts that allows everything.
type anyHosts struct{}

func (anyHosts) Check(hosts []string) ([]string, error) { return hosts, nil }
func (anyHosts) Release(string) []Blocked               { return nil }
func (anyHosts) Grant(session.Caller, string, string, []string) Grant {
	return Grant{Env: map[string]string{"HTTPS_PROXY": "http://proxy", "https_proxy": "http://proxy"}}
}

var agentRunner = runner.Runner{Definition: runner.Definition{Argv: []string{"bash"}, Optional: []string{"node"}}}

// TestManyHosts: who lists too many hosts learns what to write instead.
func TestManyHosts(t *testing.T) {
	e := &Executor{cfg: Config{Hosts: anyHosts{}}}
	err := e.checkHosts(agentRunner, &Request{Hosts: make([]string, maxHosts+1)})
	if err == nil || !strings.Contains(err.Error(), "*.example.org") {
		t.Error(err)
	}
}

// TestPreferredVariables: a request's own variables win over those that only make things faster,
// and over the way to hosts.
func TestPreferredVariables(t *testing.T) {
	e := &Executor{cfg: Config{Hosts: anyHosts{}}}
	given := map[string]string{"PIP_DISABLE_PIP_VERSION_CHECK": "0", "npm_config_fetch_retry_mintimeout": "7", "HTTPS_PROXY": ""}
	for _, own := range []map[string]string{nil, given} {
		grant := e.grant(&run{}, agentRunner, Request{Hosts: []string{"api.example.com:443"}, Env: own}, func([]string) {})
		env, err := grant(t.Context(), "sb")
		if err != nil {
			t.Fatal(err)
		}
		if _, granted := env["https_proxy"]; granted != (own == nil) {
			t.Errorf("the other spelling of %v: %v", own, env)
		}
		for name := range given {
			if _, granted := env[name]; granted != (own == nil) {
				t.Errorf("%s of %v: %v", name, own, env)
			}
		}
	}
}

// TestPackagesOffHint: who installs where packages are off learns which setting turns them on.
func TestPackagesOffHint(t *testing.T) {
	e := &Executor{cfg: Config{NetworkAllowed: true, Hosts: anyHosts{}}}
	for text, want := range map[string]string{
		"Name or service not known\nERROR: No matching distribution found for six":                                       "SANDBOX_PACKAGES=pypi",
		"npm error network request to https://npm.example.com/six failed, reason: getaddrinfo ENOTFOUND npm.example.com": "SANDBOX_PACKAGES=npm",
	} {
		if got := e.packagesOffHint([]byte(text), Request{}); !strings.Contains(got, want) {
			t.Errorf("%q: %q", text, got)
		}
		both := &Executor{cfg: Config{NetworkAllowed: true, Hosts: anyHosts{}, Packages: both{}}}
		if got := both.packagesOffHint([]byte(text), Request{}); got != "" {
			t.Errorf("although it is on, %q: %q", text, got)
		}
		for _, req := range []Request{{Hosts: []string{"npm.example.com:443"}}, {Network: true}} {
			if got := e.packagesOffHint([]byte(text), req); got != "" {
				t.Errorf("%+v, %q: %q", req, text, got)
			}
		}
	}
}

// TestGrantWithoutAgent: environments that isolate themselves refuse variables, and images without
// the agent have nothing at the door.
func TestGrantWithoutAgent(t *testing.T) {
	e := &Executor{cfg: Config{Hosts: anyHosts{}}}
	wrapped := agentRunner
	wrapped.Wrapper = "/wrapper"
	for _, rn := range []runner.Runner{wrapped, {}} {
		if e.grant(&run{}, rn, Request{}, func([]string) {}) != nil {
			t.Errorf("%+v gets variables", rn)
		}
	}
}

// TestNetworkHint: a hint names what would help, given what the server offers.
func TestNetworkHint(t *testing.T) {
	blocked := []Blocked{{"api.example.com", 2, "api.example.com"}, {"db.example.com:5432", 1, "db.example.com:5432"}, {"1.2.3.4:443", 1, "none: it is an IP address"}}
	for name, tt := range map[string]struct {
		cfg     Config
		blocked []Blocked
		want    string
	}{
		"off":        {Config{}, nil, "Upload the data as a file"},
		"network":    {Config{NetworkAllowed: true}, nil, NoNetworkHint},
		"both":       {Config{NetworkAllowed: true, Hosts: anyHosts{}}, nil, NoHostsHint},
		"list":       {Config{Hosts: anyHosts{}}, nil, "List the hosts that the code needs in hosts."},
		"blocked":    {Config{Hosts: anyHosts{}}, blocked, `hosts: ["api.example.com", "db.example.com:5432"]`},
		"impossible": {Config{Hosts: anyHosts{}}, blocked[2:], "1.2.3.4:443 (it is an IP address)"},
	} {
		e := &Executor{cfg: tt.cfg}
		if got := e.networkHint(tt.blocked, nil); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %s", name, got)
		}
	}
	e := &Executor{cfg: Config{Hosts: anyHosts{}}}
	for hosts, want := range map[string]string{"db.example.com:443": "db.example.com:5432", "": ""} {
		req := Request{}
		if hosts != "" {
			req.Hosts = []string{hosts}
		}
		const text = "psycopg2.OperationalError: connection failed: Connection refused"
		if got := e.stderrHint(Result{ExitCode: 1}, []byte(text), runner.Runner{}, req, sandbox.Limits{}); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("refused with hosts %q: %q", hosts, got)
		}
	}
	cellHosts := Request{Persistent: true, Hosts: []string{"db.example.com:5432"}}
	if got := e.stderrHint(Result{ExitCode: 1}, []byte("psycopg2.OperationalError: server closed the connection unexpectedly"), runner.Runner{}, cellHosts, sandbox.Limits{}); !strings.Contains(got, "Connect again in each cell") {
		t.Errorf("a connection of an earlier cell: %q", got)
	}
	for _, text := range []string{
		"curl: (56) CONNECT tunnel failed, response 403", "OSError('Tunnel connection failed: 403 This run may not connect to",
		"curl: (6) Could not resolve host: a.example.com", "getaddrinfo ENOTFOUND a.example.com",
	} {
		if !noNetwork.MatchString(text) {
			t.Errorf("not recognized: %s", text)
		}
	}
}
