package docker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

func TestLoginOf(t *testing.T) {
	for name, test := range map[string]struct{ passwd, want string }{
		"nobody":          {"root:x:0:0:root:/root:/bin/bash\n", ""},
		"a person":        {"root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000:Ada,,,:/home/ada:/bin/bash\n", `"ada"`},
		"no end of line":  {"ada:x:1000:1000::/home/ada:/bin/zsh", `"ada"`},
		"no shell":        {"ada:x:1000:1000::/home/ada:\n", `"ada"`}, // means /bin/sh
		"nologin":         {"ada:x:1000:1000::/home/ada:/usr/sbin/nologin\n", ""},
		"false":           {"ada:x:1000:1000::/home/ada:/bin/false\n", ""},
		"the second one":  {"svc:x:1000:1000::/:/sbin/nologin\nada:x:1000:1000::/home/ada:/bin/bash\n", `"ada"`},
		"a comment":       {"#ada:x:1000:1000::/home/ada:/bin/bash\n", ""},
		"too few fields":  {"ada:x:1000:1000:/bin/bash\n", ""},
		"too many fields": {"ada:x:1000:1000::/home/ada:/bin/bash:x\n", ""},
		"no number":       {"ada:x:+1000:1000::/:/bin/sh\nada:x:0x3e8:1::/:/bin/sh\nada:x: 1000:1::/:/bin/sh\nada:x:-1000:1::/:/bin/sh\n", ""},
		"wraps around":    {"ada:x:4294968296:1000::/home/ada:/bin/bash\nada:x:18446744073709552616:1000::/:/bin/bash\n", ""},
		"gid":             {"ada:x:1001:1000::/home/ada:/bin/bash\n", ""},
		"NIS":             {"+::::::\n+ada:x:1000:1000::/home/ada:/bin/bash\n", `"+ada"`},
		"escapes":         {"\x1b[2Jada\x00:x:1000:1000::/:/bin/bash\n", `"\x1b[2Jada\x00"`},
		"a long name":     {strings.Repeat("a", 1<<20) + ":x:1000:1000::/:/bin/bash\n", `"` + strings.Repeat("a", 64) + `"`},
		"a long line":     {strings.Repeat(":", 1<<20) + "\nada:x:1000:1000::/home/ada:/bin/bash\n", `"ada"`},
		"endless":         {strings.Repeat("a", maxPasswd+10) + "\nada:x:1000:1000::/home/ada:/bin/bash\n", ""},
		"empty":           {"", ""},
	} {
		if got := loginOf(strings.NewReader(test.passwd), 1000); got != test.want {
			t.Errorf("%s: %.100s, want %s", name, got, test.want)
		}
	}
}

// TestCheckUser uses the real engine and this machine's /etc/passwd.
func TestCheckUser(t *testing.T) {
	host := os.Getenv("SANDBOX_TEST_DOCKER_HOST")
	if host == "" || os.Geteuid() != 0 {
		sandboxtest.Skip(t, "needs root and SANDBOX_TEST_DOCKER_HOST")
	}
	b, err := New(Config{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	e, err := b.facts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, owner := e.user()
	name := loginOf(f, owner.uid)
	warned := func(e engine) bool {
		checks := b.checkUser(&e)
		for _, c := range checks {
			if c.Status != sandbox.Warn || !strings.Contains(c.Detail, name) || !strings.Contains(c.Fix, "userns-remap") {
				t.Errorf("%+v", c)
			}
		}
		return len(checks) > 0
	}
	if want := name != "" && !e.mapped && !e.rootless && b.sharesMachine(e); warned(*e) != want {
		t.Errorf("uid %d is %s: warned: %t", owner.uid, name, !want)
	}
	for _, change := range []func(*engine){
		func(e *engine) { e.mapped, e.uidBase = true, 100000 }, func(e *engine) { e.rootless = true }, func(e *engine) { e.machine = "another" },
		func(e *engine) { e.dir = filepath.Join(t.TempDir(), "missing") },
	} {
		other := *e
		change(&other)
		if warned(other) {
			t.Errorf("warned about %+v", other)
		}
	}
}
