package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/serviceconfig"
)

// TestCheckNetwork: doctor names the mode, and how many hosts the operator allows.
func TestCheckNetwork(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"network": {"allow": ["a.example.com", "*.example.org"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[string]string{
		networkFull: "full: runs with network: true reach every public host; network.allow limits the hosts that runs name to 2 entries",
		networkList: "list: runs reach only the hosts that they name; network.allow limits the hosts that runs name to 2 entries",
		networkOff:  "off: runs reach no hosts",
	} {
		if c := checkNetwork(&invocation{settings: &settings{Network: mode, Config: config}}); c.Detail != want || c.Status != sandbox.OK {
			t.Errorf("%+v, want %s", c, want)
		}
		before, _, _ := strings.Cut(want, ";")
		if c := checkNetwork(&invocation{settings: &settings{Network: mode}}); c.Detail != before {
			t.Errorf("without a configuration: %+v, want %s", c, before)
		}
	}
}

// TestDoctorIgnoresNetwork: without runs with network, nothing says that these do not work.
func TestDoctorIgnoresNetwork(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the jail is for Linux")
	}
	env := map[string]string{"HOME": t.TempDir(), "SANDBOX_BACKEND": backendJail, "SANDBOX_ROOT": t.TempDir()}
	for _, mode := range []string{networkFull, networkList, networkOff} {
		env["SANDBOX_NETWORK"] = mode
		s, err := parse(t, nil, env)
		if err != nil {
			t.Fatal(err)
		}
		checks := runChecks(t.Context(), &invocation{settings: s, env: env})
		tested := slices.ContainsFunc(checks, func(c sandbox.Check) bool { return strings.HasSuffix(c.Name, "network") })
		if tested != (mode == networkFull) {
			t.Errorf("%s: %+v", mode, checks)
		}
	}
}

// TestNetworkOffWarns: a list of hosts that has no effect is worth a warning.
func TestNetworkOffWarns(t *testing.T) {
	for _, test := range []struct {
		allow []string
		want  string
	}{{[]string{"a.example.com"}, "network.allow has no effect: SANDBOX_NETWORK is off"}, {nil, ""}} {
		var out bytes.Buffer
		a := &app{settings: &settings{Network: networkOff}, log: slog.New(slog.NewTextHandler(&out, nil))}
		if e, err := a.newEgress(serviceconfig.Network{Allow: test.allow}, nil); e != nil || err != nil {
			t.Errorf("%v %v", e, err)
		}
		if got := out.String(); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// TestDescribeNetwork: proxy validate says what a section means, also an empty one.
func TestDescribeNetwork(t *testing.T) {
	for _, test := range []struct {
		n          serviceconfig.Network
		mode, want string
	}{
		{serviceconfig.Network{}, networkFull, "Runs may name every public host."},
		{serviceconfig.Network{Allow: []string{}}, networkList, "Runs may name these hosts: none."},
		{serviceconfig.Network{Allow: []string{"a.example"}, UploadBytes: 5000}, networkList, "Runs may name these hosts: a.example. A run may send at most 5000 bytes there."},
		{serviceconfig.Network{UploadBytes: 5000}, networkFull, "Runs may name every public host. A run may send at most 5000 bytes there."},
		{serviceconfig.Network{Allow: []string{"a.example"}, UploadBytes: 5000}, networkOff, "Runs may name no hosts, since SANDBOX_NETWORK is off."},
	} {
		if got := describeNetwork(test.n, test.mode); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}
