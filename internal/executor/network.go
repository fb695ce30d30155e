package executor

import (
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
)

const (
	maxHosts  = 64 // that one run may request
	maxHinted = 5  // that a hint names
)

// Hosts connects runs to hosts by name. Its methods are safe for concurrent use.
type Hosts interface {
	// Check returns the rules that a run's hosts mean, each a name or "*." and a name, with a port.
	// A refusal is an *Error.
	Check(hosts []string) (rules []string, err error)
	// Grant lets a run that is about to start in a sandbox reach what its rules allow, until
	// Release. Without rules it only notes what the run tries to reach.
	Grant(caller session.Caller, runID, sandboxID string, rules []string) Grant
	// Release ends the grant of a run and its connections, and returns what was blocked. A run
	// without a grant has nothing blocked.
	Release(runID string) []Blocked
}

// Blocked is a host that a run tried to reach and may not.
type Blocked struct {
	Host  string `json:"host"` // its name, with a port that is not usual
	Times int    `json:"times"`
	Rule  string `json:"rule" jsonschema:"The entry in hosts that would allow it, or why nothing does"`
}

// checkHosts refuses hosts that the run cannot reach, and replaces the others by their rules.
func (e *Executor) checkHosts(r runner.Runner, req *Request) error {
	switch {
	case len(req.Hosts) == 0:
		return nil
	case e.cfg.Hosts == nil:
		return refuse(CodeNetworkDenied, "This server gives no network to code (SANDBOX_NETWORK=off). Run it without hosts.")
	case req.Network:
		return refuse(CodeInvalidHosts, "Give network or hosts, not both: with network the code reaches every public host.")
	case !r.HasAgent():
		return refuse(CodeInvalidHosts, "Code in the environment %s cannot use hosts: it does not run this server's agent. Use another one.", r.Name)
	case len(req.Hosts) > maxHosts:
		return refuse(CodeInvalidHosts, "A run may name %d hosts at most: use a wildcard such as *.example.org.", maxHosts)
	}
	rules, err := e.cfg.Hosts.Check(req.Hosts)
	req.Hosts = rules
	return err
}

// networkHint says how code that failed without network gets what it needs.
func (e *Executor) networkHint(blocked []Blocked, granted []string) string {
	var allowable, others []string
	for _, b := range blocked[:min(len(blocked), maxHinted)] {
		if b.Rule == b.Host {
			allowable = append(allowable, strconv.Quote(b.Host))
		} else {
			others = append(others, b.Host+" ("+strings.TrimPrefix(b.Rule, "none: ")+")")
		}
	}
	switch {
	case len(allowable) > 0:
		with := "with"
		if len(granted) > 0 {
			with = "also with"
		}
		return "The code may not connect to what it tried to reach. If it should, run it " + with + " hosts: [" + strings.Join(allowable, ", ") + "]. " +
			"Add the port if it is neither 443 nor 80, as in \"db.example.com:5432\"."
	case len(others) > 0:
		return "The code could not connect to " + strings.Join(others, ", ") + "."
	case len(granted) > 0:
		return "The code may connect to its hosts, but the server could not reach them, or the code used another port than 443 and 80 " +
			"(name it as in \"db.example.com:5432\")."
	case e.cfg.NetworkAllowed && e.cfg.Hosts != nil:
		return NoHostsHint
	case e.cfg.NetworkAllowed:
		return NoNetworkHint
	case e.cfg.Hosts != nil:
		return "This run had no network access. List the hosts that the code needs in hosts."
	}
	return "This server gives no network to code. Upload the data as a file instead."
}
