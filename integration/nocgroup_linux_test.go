package integration

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// withoutCgroups changes a server's command so that it can make no cgroups, as on many machines of
// ordinary users. Their processes then carry the memory limit themselves.
func withoutCgroups(cmd *exec.Cmd) {
	hide := `mount -t tmpfs -o ro none /sys/fs/cgroup && exec "$@"`
	cmd.Path, cmd.Args = "/usr/bin/unshare", append([]string{"unshare", "--mount", "sh", "-c", hide, "sh"}, cmd.Args...)
}

// TestMemoryWithoutCgroups: a fork of a zygote may use the memory limit, and not more. What it
// shares with the zygote does not count.
func TestMemoryWithoutCgroups(t *testing.T) {
	if onDocker() {
		t.Skip("the engine has cgroups")
	}
	if os.Geteuid() != 0 {
		skip(t, "only root can hide the cgroups")
	}
	for name, setting := range map[string]string{"shared zygote": "SANDBOX_SHARED_ZYGOTE=on", "own zygote": "SANDBOX_SHARED_ZYGOTE=off"} {
		t.Run(name, func(t *testing.T) {
			s := serveWith(t, withoutCgroups, setting)
			s.awaitFork(t, "m")
			if r := s.cell(t, "m", "python", "import sys; 'pandas' in sys.modules"); r.Stdout != "True\n" {
				t.Errorf("the notebook does not come from the zygote: %+v", r)
			}
			for _, use := range memoryUse {
				code := "def work():\n    " + strings.ReplaceAll(strings.TrimSpace(use.lines), "\n", "\n    ") + "\nwork()\nprint('done')"
				if r := s.python(t, "m", code); r.Stdout != "done\n" {
					t.Errorf("%s, a fresh run: %+v", use.name, r)
				}
				if r := s.cell(t, "m", "python", code); r.Stdout != "done\n" {
					t.Errorf("%s, a cell: %+v", use.name, r)
				}
			}
		})
	}
}

// memoryUse is what programs do under a limit of 512 MB.
var memoryUse = []struct{ name, lines string }{
	{"the limit", `
import numpy, resource
limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
assert limit < 768 << 20, f"the zygote reserves much memory: the limit is {limit >> 20} MB"
numpy.empty(480 << 17)
try: numpy.empty(544 << 17)
except MemoryError: return
raise AssertionError("more memory than the limit")`},
	{"array", `
import numpy
assert numpy.ones(30_000_000).sum() == 30_000_000`},
	{"plot", `
import matplotlib.pyplot as plt
plt.plot(range(1000))
plt.savefig("/tmp/plot.png", dpi=200)
plt.close()`},
	{"CSV and Parquet", `
import pandas
frame = pandas.DataFrame({"number": range(500_000), "text": [f"line {i}" for i in range(500_000)]})
frame.to_csv("/tmp/table.csv")
frame.to_parquet("/tmp/table.parquet")
assert len(pandas.read_csv("/tmp/table.csv")) == len(pandas.read_csv("/tmp/table.csv", engine="pyarrow")) == 500_000
assert pandas.read_parquet("/tmp/table.parquet").text.str.upper().iloc[-1] == "LINE 499999"`},
	{"spreadsheet", `
import pandas
pandas.DataFrame({"number": range(5000)}).to_excel("/tmp/table.xlsx")
assert len(pandas.read_excel("/tmp/table.xlsx")) == 5000`},
	{"statistics", `
import numpy, scipy.stats
assert scipy.stats.linregress(numpy.arange(100_000), 2 * numpy.arange(100_000)).slope == 2`},
	{"threads", `
import threading
barrier = threading.Barrier(17, timeout=20)
threads = [threading.Thread(target=barrier.wait, daemon=True) for _ in range(16)]
for each in threads: each.start()
barrier.wait()
for each in threads: each.join()`},
	{"thread pool", `
from concurrent.futures import ThreadPoolExecutor
import numpy
with ThreadPoolExecutor() as pool: assert sum(pool.map(lambda n: numpy.ones(n).sum(), [1_000_000] * 32)) == 32_000_000`},
}
