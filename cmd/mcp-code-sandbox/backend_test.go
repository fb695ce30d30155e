package main

import (
	"context"
	"errors"
	"testing"

	"mcp-code-sandbox/internal/sandbox"
)

func TestChoose(t *testing.T) {
	down := &sandbox.Error{Op: "reach the engine", Err: errors.New("connection refused"), Fix: "start it"}
	for _, test := range []struct {
		setting, goos string
		images        int
		err           error
		want, why     string
	}{
		{"jail", "linux", 3, nil, "jail", "SANDBOX_BACKEND says so"},
		{"docker", "linux", 0, down, "docker", "SANDBOX_BACKEND says so"},
		{"auto", "linux", 1, nil, "docker", "an engine has images that are labelled as runners"},
		{"auto", "linux", 0, nil, "jail", "the engine has no image that is labelled as a runner"},
		{"auto", "linux", 0, down, "jail", "no engine can be used: connection refused"},
		{"auto", "darwin", 0, down, "docker", "the jail needs Linux"},
		{"auto", "windows", 0, nil, "docker", "the jail needs Linux"},
	} {
		asked := false
		name, why := choose(t.Context(), test.setting, test.goos, func(context.Context) (int, error) {
			asked = true
			return test.images, test.err
		})
		if name != test.want || why != test.why {
			t.Errorf("%s on %s: %s, because %s", test.setting, test.goos, name, why)
		}
		if asked != (test.setting == "auto") {
			t.Errorf("%s: the engine was asked: %v", test.setting, asked)
		}
	}
}
