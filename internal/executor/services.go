package executor

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/untrusted"
)

const (
	maxServices = 16 // that one run may request

	// tokenSlack is how much longer than the run a grant may last: an interrupted run takes a
	// moment to end.
	tokenSlack = 10 * time.Second
)

// Services grants runs the right to call outside services.
type Services interface {
	// List returns all services and whether the caller has connected them, always in the same
	// order.
	List(ctx context.Context, caller session.Caller) []ServiceState
	// Grant lets a run that is about to start in a sandbox call services, until Release and for ttl
	// at most. A refusal is an *Error. The executor always calls Release.
	Grant(ctx context.Context, caller session.Caller, runID, sandboxID string, ttl time.Duration, services []ServiceRequest) (Grant, error)
	// Release ends the grant of a run, and its active calls.
	Release(runID string)
}

// ServiceRequest is a service that a run wants to call. Paths, Methods and MaxRequests narrow the
// grant; a zero value keeps the service's configuration.
type ServiceRequest struct {
	Name           string
	Paths, Methods []string
	MaxRequests    int64
}

// ServiceState is a service as a caller sees it.
type ServiceState struct {
	Name, DisplayName string
	Connected         bool
	ConnectURL        string // where the caller connects it; empty if no connection is needed
}

// checkServices refuses services that the run cannot use.
func (e *Executor) checkServices(ctx context.Context, caller session.Caller, r runner.Runner, req []ServiceRequest) error {
	switch {
	case len(req) == 0:
		return nil
	case e.cfg.Services == nil:
		return refuse(CodeUnknownService, "This server has no services to call. The operator can configure them with SANDBOX_CONFIG.")
	case !r.HasAgent():
		return refuse(CodeUnknownService, "Code in the environment %s cannot call services: it does not run this server's agent. Use another one.", r.Name)
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
			return refuse(CodeInvalidServices, "The service %s is listed twice. List it once.", s.Name)
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

// NotConnected refuses a service that the caller has to connect first.
func NotConnected(s ServiceState) *Error {
	name := cmp.Or(s.DisplayName, s.Name)
	if s.ConnectURL == "" {
		return refuse(CodeServiceNotConnected, "%s is not connected.", name)
	}
	e := refuse(CodeServiceNotConnected, "%s is not connected. Ask the user to open %s and connect it, then run the code again.", name, s.ConnectURL)
	e.ConnectURL = s.ConnectURL
	return e
}
