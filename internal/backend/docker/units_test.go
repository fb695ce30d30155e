package docker

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcp-code-sandbox/internal/netguard"
	"mcp-code-sandbox/internal/sandbox"
)

func TestRemap(t *testing.T) {
	for dir, want := range map[string][2]int{
		"/var/lib/docker/100000.200000": {100000, 200000}, "/var/lib/docker": {}, "/var/lib/docker/0.0": {}, "/x/-5.1": {}, "": {}, "/x/1.2.3": {}, "/x/a.b": {},
	} {
		uid, gid, err := remap(dir)
		if [2]int{uid, gid} != want || (err == nil) != (want != [2]int{}) {
			t.Errorf("%q: %d, %d, %v", dir, uid, gid, err)
		}
	}
}

func TestHostPath(t *testing.T) {
	for _, test := range []struct{ host, path, want string }{
		{"", "/data/x", "/data/x"},
		{"/srv/sandboxes", "/data/x/files", "/srv/sandboxes/x/files"},
		{"/srv/sandboxes/", "/data", "/srv/sandboxes"},
		{"/srv", "/database/x", "/database/x"},
		{"/srv", "/elsewhere", "/elsewhere"},
		{"/srv", "/data/../etc", "/data/../etc"},
	} {
		b := &Backend{cfg: Config{Root: "/data", HostRoot: test.host}}
		if got := b.hostPath(test.path); got != test.want {
			t.Errorf("%s under %s: %s, want %s", test.path, test.host, got, test.want)
		}
	}
}

// TestAgentConn: an engine's stream, valid and invalid.
func TestAgentConn(t *testing.T) {
	piece := func(stream byte, text string) string {
		return string([]byte{stream, 0, 0, 0, 0, 0, byte(len(text) >> 8), byte(len(text))}) + text
	}
	for _, test := range []struct {
		name, sent, want, said string
		fails                  bool
	}{
		{"in pieces", piece(1, "he") + piece(1, "") + piece(1, "llo"), "hello", "", false},
		{"stderr aside", piece(2, "oops") + piece(1, "a") + piece(2, "!") + piece(1, "b"), "ab", "oops!", false},
		{"the engine's own words", piece(1, "a") + piece(3, "broken"), "a", "broken", true},
		{"cut in a head", piece(1, "a") + "\x01\x00", "a", "", true},
		{"cut in a piece", "\x01\x00\x00\x00\x00\x00\x00\x09abc", "abc", "", false},
		{"not multiplexed", "hello, world", "", "", true},
		{"no such stream", "\x07\x00\x00\x00\x00\x00\x00\x01a", "", "", true},
		{"a terabyte", "\x01\x00\x00\x00\xff\xff\xff\xffabc", "abc", "", false},
		{"much to stderr", piece(2, strings.Repeat("x", 60000)) + piece(1, "a"), "a", strings.Repeat("x", sandbox.TailBytes), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			near, far := net.Pipe()
			over := 0
			c := newAgentConn(near, func() { over++ })
			go func() {
				_, _ = io.WriteString(far, test.sent)
				_ = far.Close()
			}()
			got, err := io.ReadAll(c)
			if string(got) != test.want || (err != nil) != test.fails || c.said.String() != test.said {
				t.Errorf("%q, %v, said %q", got, err, c.said.String())
			}
			if over == 0 {
				t.Error("over was not called")
			}
		})
	}
}

func TestGuardConfig(t *testing.T) {
	b := &Backend{}
	cfg, err := b.guardConfig(netguard.HostNetwork{Addresses: []string{"21.0.113.9", "fe80::1", "nonsense"}, Resolvers: []string{"10.0.0.53"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "168.63.129.16/32", "21.0.113.9/32"} {
		if !slices.Contains(cfg.Unreachable, want) {
			t.Errorf("%s stays open: %v", want, cfg.Unreachable)
		}
	}
	if !slices.Equal(cfg.Resolvers, []string{"10.0.0.53"}) || len(cfg.Open) != 0 {
		t.Errorf("%+v", cfg)
	}
}

// TestExplain: every common failure has a fix. A cancelled call is not a failure.
func TestExplain(t *testing.T) {
	b := &Backend{}
	for _, test := range []struct {
		err error
		fix string
	}{
		{syscall.ECONNREFUSED, "systemctl start docker"},
		{syscall.ENOENT, "DOCKER_HOST"},
		{syscall.EACCES, "usermod -aG docker"},
		{errors.New("Error response from daemon: mkdir /x: no space left on device"), "docker system prune"},
		{errors.New("invalid mount config for type \"bind\": bind source path does not exist: /x"), "SANDBOX_HOST_PATH"},
		{errors.New("client version 1.40 is too new. Maximum supported API version is 1.38"), "20.10"},
		{errors.New("invalid mount config for type \"bind\": stat /x: permission denied"), "whose engine it is"},
	} {
		var known *sandbox.Error
		if err := b.explain(t.Context(), "try", test.err); !errors.As(err, &known) || !strings.Contains(known.Fix, test.fix) {
			t.Errorf("%v: %v", test.err, err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.explain(cancelled, "try", errors.New("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	hung, cancel := timeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-hung.Done()
	if err := b.explain(hung, "try", errors.New("x")); !errors.Is(err, errHangs) || !strings.Contains(err.Error(), "docker info") {
		t.Errorf("hung: %v", err)
	}
}
