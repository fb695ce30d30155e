package jail_test

import (
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
