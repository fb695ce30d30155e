package main

import (
	"fmt"

	"mcp-code-sandbox/internal/audit"
	"mcp-code-sandbox/internal/egress"
	"mcp-code-sandbox/internal/executor"
	"mcp-code-sandbox/internal/httpapi"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/serviceconfig"
	"mcp-code-sandbox/internal/session"
)

// Values of SANDBOX_NETWORK.
const (
	networkFull = "full"
	networkList = "list"
	networkOff  = "off"
)

// networkModes says for doctor what code can reach.
var networkModes = map[string]string{
	networkFull: "full: runs with network: true reach every public host",
	networkList: "list: runs reach only the hosts that they name",
	networkOff:  "off: runs reach no hosts",
}

// ignores reports whether a check does not matter: only full gives sandboxes a network.
func (s *settings) ignores(c sandbox.Check) bool {
	return c.Name == "network" && s.Network != networkFull
}

// checkNetwork reports the mode for doctor.
func checkNetwork(inv *invocation) sandbox.Check {
	s := inv.settings
	c := sandbox.Check{Name: "network mode", Detail: networkModes[s.Network]}
	if s.Config == "" || s.Network == networkOff {
		return c
	}
	file, err := loadServices(s.Config, inv.env)
	if err == nil && file.Network.Allow != nil { // checkServices reports the error
		c.Detail += fmt.Sprintf("; network.allow limits the hosts that runs name to %s", counted(len(file.Network.Allow), "entry", "entries"))
	}
	return c
}

// newEgress returns what connects code to hosts by name, or nil with SANDBOX_NETWORK=off.
func (a *app) newEgress(network serviceconfig.Network, trail *audit.Trail) (*egress.Egress, error) {
	if a.settings.Network == networkOff {
		if network.Allow != nil {
			a.log.Warn("network.allow has no effect: SANDBOX_NETWORK is off, so runs reach no hosts", "fix", "set SANDBOX_NETWORK=list")
		}
		return nil, nil
	}
	if network.Allow != nil && a.settings.Network == networkFull {
		a.log.Warn("network.allow bounds hosts only: runs with network: true reach every public host", "fix", "set SANDBOX_NETWORK=list")
	}
	e, err := egress.New(egress.Config{
		Ceiling: network.Allow, UploadBytes: network.UploadBytes, Closed: a.isolation.closed, Audit: trail,
		MaxTunnels: min(max(httpapi.MaxConnections()/4, 64), egress.MaxTunnels), Operator: session.Local.ID,
		Registerer: a.metrics, Logger: a.log, User: a.services.email,
	})
	if err != nil {
		return nil, err
	}
	a.showShares("egress_tunnels", e.Shares())
	return e, nil
}

// hosts is the executor's view of an Egress.
type hosts struct{ *egress.Egress }

var _ executor.Hosts = hosts{}

// hosts returns the executor's view of named hosts, or nil without them.
func (a *app) hosts() executor.Hosts {
	if a.egress == nil {
		return nil
	}
	return hosts{a.egress}
}

func (h hosts) Check(list []string) ([]string, error) {
	rules, err := h.Egress.Check(list)
	if err != nil {
		return nil, &executor.Error{Code: executor.CodeInvalidHosts, Message: err.Error() + "."}
	}
	return rules, nil
}

func (h hosts) Grant(caller session.Caller, runID, sandboxID string, rules []string) executor.Grant {
	env, secrets := h.Egress.Grant(caller.ID, runID, sandboxID, rules)
	return executor.Grant{Env: env, Secrets: secrets}
}

func (h hosts) Release(runID string) []executor.Blocked {
	var list []executor.Blocked
	for _, b := range h.Egress.Release(runID) {
		list = append(list, executor.Blocked(b))
	}
	return list
}

// hostCeiling describes the hosts that runs may name, for the tools, or returns "" for all.
func (a *app) hostCeiling() string {
	if a.egress == nil {
		return ""
	}
	return a.egress.Allowed()
}
