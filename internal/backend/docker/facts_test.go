package docker

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestFacts: each engine reports its users and limits in its own way.
func TestFacts(t *testing.T) {
	const (
		docker = `{"Components":[{"Name":"Engine","Version":"20.10.24"}]}`
		podman = `{"Components":[{"Name":"Podman Engine","Version":"4.3.1"}]}`
	)
	for _, test := range []struct {
		name, version, info              string
		rootless, mapped, memory, podman bool
		looseTCP                         bool
		fails                            string
	}{
		{name: "docker", version: docker, info: `{"MemoryLimit":true,"SecurityOptions":["name=seccomp,profile=default"]}`, memory: true},
		{name: "rootless docker", version: docker, info: `{"SecurityOptions":["name=seccomp,profile=default","name=rootless"]}`, rootless: true},
		{name: "mapped docker", version: docker, info: `{"MemoryLimit":true,"DockerRootDir":"/x/100000.100000","SecurityOptions":["name=userns"]}`, mapped: true, memory: true},
		{name: "docker mapped who knows how", version: docker, info: `{"DockerRootDir":"/x","SecurityOptions":["name=userns"]}`, fails: "does not say how"},
		{name: "windows", version: docker, info: `{"OSType":"windows"}`, fails: "Linux containers"},
		{name: "docker on cgroup v1", version: docker, info: `{"MemoryLimit":true,"CgroupVersion":"1"}`, memory: true, looseTCP: true},
		{name: "docker on cgroup v2", version: docker, info: `{"MemoryLimit":true,"CgroupVersion":"2"}`, memory: true},
		{name: "podman", version: podman, info: `{"MemoryLimit":true,"CgroupVersion":"1","Rootless":false}`, memory: true, podman: true, looseTCP: true},
		{name: "rootless podman", version: podman, info: `{"MemoryLimit":true,"CgroupVersion":"2","Rootless":true}`, rootless: true, memory: true, podman: true},
		{name: "rootless podman without cgroups", version: podman, info: `{"MemoryLimit":true,"CgroupVersion":"1","Rootless":true}`, rootless: true, podman: true, looseTCP: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			var negotiated atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1.41/info" {
					negotiated.Store(true)
				}
				w.Header().Set("Api-Version", "1.41")
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.HasSuffix(r.URL.Path, "/info"):
					_, _ = w.Write([]byte(test.info))
				case strings.HasSuffix(r.URL.Path, "/version"):
					_, _ = w.Write([]byte(test.version))
				}
			}))
			defer server.Close()
			b, err := New(Config{Host: "tcp://" + server.Listener.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			e, err := b.facts(t.Context())
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("%+v, %v, want something about %q", e, err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !negotiated.Load() {
				t.Error("an engine as old as 20.10 is asked in another version of the API than its own")
			}
			if e.rootless != test.rootless || e.mapped != test.mapped || e.memory != test.memory ||
				e.podman != test.podman || e.looseTCP != test.looseTCP {
				t.Errorf("%+v", e)
			}
		})
	}
}
