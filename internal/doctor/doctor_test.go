package doctor_test

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/doctor"
	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
)

// machine is a healthy Debian 12 with cgroup v2, which each case breaks in one way.
type machine struct {
	os       string
	uid      int
	outer    userns.Status
	files    map[string]string
	writable []string
	programs []string
	bwrap    string // its version
	namespc  error  // what making namespaces ends with
	free     uint64
}

func healthy() *machine {
	return &machine{
		os: "linux", uid: 1000, outer: userns.Status{Inside: true, HasRange: true}, bwrap: "0.8.0", free: 50 << 30,
		programs: []string{"bwrap", "slirp4netns"},
		writable: []string{"/sys/fs/cgroup/user.slice"},
		files: map[string]string{
			"/proc/sys/kernel/osrelease":                   "6.1.0-13-amd64\n",
			"/proc/sys/user/max_user_namespaces":           "63000\n",
			"/proc/self/cgroup":                            "0::/user.slice\n",
			"/sys/fs/cgroup/cgroup.controllers":            "cpu memory pids\n",
			"/sys/fs/cgroup/user.slice/cgroup.controllers": "cpu memory pids\n",
			"/dev/net/tun":                                 "",
		},
	}
}

func (m *machine) host() doctor.Host {
	return doctor.Host{
		OS: m.os, UID: m.uid, Outer: m.outer, Server: "/opt/bin/mcp-code-sandbox",
		ReadFile: func(p string) ([]byte, error) {
			if s, ok := m.files[p]; ok {
				return []byte(s), nil
			}
			return nil, fs.ErrNotExist
		},
		Exists:   func(p string) bool { _, ok := m.files[p]; return ok },
		Writable: func(p string) bool { return slices.Contains(m.writable, p) },
		LookPath: func(p string) (string, error) {
			if slices.Contains(m.programs, p) {
				return "/usr/bin/" + p, nil
			}
			return "", fs.ErrNotExist
		},
		Output: func(_ context.Context, _ string, args ...string) (string, error) {
			if args[0] == "--version" {
				return "bubblewrap " + m.bwrap + "\n", nil
			}
			if m.namespc != nil {
				return "bwrap: setting up uid map: Permission denied\n", m.namespc
			}
			return "", nil
		},
		Free: func(string) (uint64, error) { return m.free, nil },
	}
}

