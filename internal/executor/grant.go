package executor

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"mcp-code-sandbox/internal/runner"
)

// Grant is what a run needs to use what it may reach outside.
type Grant struct {
	Env     map[string]string
	Secrets []string // texts to remove from the output
}

// grant returns the function with which the session grants the run what it may reach outside, or
// nil. It calls hide with the grant's secrets. A run without an agent has no door.
func (e *Executor) grant(r *run, rn runner.Runner, req Request, hide func(secrets []string)) func(context.Context, string) (map[string]string, error) {
	if !rn.HasAgent() || len(req.Services) == 0 && e.cfg.Hosts == nil && e.cfg.Packages == nil {
		return nil
	}
	return func(ctx context.Context, sandboxID string) (map[string]string, error) {
		env := map[string]string{}
		prefer := func(name, value string) { // unless the request has its own, as HTTP_PROXY or http_proxy
			for _, spelling := range []string{name, strings.ToLower(name), strings.ToUpper(name)} {
				if _, given := req.Env[spelling]; given {
					return
				}
			}
			env[name] = value
		}
		add := func(g Grant) {
			maps.Copy(env, g.Env)
			hide(g.Secrets)
		}
		if len(req.Services) > 0 {
			g, err := e.cfg.Services.Grant(ctx, r.caller, r.id, sandboxID, req.Timeout+tokenSlack, req.Services)
			if err != nil {
				return nil, fmt.Errorf("grant services: %w", err)
			}
			add(g)
		}
		if e.cfg.Hosts != nil {
			g := e.cfg.Hosts.Grant(r.caller, r.id, sandboxID, req.Hosts)
			for name, value := range g.Env {
				prefer(name, value)
			}
			hide(g.Secrets)
		}
		if len(req.Hosts) > 0 {
			prefer("PIP_DISABLE_PIP_VERSION_CHECK", "1") // it would ask the public index, and be blocked
		}
		if !req.Network && rn.MayUse("node") { // it would wait for a minute before it says that there is no network
			prefer("npm_config_fetch_retry_mintimeout", "500")
			prefer("npm_config_fetch_retry_maxtimeout", "500")
		}
		if e.cfg.Packages != nil {
			add(e.cfg.Packages.Grant(r.caller, r.id, sandboxID))
			maps.Copy(env, e.packageEnvironment(rn, req.Env))
			if registry := env["npm_config_registry"]; registry != "" { // pnpm has its own names since 11
				env["pnpm_config_registry"], env["pnpm_config_ignore_scripts"] = registry, "true"
				env["pnpm_config_store_dir"] = "/tmp/.pnpm"
			}
		}
		return env, nil
	}
}

// released is what the grants of a run noted.
type released struct {
	blocked  []Blocked
	packages []PackageProblem
}

// release ends the grants of a run, which has printed output.
func (e *Executor) release(r *run, req Request, output *capture) (end released) {
	if len(req.Services) > 0 {
		e.cfg.Services.Release(r.id)
	}
	if e.cfg.Hosts != nil {
		end.blocked = e.cfg.Hosts.Release(r.id)
	}
	if e.cfg.Packages != nil {
		stdout, _ := output.stdout.bytes()
		stderr, _ := output.stderr.bytes()
		end.packages = e.cfg.Packages.Release(r.id, append(unmetIn(string(stderr)), unmetIn(string(stdout))...))
	}
	return end
}
