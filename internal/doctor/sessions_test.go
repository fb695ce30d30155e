package doctor_test

import (
	"strings"
	"testing"

	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/sandbox"
)

// TestSuggestSessions: the first limit that a machine reaches decides how many sessions fit.
func TestSuggestSessions(t *testing.T) {
	limits := func(nproc string) string {
		return "Limit                     Soft Limit           Hard Limit           Units     \nMax processes             " + nproc + "                63000                processes \n"
	}
	for name, tc := range map[string]struct {
		cost  doctor.SessionCost
		uid   int
		os    string
		files map[string]string
		want  int
		why   string
	}{
		"memory": {files: map[string]string{"/proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n", "/proc/sys/kernel/pid_max": "4194304\n"},
			want: 450, why: "half of 8.0 GB of memory is enough for 455 idle sessions of 9 MB, half of 4194304 threads for 174762 of 12 threads"},
		"threads": {files: map[string]string{"/proc/meminfo": "MemTotal:        25165824 kB\n", "/proc/sys/kernel/pid_max": "16384\n", "/proc/sys/kernel/threads-max": "190000\n"},
			want: 680, why: "half of 16384 threads for 682"},
		"libraries of their own": {cost: doctor.SeparateSession, files: map[string]string{"/proc/meminfo": "MemTotal:        8388608 kB\n"},
			want: 34, why: "half of 8.0 GB of memory is enough for 34 idle sessions of 120 MB"},
		"more than was measured": {files: map[string]string{"/proc/meminfo": "MemTotal: 268435456 kB\n", "/proc/sys/kernel/pid_max": "4194304\n"}, want: 1000},
		"a container's memory": {files: map[string]string{"/proc/meminfo": "MemTotal: 268435456 kB\n", "/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "1073741824\n", "/sys/fs/cgroup/pids.max": "max\n"},
			want: 56, why: "half of 1.0 GB"},
		"a service's cgroup": {files: map[string]string{"/proc/meminfo": "MemTotal: 268435456 kB\n", "/proc/self/cgroup": "0::/system.slice/x.service\n",
			"/sys/fs/cgroup/system.slice/pids.max": "2800\n", "/sys/fs/cgroup/system.slice/x.service/pids.max": "max\n"}, want: 110, why: "half of 2800 threads"},
		"cgroup v1": {files: map[string]string{"/proc/meminfo": "MemTotal: 268435456 kB\n", "/proc/self/cgroup": "8:pids:/a\n4:memory:/a\n0::/\n",
			"/sys/fs/cgroup/memory/a/memory.limit_in_bytes": "536870912\n", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, want: 28},
		"an ordinary user": {uid: 1000, files: map[string]string{"/proc/meminfo": "MemTotal: 268435456 kB\n", "/proc/self/limits": limits("5600")}, want: 230, why: "half of 5600 threads"},
		"root":             {files: map[string]string{"/proc/meminfo": "MemTotal: 268435456 kB\n", "/proc/self/limits": limits("5600")}, want: 1000},
		"tiny":             {files: map[string]string{"/proc/meminfo": "MemTotal: 1024 kB\n"}, want: 1},
		"nothing known":    {files: map[string]string{"/proc/meminfo": "garbage\nMemTotal: lots\n", "/proc/sys/kernel/pid_max": "-1\n", "/proc/self/cgroup": "::\nx\n"}},
		"another system":   {os: "darwin"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &machine{os: tc.os, uid: tc.uid, files: tc.files}
			if m.os == "" {
				m.os = "linux"
			}
			cost := tc.cost
			if cost == (doctor.SessionCost{}) {
				cost = doctor.SharedSession
			}
			n, why := m.host().SuggestSessions(cost)
			if n != tc.want || !strings.Contains(why, tc.why) || strings.Contains(why, "\n") {
				t.Errorf("%d: %s\nwant %d: %s", n, why, tc.want, tc.why)
			}
			checks := m.host().CheckSessions(10, cost)
			if n == 0 {
				if checks != nil {
					t.Errorf("%+v", checks)
				}
				return
			}
			want := sandbox.OK
			if n < 5 {
				want = sandbox.Warn
			}
			if len(checks) != 1 || checks[0].Status != want || !strings.Contains(checks[0].Detail, why) || (checks[0].Fix != "") != (want == sandbox.Warn) {
				t.Errorf("%+v", checks)
			}
		})
	}
}