func TestCheck(t *testing.T) {
	denied := errors.New("exit status 1")
	noNamespace := &sandbox.Error{Op: "make an outer namespace", Err: denied, Fix: "set it to auto"}
	for _, tc := range []struct {
		name   string
		change func(*machine)
		check  string // the line that must say it
		status sandbox.Status
		detail string
		fix    string
	}{
		{"healthy", func(*machine) {}, "bubblewrap", sandbox.OK, "0.8.0", ""},
		{"Ubuntu 24.04", func(m *machine) {
			m.files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = "1\n"
			m.namespc = denied
		}, "AppArmor", sandbox.Fail, "24.04", doctor.AppArmorProfile("bwrap", "/usr/bin/bwrap")},
		{"Ubuntu 24.04 as root, whose own try proves nothing", func(m *machine) {
			m.files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = "1\n"
			m.uid = 0
		}, "AppArmor", sandbox.Fail, "24.04", "apparmor_parser -r"},
		{"Ubuntu 24.04 with the profile", func(m *machine) {
			m.files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = "1\n"
			m.files["/etc/apparmor.d/bwrap"] = doctor.AppArmorProfile("bwrap", "/usr/bin/bwrap")
		}, "AppArmor", sandbox.OK, "restricts", ""},
		{"a server with an outer namespace", func(*machine) {}, "outer namespace", sandbox.OK, "of its own", ""},
		{"a root server", func(m *machine) { m.uid, m.outer = 0, userns.Status{} }, "outer namespace", sandbox.OK, "needs none", ""},
		{"no outer namespace", func(m *machine) { m.outer = userns.Status{Problem: noNamespace} }, "outer namespace", sandbox.Warn, "slower", "set it to auto"},
		{"Ubuntu 24.04 with a profile for bubblewrap only", func(m *machine) {
			m.files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = "1\n"
			m.outer = userns.Status{Problem: noNamespace}
		}, "outer namespace", sandbox.Warn, "slower", "profile mcp-code-sandbox /opt/bin/mcp-code-sandbox flags=(unconfined)"},
		{"in Docker", func(m *machine) {
			m.files["/.dockerenv"] = ""
			m.files["/proc/self/status"] = "Name:\tx\nSeccomp:\t2\n"
			m.namespc = denied
		}, "container", sandbox.Fail, "inside Docker, with a seccomp filter", "--security-opt seccomp=unconfined"},
		{"in Docker that was told to let it", func(m *machine) { m.files["/.dockerenv"] = "" }, "container", sandbox.OK, "inside Docker", ""},
		{"a machine that runs containers is not in one", func(m *machine) {
			m.files["/proc/1/cgroup"] = "0::/init.scope\n"
			m.files["/proc/self/mountinfo"] = "36 35 0:40 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw\n"
		}, "container", sandbox.OK, "not inside", ""},
		{"in Kubernetes", func(m *machine) {
			m.files["/proc/self/mountinfo"] = "36 35 8:1 /var/lib/kubelet/pods/x/etc-hosts /etc/hosts rw - ext4 /dev/sda rw\n"
			m.namespc = denied
		}, "container", sandbox.Fail, "Kubernetes", "seccompProfile"},
		{"no user namespaces", func(m *machine) { m.files["/proc/sys/user/max_user_namespaces"] = "0\n" }, "user namespaces", sandbox.Fail, "switched off", "sysctl"},
		{"Debian's old switch", func(m *machine) { m.files["/proc/sys/kernel/unprivileged_userns_clone"] = "0\n" }, "user namespaces", sandbox.Fail, "root only", "unprivileged_userns_clone=1"},
		{"no bwrap", func(m *machine) { m.programs = nil }, "bubblewrap", sandbox.Fail, "not installed", "apt-get install bubblewrap"},
		{"old bwrap", func(m *machine) { m.bwrap = "0.6.1" }, "bubblewrap", sandbox.Fail, "0.6.1", "0.8.0"},
		{"no bwrap in Docker is not Docker's fault", func(m *machine) { m.programs, m.files["/.dockerenv"] = nil, "" }, "container", sandbox.OK, "inside Docker", ""},
		{"no slirp4netns", func(m *machine) { m.programs = []string{"bwrap"} }, "network", sandbox.Warn, "refused", "apt-get install slirp4netns"},
		{"cgroup v2 of somebody else", func(m *machine) { m.writable = nil }, "cgroups", sandbox.Warn, "rlimits only, CPU", "Delegate=yes"},
		{"cgroup v2 without delegated memory", func(m *machine) {
			m.files["/sys/fs/cgroup/user.slice/cgroup.controllers"] = "pids\n"
		}, "cgroups", sandbox.Warn, "memory, cpu", "Delegate=yes"},
		{"cgroup v2 without delegated cpu", func(m *machine) {
			m.files["/sys/fs/cgroup/user.slice/cgroup.controllers"] = "memory pids\n"
		}, "cgroups", sandbox.Warn, "CPU time of sandboxes is not limited", "user@.service"},
		{"cgroup v1", func(m *machine) {
			delete(m.files, "/sys/fs/cgroup/cgroup.controllers")
			m.files["/proc/self/cgroup"] = "3:memory:/a\n2:pids:/a\n1:cpu,cpuacct:/\n0::/\n"
			m.writable = []string{"/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/pids/a", "/sys/fs/cgroup/cpu"}
			m.files["/sys/fs/cgroup/memory/a/memory.kmem.tcp.limit_in_bytes"] = "9223372036854771712\n"
		}, "cgroups", sandbox.OK, "v1", ""},
		{"cgroup v1 that cannot limit TCP buffers", func(m *machine) {
			delete(m.files, "/sys/fs/cgroup/cgroup.controllers")
			m.files["/proc/self/cgroup"] = "3:memory:/a\n2:pids:/a\n1:cpu,cpuacct:/\n0::/\n"
			m.writable = []string{"/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/pids/a", "/sys/fs/cgroup/cpu"}
		}, "cgroups", sandbox.Warn, "TCP buffers", "cgroup v2"},
		{"full disk", func(m *machine) { m.free = 1 << 20 }, "disk", sandbox.Fail, "1 MB free", "SANDBOX_ROOT"},
		{"old kernel", func(m *machine) { m.files["/proc/sys/kernel/osrelease"] = "3.10.0-1160.el7\n" }, "kernel", sandbox.Fail, "3.10", "4.18"},
		{"macOS", func(m *machine) { m.os = "darwin" }, "system", sandbox.Fail, "the jail does not run on darwin", "SANDBOX_BACKEND"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := healthy()
			tc.change(m)
			checks := m.host().Check(t.Context(), "/data")
			i := slices.IndexFunc(checks, func(c sandbox.Check) bool { return c.Name == tc.check })
			if i < 0 {
				t.Fatalf("no line %q in %+v", tc.check, checks)
			}
			c := checks[i]
			if c.Status != tc.status || !strings.Contains(c.Detail, tc.detail) || !strings.Contains(c.Fix, tc.fix) {
				t.Errorf("got %+v\nwant status %v, detail with %q, fix with %q", c, tc.status, tc.detail, tc.fix)
			}
			for _, c := range checks {
				if (c.Status != sandbox.OK) != (c.Fix != "") {
					t.Errorf("%s: status %v, yet fix %q", c.Name, c.Status, c.Fix)
				}
				if tc.name == "healthy" && c.Status != sandbox.OK {
					t.Errorf("healthy, yet %+v", c)
				}
			}
		})
	}
}

