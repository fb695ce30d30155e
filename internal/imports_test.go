// Package internal_test checks rules that hold for the whole tree: who imports whom, who reads the
// environment, and what the source looks like.
package internal_test

import (
	"cmp"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// imports lists what each package of internal/ may import: other packages of internal/, packages of
// this module outside it ("/runners"), and modules. A new name is a design decision: imports only
// point down, and sandbox, wire and share use nothing but the standard library.
var imports = map[string]string{
	"/cmd/sandbox-agent":        "agent agent/prestart agent/runinit netguard version",
	"/runners":                  "",
	"/web":                      "",
	"agent":                     "agent/confine agent/forward agent/prestart agent/runinit netguard proc sandbox wire golang.org/x/sys",
	"agent/confine":             "golang.org/x/sys",
	"agent/forward":             "wire",
	"agent/prestart":            "agent/confine agent/runinit proc wire golang.org/x/sys",
	"agent/runinit":             "agent/confine proc sandbox wire golang.org/x/sys",
	"agentbin":                  "",
	"audit":                     "filelock",
	"backend/agentless":         "sandbox wire",
	"backend/docker":            "agent agent/confine backend/agentless backend/probe closednet netguard runner sandbox userns wire github.com/containerd/errdefs github.com/moby/moby",
	"backend/docker/dockertest": "github.com/moby/moby",
	"backend/jail":              "agent agent/prestart backend/probe cgroup closednet proc sandbox userns wire workspace golang.org/x/sys",
	"backend/probe":             "sandbox wire",
	"backend/wrapper":           "backend/agentless proc sandbox userns wire",
	"cgroup":                    "proc sandbox github.com/godbus/dbus/v5",
	"closednet":                 "golang.org/x/sys",
	"control":                   "session",
	"credential":                "secret store golang.org/x/oauth2 golang.org/x/sync",
	"doctor":                    "sandbox userns golang.org/x/sys",
	"door":                      "httpconn",
	"egress":                    "audit closednet httpconn sandbox share untrusted github.com/prometheus/client_golang golang.org/x/net golang.org/x/time",
	"egress/egresstest":         "golang.org/x/net golang.org/x/sys",
	"executiontoken":            "secret",
	"executor":                  "mediatype runner sandbox session share signedurl store untrusted versionrange workspace github.com/prometheus/client_golang",
	"filelock":                  "golang.org/x/sys",
	"hostname":                  "",
	"httpapi":                   "executor hostname mediatype ratelimit secret session share signedurl untrusted github.com/modelcontextprotocol/go-sdk golang.org/x/time",
	"httpconn":                  "",
	"instance":                  "filelock",
	"logging":                   "gopkg.in/natefinch/lumberjack.v2",
	"logging/logtest":           "",
	"mcpserver":                 "share untrusted github.com/modelcontextprotocol/go-sdk golang.org/x/sys",
	"mediatype":                 "",
	"netguard":                  "closednet golang.org/x/sys",
	"oauth":                     "closednet credential executiontoken hostname ratelimit secret store untrusted github.com/coreos/go-oidc/v3 golang.org/x/oauth2 golang.org/x/sync golang.org/x/time",
	"oauth/oauthtest":           "",
	"packages":                  "audit closednet filelock secret untrusted versionrange github.com/prometheus/client_golang golang.org/x/net",
	"pool":                      "sandbox golang.org/x/sys",
	"proc":                      "golang.org/x/sys",
	"proxy":                     "audit closednet credential executiontoken share store untrusted github.com/andybalholm/brotli github.com/modelcontextprotocol/go-sdk github.com/prometheus/client_golang golang.org/x/time",
	"ratelimit":                 "golang.org/x/time",
	"runner":                    "/runners filelock sandbox userns versionrange",
	"sandbox":                   "",
	"sandbox/sandboxtest":       "/runners closednet sandbox userns wire go.uber.org/goleak golang.org/x/sys",
	"secret":                    "",
	"serviceconfig":             "credential egress hostname oauth packages proxy secret spelling",
	"session":                   "runner sandbox session/cpuweight session/storage share wire workspace",
	"session/cpuweight":         "sandbox",
	"session/sessiontest":       "sandbox wire",
	"session/storage":           "workspace",
	"share":                     "",
	"signedurl":                 "",
	"spelling":                  "",
	"store":                     "github.com/jackc/pgx/v5 modernc.org/sqlite",
	"store/storetest":           "github.com/jackc/pgx/v5",
	"tools":                     "digest executor mediatype runner sandbox session share spelling workspace github.com/google/jsonschema-go github.com/modelcontextprotocol/go-sdk golang.org/x/image",
	"untrusted":                 "",
	"userns":                    "sandbox golang.org/x/sys",
	"version":                   "",
	"versionrange":              "",
	"window":                    "filelock",
	"wire":                      "",
	"workspace":                 "filelock untrusted golang.org/x/sys",
}

// entryPoints wire the packages together, so they may import any of them.
var entryPoints = []string{"/bench", "/cmd/mcp-code-sandbox"}

const module = "mcp-code-sandbox/"

func TestImports(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("packages import less on other systems")
	}
	cmd := exec.Command("go", "list", "-f", `{{if .GoFiles}}{{.ImportPath}}{{range .Imports}} {{.}}{{end}}{{end}}`, "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue // tests only
		}
		pkg := shortName(fields[0])
		seen[pkg] = true
		if slices.Contains(entryPoints, pkg) {
			continue
		}
		var used []string
		for _, path := range fields[1:] {
			if name := shortName(path); name != "" && !slices.Contains(used, name) {
				used = append(used, name)
			}
		}
		slices.SortFunc(used, func(a, b string) int { // modules last
			return cmp.Or(isModule(a)-isModule(b), strings.Compare(a, b))
		})
		if allowed := strings.Fields(imports[pkg]); !slices.Equal(used, allowed) {
			t.Errorf("%s imports %q, imports_test.go allows %q. If that is the design, change its line to\n\t%q: %q,",
				pkg, used, allowed, pkg, strings.Join(used, " "))
		}
	}
	for pkg := range imports {
		if !seen[pkg] {
			t.Errorf("package %s does not exist: remove its line", pkg)
		}
	}
}

func isModule(name string) int { return min(strings.Count(name, "."), 1) }

// shortName returns the name of a package in imports, the module of a package of another module, or
// "" for the standard library.
func shortName(path string) string {
	name, ours := strings.CutPrefix(path, module)
	switch {
	case ours && strings.HasPrefix(name, "internal/"):
		return strings.TrimPrefix(name, "internal/")
	case ours:
		return "/" + name
	case !strings.Contains(strings.SplitN(path, "/", 2)[0], "."):
		return ""
	}
	for _, m := range modules {
		if path == m || strings.HasPrefix(path, m+"/") {
			return m
		}
	}
	return path
}

// modules are the modules that packages import in parts.
var modules = []string{
	"github.com/coreos/go-oidc/v3", "github.com/google/jsonschema-go", "github.com/jackc/pgx/v5", "github.com/moby/moby", "github.com/modelcontextprotocol/go-sdk",
	"github.com/prometheus/client_golang", "golang.org/x/image", "golang.org/x/net", "golang.org/x/sync", "golang.org/x/sys", "golang.org/x/time", "modernc.org/sqlite",
}
