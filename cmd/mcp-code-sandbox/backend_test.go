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

// An engine's own advice is better than the general one.
func TestReachEngineFix(t *testing.T) {
	denied := &sandbox.Error{Op: "reach the engine", Err: errors.New("permission denied"), Fix: "sudo usermod -aG docker $USER"}
	err := (&isolation{refused: denied}).reachEngine(t.Context())
	if err == nil || !strings.Contains(err.Error(), "permission denied (sudo usermod -aG docker $USER") || strings.Contains(err.Error(), "start it") {
		t.Errorf("%v", err)
	}
}

// doctor fails where serve would: on a port that was asked for and that another program has.
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
	if c := checkPort(t.Context(), &settings{HTTPAddr: "127.0.0.1:0"}); c.Status != sandbox.OK {
		t.Errorf("%+v", c)
	}
}

// doctor warns about an engine that was named and is not used, not about one that nobody named.
func TestCheckBackend(t *testing.T) {
	iso := isolation{name: backendJail, why: "no engine can be used", noReply: errors.New("connection refused")}
	c := checkBackend(iso, &settings{DockerHost: "tcp://127.0.0.1:1"}, nil)
	if c.Status != sandbox.Warn || !strings.Contains(c.Detail, "tcp://127.0.0.1:1") || !strings.Contains(c.Detail, "connection refused") {
		t.Errorf("%+v", c)
	}
	if c := checkBackend(iso, &settings{DockerHost: defaultEngine(nil)}, nil); c.Status != sandbox.OK {
		t.Errorf("%+v", c)
	}
}
