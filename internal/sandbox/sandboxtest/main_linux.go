package sandboxtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// Variables of a test binary that another one started: its role, and the path of the agent.
const (
	roleEnv  = "SANDBOXTEST_ROLE"
	AgentEnv = "SANDBOXTEST_AGENT"
)

var agentFile = os.Getenv(AgentEnv)

// AgentFile is the path of the agent that Main built.
func AgentFile() string { return agentFile }

// Agent returns the agent that Main built, as docker.Config.Agent does.
func Agent(string) ([]byte, error) { return os.ReadFile(agentFile) }

// Env is the environment with which to start this test binary again, in one of Main's roles.
func Env(role string, more ...string) []string {
	return append(append(os.Environ(), roleEnv+"="+role, AgentEnv+"="+agentFile), more...)
}

// Main builds the agent, runs the tests of a backend and exits. Leaked goroutines fail the tests. A
// test binary that was started with Env does its role instead.
func Main(m *testing.M, roles map[string]func()) {
	enterOuterNamespace()
	switch name := os.Getenv(roleEnv); name {
	case "":
		os.Exit(runTests(m))
	case roleWorld:
		serveWorld()
	default:
		roles[name]()
	}
	os.Exit(0)
}

func runTests(m *testing.M) int {
	fail := func(err error, out ...byte) int {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	if agentFile == "" {
		dir, err := os.MkdirTemp("", "sandboxtest-")
		if err != nil {
			return fail(err)
		}
		defer os.RemoveAll(dir)
		agentFile = filepath.Join(dir, "sandbox-agent")
		cmd := exec.Command("go", "build", "-o", agentFile, "mcp-code-sandbox/cmd/sandbox-agent")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fail(fmt.Errorf("build the agent: %w", err), out...)
		}
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		return fail(err)
	}
	return code
}