// TestCheckCache: the cache of packages must be writable for the server's user, and the disk on
// which it is must have room for it.
func TestCheckCache(t *testing.T) {
	const dir = "/data/cache/packages"
	for _, tc := range []struct {
		name     string
		uid      int
		exists   []string
		writable []string
		owners   map[string]int
		free     uint64
		held     int64
		status   sandbox.Status
		detail   string
		fix      string
	}{
		{name: "no cache yet", exists: []string{"/data"}, writable: []string{"/data"}, free: 2 << 30},
		{name: "a cache", exists: []string{"/data", dir, dir + "/tmp"}, writable: []string{dir, dir + "/tmp"}, free: 1 << 30, held: 1 << 30},
		{name: "a larger cache than allowed", exists: []string{"/data", dir}, writable: []string{dir}, held: 5 << 30},
		{name: "a small disk", exists: []string{"/data"}, writable: []string{"/data"}, free: 1 << 30, held: 512 << 20, status: sandbox.Warn,
			detail: "1024 MB free at /data/cache/packages, but the cache holds 512 MB and may have 2048 MB (packages.cacheBytes)", fix: "smaller packages.cacheBytes"},
		{name: "made by root", uid: 1000, exists: []string{"/data", "/data/cache"}, writable: []string{"/data"}, free: 2 << 30, status: sandbox.Fail,
			detail: "/data/cache is not writable", fix: "sudo chown -R --reference=/data/keys /data/cache"},
		{name: "made by root, says root", exists: []string{"/data", dir}, writable: []string{dir}, owners: map[string]int{"/data/keys": 1000, dir: 0}, free: 2 << 30, status: sandbox.Warn,
			detail: dir + " belongs to another user", fix: "sudo chown -R --reference=/data/keys " + dir},
		{name: "a root server on a user's volume", exists: []string{"/data", dir}, writable: []string{dir}, owners: map[string]int{"/data": 1000, "/data/keys": 0, dir: 0}, free: 2 << 30},
		{name: "files that root made", uid: 1000, exists: []string{"/data", dir, dir + "/files"}, writable: []string{dir}, free: 2 << 30, status: sandbox.Fail,
			detail: dir + "/files is not writable", fix: "chown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := doctor.Host{
				UID: tc.uid, Exists: func(p string) bool { return slices.Contains(tc.exists, p) }, Writable: func(p string) bool { return slices.Contains(tc.writable, p) },
				Free: func(string) (uint64, error) { return tc.free, nil },
				Owner: func(p string) (int, error) {
					if uid, ok := tc.owners[p]; ok {
						return uid, nil
					}
					return 0, fs.ErrNotExist
				},
			}
			checks := h.CheckCache(dir, "/data/keys", tc.held, 2<<30)
			if tc.status == sandbox.OK {
				if checks != nil {
					t.Errorf("%+v", checks)
				}
				return
			}
			if len(checks) != 1 || checks[0].Status != tc.status || !strings.Contains(checks[0].Detail, tc.detail) || !strings.Contains(checks[0].Fix, tc.fix) {
				t.Errorf("%+v", checks)
			}
		})
	}
}
