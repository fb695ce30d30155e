package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

func TestChoose(t *testing.T) {
	down := &sandbox.Error{Op: "reach the engine", Err: errors.New("connection refused"), Fix: "start it"}
	for _, test := range []struct {
		setting, goos string
		offer         offer
		err           error
		want, why     string
	}{
		{"jail", "linux", offer{3, true, true}, nil, "jail", "SANDBOX_BACKEND says so"},
		{"docker", "linux", offer{}, down, "docker", "SANDBOX_BACKEND says so"},
		{"auto", "linux", offer{1, true, false}, nil, "docker", "an engine has this project's images"},
		{"auto", "linux", offer{1, false, true}, nil, "docker", "an engine has images that SANDBOX_IMAGE or SANDBOX_IMAGES names"},
		{"auto", "linux", offer{0, false, true}, nil, "jail", "the engine has no labelled image that SANDBOX_IMAGE or SANDBOX_IMAGES names"},
		{"auto", "linux", offer{1, false, false}, nil, "jail", "the engine has images that are labelled as runners, but none of this project; SANDBOX_BACKEND=docker or SANDBOX_IMAGES uses them"},
		{"auto", "linux", offer{}, nil, "jail", "the engine has no image that is labelled as a runner"},
		{"auto", "linux", offer{}, down, "jail", "no engine can be used: connection refused"},
		{"auto", "darwin", offer{}, down, "docker", "the jail needs Linux"},
		{"auto", "windows", offer{}, nil, "docker", "the jail needs Linux"},
	} {
		asked := false
		name, why := choose(t.Context(), test.setting, test.goos, func(context.Context) (offer, error) {
			asked = true
			return test.offer, test.err
		})
		if name != test.want || why != test.why {
			t.Errorf("%s on %s: %s, because %s", test.setting, test.goos, name, why)
		}
		if asked != (test.setting == "auto") {
			t.Errorf("%s: the engine was asked: %v", test.setting, asked)
		}
	}
}

// The engine's own fix wins over the general one.
func TestReachEngineFix(t *testing.T) {
	denied := &sandbox.Error{Op: "reach the engine", Err: errors.New("permission denied"), Fix: "sudo usermod -aG docker $USER"}
	err := (&isolation{refused: denied}).reachEngine(t.Context())
	if err == nil || !strings.Contains(err.Error(), "permission denied (sudo usermod -aG docker $USER") || strings.Contains(err.Error(), "start it") {
		t.Errorf("%v", err)
	}
}

// doctor fails if serve would: if another program uses a port that the settings name.
func TestCheckPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := &settings{HTTPAddr: l.Addr().String()}
	if c := checkPort(t.Context(), s); c.Status != sandbox.Fail || c.Fix == "" {
		t.Errorf("%+v", c)
	}
	if _, _, err := listen(t.Context(), s, false); err == nil {
		t.Error("serve listens")
	}
	byPort := &settings{HTTPPort: l.Addr().(*net.TCPAddr).Port}
	if c := checkPort(t.Context(), byPort); c.Status != sandbox.Fail || c.Fix != "stop it, or choose another port with SANDBOX_HTTP_PORT" {
		t.Errorf("%+v", c)
	}
	if c := checkPort(t.Context(), &settings{HTTPAddr: "127.0.0.1:0"}); c.Status != sandbox.OK {
		t.Errorf("%+v", c)
	}
}

// doctor warns about an unused engine only if the settings name it.
func TestCheckBackend(t *testing.T) {
	iso := isolation{backend: backendNamed(backendJail), why: "no engine can be used", engineErr: errors.New("connection refused")}
	c := checkBackend(iso, &settings{DockerHost: "tcp://127.0.0.1:1"}, nil)
	if c.Status != sandbox.Warn || !strings.Contains(c.Detail, "tcp://127.0.0.1:1") || !strings.Contains(c.Detail, "connection refused") {
		t.Errorf("%+v", c)
	}
	if c := checkBackend(iso, &settings{DockerHost: defaultEngine(nil)}, nil); c.Status != sandbox.OK {
		t.Errorf("%+v", c)
	}
}

// TestBackends: SANDBOX_BACKEND accepts every backend in the list and no other, and "auto" chooses
// one of them.
func TestBackends(t *testing.T) {
	names := map[string]bool{}
	for _, b := range backends() {
		if b.name == "" || names[b.name] || b.open == nil || b.checkHost == nil || b.isLocal == nil || b.sessionCost == nil {
			t.Errorf("%q is incomplete or there twice", b.name)
		}
		names[b.name] = true
		s, err := parse(t, nil, map[string]string{"HOME": "/home/u", "SANDBOX_BACKEND": b.name})
		if err != nil {
			t.Errorf("SANDBOX_BACKEND=%s: %v", b.name, err)
			continue
		}
		var iso isolation
		if iso.choose(t.Context(), s); iso.name != b.name {
			t.Errorf("SANDBOX_BACKEND=%s chooses %s", b.name, iso.name)
		}
	}
	for _, goos := range []string{"linux", "darwin"} {
		for _, o := range []offer{{}, {1, true, false}, {1, false, true}} {
			name, _ := choose(t.Context(), backendAuto, goos, func(context.Context) (offer, error) { return o, nil })
			if !names[name] {
				t.Errorf("auto chooses %q, which is not in the list", name)
			}
		}
	}
	if _, err := parse(t, nil, map[string]string{"HOME": "/home/u", "SANDBOX_BACKEND": "chroot"}); err == nil {
		t.Error("a backend that is not in the list is accepted")
	}
}
