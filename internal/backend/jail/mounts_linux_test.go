package jail_test

import (
	"os"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// TestMountsAreHidden: every list of mounts that a run can open is empty. A line would name a
// directory of the host.
func TestMountsAreHidden(t *testing.T) {
	const look = `
lists = []
for d in glob.glob("/proc/[0-9]*") + glob.glob("/proc/[0-9]*/task/[0-9]*") + ["/proc", "/proc/self", "/proc/thread-self"]:
    for name in ("mountinfo", "mounts", "mountstats"):
        try: text = open(d + "/" + name).read()
        except OSError: continue
        lists.append(d)
        if text: breach(d, name, text)
if "/proc/1" not in lists or "/proc/self" not in lists: breach("the test sees no lists:", lists)
fails("enters a mount namespace", lambda: libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))
`
	for name, h := range map[string]sandboxtest.Harness{
		"exec":   harness(t, open(t, t.TempDir(), sandboxtest.ID())),
		"zygote": zygoteHarness(t, open(t, t.TempDir(), sandboxtest.ID())),
	} {
		t.Run(name, func(t *testing.T) {
			b := sandboxtest.Start(t, h, sandbox.Spec{})
			b.Probe(t, look)
			b.Probe(t, look) // by a prestarted run-init
			b.Probe(t, look+"\nif subprocess.run(['cat', '/proc/self/mountinfo'], capture_output=True).stdout: breach('a child sees mounts')")
			res := b.Run(t, sandboxtest.Cell(t, "python", "print(open('/proc/self/mountinfo').read() or 'none', open('/proc/1/mountinfo').read() or 'none')"))
			if string(res.Stdout) != "none none\n" {
				t.Errorf("a cell: %+v %s%s", res.Exit, res.Stdout, res.Stderr)
			}
		})
	}
}

// TestMountsOfEndedRuns: while an interpreter lives, the agent keeps nothing of the runs that end
// beside it.
func TestMountsOfEndedRuns(t *testing.T) {
	needMachineRoot(t, "looks into the agent's mount namespace")
	b := sandboxtest.Start(t, harness(t, open(t, t.TempDir(), sandboxtest.ID())), sandbox.Spec{})
	b.Run(t, sandboxtest.Cell(t, "python", "1"))
	for range 10 {
		b.Alive(t)
		b.BeginUntil(t, "here\n", sandboxtest.Shell("echo here; exec sleep 1000")).Kill(t)
		if res := b.Run(t, sandboxtest.Cell(t, "shell", "kill -KILL $$")); !res.Exit.Lost {
			t.Fatalf("%+v %s", res.Exit, res.Stderr)
		}
	}
	agents := agentsOf(t, b.Workspace)
	if len(agents) != 1 {
		t.Fatalf("agents: %v", agents)
	}
	await(t, "two directories at most: the interpreter's, and that of a prestarted process", func() bool {
		dirs, err := os.ReadDir(agents[0] + "/root/tmp")
		if err != nil || len(dirs) == 0 {
			t.Fatalf("directories of runs: %v, %v", dirs, err)
		}
		return len(dirs) <= 2
	})
	trees := 0
	for _, fd := range descriptors(t, agents[0]) {
		if strings.HasPrefix(fd, "mnt:[") {
			trees++
		}
	}
	if trees > 3 { // the empty namespace, and those of the two
		t.Errorf("the agent has %d mount namespaces open", trees)
	}
}
