package executor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/untrusted"
)

// maxServices is how many services one run may ask for.
const maxServices = 16

// tokenSlack is how much longer than the run its rights may last: a run that is interrupted takes a moment to end. They end with it.
const tokenSlack = 10 * time.Second

// Services gives runs the right to call outside services.
type Services interface {
	// List returns the services there are, and what the caller has connected, always in the same order.
	List(ctx context.Context, caller session.Caller) []ServiceState
	// Grant gives a run that is about to start in a sandbox the right to call services, until Release, and for ttl at most. A refusal
	// is an *Error. Release is called in any case.
	Grant(ctx context.Context, caller session.Caller, runID, sandboxID string, ttl time.Duration, services []ServiceRequest) (Grant, error)
	// Release ends the rights of a run, and the calls that are going on by them.
	Release(runID string)
}

// ServiceRequest is a service that a run wants to call. Paths, Methods and MaxRequests narrow what it may do; zero: what the service's
// configuration gives.
type ServiceRequest struct {
	Name           string
	Paths, Methods []string
	MaxRequests    int64
}

// ServiceState is a service as a caller sees it.
type ServiceState struct {
	Name, DisplayName string
	Connected         bool
	ConnectURL        string // where the caller connects it; empty where there is nothing to connect
}

// Grant is what a run gets for calling services.
type Grant struct {
	Env     map[string]string
	Secrets []string // texts that are not shown in its output
}

// Services lists the outside services that runs may call, and whether the caller has connected them. It is nil when there are none.
func (e *Executor) Services(ctx context.Context, caller session.Caller) []ServiceState {
	if e.cfg.Services == nil {
		return nil
	}
	return e.cfg.Services.List(ctx, caller)
}

// checkServices refuses services that a run cannot have, before anything is made for it.
func (e *Executor) checkServices(ctx context.Context, caller session.Caller, r runner.Runner, req []ServiceRequest) error {
	switch {
	case len(req) == 0:
		return nil
	case e.cfg.Services == nil:
		return refuse(CodeUnknownService, "This server has no services to call. The operator can configure them with SANDBOX_CONFIG.")
	case r.Wrapper != "":
		return refuse(CodeUnknownService, "Code in the environment %s cannot call services: it isolates itself. Use another one.", r.Name)
	case len(req) > maxServices:
		return refuse(CodeInvalidServices, "A run may call %d services at most.", maxServices)
	}
	known := e.cfg.Services.List(ctx, caller)
	seen := map[string]bool{}
	for _, s := range req {
		i := slices.IndexFunc(known, func(k ServiceState) bool { return k.Name == s.Name })
		switch {
		case i < 0:
			return unknownService(s.Name, known)
		case seen[s.Name]:
			return refuse(CodeInvalidServices, "The service %s is named twice. Name each once.", s.Name)
		case !known[i].Connected:
			return NotConnected(known[i])
		}
		seen[s.Name] = true
	}
	return nil
}

func unknownService(name string, known []ServiceState) *Error {
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = k.Name
	}
	return refuse(CodeUnknownService, "Unknown service %q. Available: %s.", untrusted.Clip(name, maxQuoted), strings.Join(names, ", "))
}

// NotConnected is the refusal of a service that the caller has to connect first.
func NotConnected(s ServiceState) *Error {
	name := s.DisplayName
	if name == "" {
		name = s.Name
	}
	e := refuse(CodeServiceNotConnected, "%s is not connected. Ask the user to open %s and connect it, then run the code again.", name, s.ConnectURL)
	if s.ConnectURL == "" {
		e.Message = name + " is not connected."
	}
	e.ConnectURL = s.ConnectURL
	return e
}

// grant is the session's hook for a run that asked for services, or nil. The secrets that it gets are hidden by hide.
func (e *Executor) grant(run *run, req Request, hide func(secrets []string)) func(context.Context, string) (map[string]string, error) {
	if len(req.Services) == 0 {
		return nil
	}
	return func(ctx context.Context, sandboxID string) (map[string]string, error) {
		g, err := e.cfg.Services.Grant(ctx, run.caller, run.id, sandboxID, req.Timeout+tokenSlack, req.Services)
		if err != nil {
			return nil, fmt.Errorf("grant services: %w", err)
		}
		hide(g.Secrets)
		return g.Env, nil
	}
}

// release ends what grant gave.
func (e *Executor) release(run *run, req Request) {
	if len(req.Services) > 0 {
		e.cfg.Services.Release(run.id)
	}
}
