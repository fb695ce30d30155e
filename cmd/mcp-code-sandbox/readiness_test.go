package main

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

// lacking is a backend that starts sandboxes with something missing.
type lacking struct{ driver }

func (lacking) Probe(context.Context) []sandbox.Check {
	return []sandbox.Check{{Name: "sandbox", Detail: "started"}, {Name: "cgroups", Status: sandbox.Warn, Detail: "rlimits only", Fix: "use Delegate=yes"},
		{Name: "network", Status: sandbox.Warn, Detail: "no tun"}}
}

// TestReadinessWarns: the start logs what a sandbox lacks, unless the operator has turned that off.
func TestReadinessWarns(t *testing.T) {
	var out bytes.Buffer
	a := &app{settings: &settings{Network: "off"}, log: slog.New(slog.NewTextHandler(&out, nil)), isolation: isolation{opened: opened{driver: lacking{}}}}
	a.environments.change(runner.Set{{}}, nil)
	a.reportReadiness(t.Context())
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "cgroups: rlimits only") || !strings.Contains(got, "use Delegate=yes") {
		t.Errorf("%s", got)
	}
}

// TestReadinessDoesNotContradictItself: if no code can run, no line says that it can.
func TestReadinessDoesNotContradictItself(t *testing.T) {
	var out bytes.Buffer
	a := &app{settings: &settings{}, log: slog.New(slog.NewTextHandler(&out, nil)), isolation: isolation{opened: opened{driver: lacking{}}}} // no runners
	a.reportReadiness(t.Context())
	if got := out.String(); !strings.Contains(got, "no code can run here") || strings.Contains(got, "code can run here, but") || !strings.Contains(got, "cgroups: rlimits only") {
		t.Errorf("%s", got)
	}
}
