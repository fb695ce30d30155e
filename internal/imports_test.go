// Package internal_test holds the rule of the layers: imports only point downwards.
package internal_test

import (
	"bufio"
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// layers lists this module's packages from the bottom up. A package may import those of lower
// layers only, never one of its own.
var layers = [][]string{
	{"internal/untrusted", "internal/hostname"},
	{"internal/sandbox", "internal/wire", "internal/secret", "internal/logging", "internal/logging/logtest", "internal/instance", "internal/store", "internal/signedurl", "internal/workspace", "internal/agentbin", "internal/mediatype", "internal/closednet", "internal/ratelimit", "internal/share", "internal/spelling", "internal/proc", "internal/version", "runners", "web"},
	{"internal/netguard", "internal/cgroup", "internal/agent/confine"},
	{"internal/agent/runinit"},
	{"internal/agent/prestart"},
	{"internal/agent", "internal/runner", "internal/sandbox/sandboxtest", "internal/doctor", "internal/backend/docker/dockertest", "internal/backend/agentless", "internal/backend/probe", "internal/pool"},
	{"internal/backend/jail", "internal/backend/wrapper", "internal/backend/docker"},
	{"internal/executiontoken", "internal/credential"},
	{"internal/proxy"},
	{"internal/oauth", "internal/oauth/oauthtest"},
	{"internal/serviceconfig"},
	{"internal/session/storage", "internal/session/cpuweight"},
	{"internal/session"},
	{"internal/executor", "internal/session/sessiontest"},
	{"internal/tools"},
	{"internal/mcpserver", "internal/httpapi", "internal/control"},
	{"cmd/mcp-code-sandbox", "cmd/sandbox-agent", "bench"},
}

// stdlib lists the packages that import nothing but the standard library.
var stdlib = []string{"internal/sandbox", "internal/wire", "internal/share", "internal/untrusted", "internal/hostname"}

const module = "mcp-code-sandbox/"

func TestImportsPointDownwards(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", `{{if .GoFiles}}{{.ImportPath}}{{range .Imports}} {{.}}{{end}}{{end}}`, "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	layerOf := map[string]int{}
	for i, names := range layers {
		for _, name := range names {
			layerOf[module+name] = i
		}
	}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) == 0 {
			continue // tests only
		}
		pkg := fields[0]
		layer, ok := layerOf[pkg]
		if !ok {
			t.Errorf("%s is in no layer: add it where it belongs", pkg)
			continue
		}
		for _, imp := range fields[1:] {
			if l, ok := layerOf[imp]; ok && l >= layer {
				t.Errorf("%s (layer %d) imports %s (layer %d)", pkg, layer, imp, l)
			}
			for _, pure := range stdlib {
				if pkg == module+pure && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
					t.Errorf("%s imports %s: it may use the standard library only", pkg, imp)
				}
			}
		}
	}
}
