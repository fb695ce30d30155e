package integration

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// TestServerInAContainer starts the server by compose.yaml, from the last stage of its Dockerfile
// with the built binary. The data directory has one path in the container and another on the
// engine's machine.
func TestServerInAContainer(t *testing.T) {
	c := needEngine(t)
	program, err := exec.LookPath("docker-compose")
	if err != nil {
		skip(t, "docker-compose is not installed")
	}
	socket, ok := strings.CutPrefix(os.Getenv(envEngine), "unix://")
	if !ok {
		skip(t, "the engine has no socket on this machine: %s", os.Getenv(envEngine))
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := port.Addr().String()
	_ = port.Close()
	s := &server{URL: "http://" + address, Token: testToken, Root: filepath.Join(t.TempDir(), "named otherwise")}
	project, dir, file := "compose"+strings.TrimPrefix(newMarker(), "marker-"), lastStage(t), filepath.Join("..", "compose.yaml")
	compose := func(args ...string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, append([]string{"-p", project, "--project-directory", dir, "-f", file}, args...)...)
		cmd.Env = append(baseEnv(), "DOCKER_HOST=unix://"+socket, "DOCKER_SOCKET="+socket, "SANDBOX_HOST_PATH="+s.Root,
			"SANDBOX_HTTP_PORT="+strings.TrimPrefix(address, "127.0.0.1:"), "PUBLIC_BASE_URL="+s.URL, "MCP_API_TOKEN="+s.Token)
		out, err := cmd.CombinedOutput()
		if err != nil || t.Failed() {
			t.Logf("docker-compose %q: %v\n%s", args, err, out)
		}
		return err
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = compose("logs", "--no-color")
		}
		_ = compose("down", "--rmi", "all", "--volumes")
	})
	if err := compose("up", "--build", "--detach"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the server to be ready", func() bool {
		res, err := http.Get(s.URL + "/readyz")
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})

	id := newMarker()
	if res := s.call(t, "upload_file", map[string]any{"conversationId": id, "filename": "given.txt", "content": "Z2l2ZW4="}); res.IsError || res.Error != nil {
		t.Fatalf("upload_file: %+v", res)
	}
	r := s.run(t, id, "shell", "cat given.txt >> made.txt; echo more >> given.txt; mkdir -m 500 closed; chmod 400 made.txt; id -u")
	if !r.Success || r.Output != "1000\n" || len(r.Files) != 2 {
		t.Fatalf("run_code: %+v", r)
	}
	for _, f := range r.Files {
		if status, body := s.fetch(t, http.MethodGet, f.URL, nil); status != http.StatusOK || !strings.HasPrefix(string(body), "given") {
			t.Errorf("%s: %d %q", f.URL, status, body)
		}
	}
	found, err := filepath.Glob(filepath.Join(s.Root, "*", "files"))
	if err != nil || len(found) != 1 {
		t.Fatalf("workspaces on the engine's machine: %v, %v", found, err)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "made.txt": 0o400, "closed": 0o500 | os.ModeDir} {
		fi, err := os.Lstat(filepath.Join(found[0], name))
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); fi.Mode() != mode || st.Uid != 1000 || st.Gid != 1000 {
			t.Errorf("%q: %v of %d:%d", name, fi.Mode(), st.Uid, st.Gid)
		}
	}
	if n := len(containersOf(t, c, id)); n != 1 {
		t.Errorf("the session has %d containers", n)
	}

	if err := compose("stop"); err != nil {
		t.Fatal(err)
	}
	ours := make(client.Filters).Add("label", "com.docker.compose.project="+project)
	list, err := c.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: ours})
	if err != nil || len(list.Items) != 1 || !strings.HasPrefix(list.Items[0].Status, "Exited (0)") {
		t.Errorf("the server has ended with %+v, %v", list.Items, err)
	}
	if left := containersOf(t, c, id); len(left) != 0 {
		t.Errorf("after the server's end: %v", left)
	}
	if err := compose("down"); err != nil {
		t.Fatal(err)
	}
	if list, err = c.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: ours}); err != nil || len(list.Items) != 0 {
		t.Errorf("containers after down: %+v, %v", list.Items, err)
	}
	networks, err := c.NetworkList(t.Context(), client.NetworkListOptions{Filters: ours})
	if err != nil || len(networks.Items) != 0 {
		t.Errorf("networks after down: %+v, %v", networks.Items, err)
	}
	if text, err := os.ReadFile(filepath.Join(found[0], "given.txt")); string(text) != "givenmore\n" {
		t.Errorf("the files of the session: %q, %v", text, err)
	}
}

// lastStage makes a directory from which the last stage of the server's Dockerfile builds alone.
func lastStage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	_, stage, ok := strings.Cut(string(text), "\nFROM scratch\n")
	if !ok {
		t.Fatal("the Dockerfile has no stage from scratch")
	}
	dir := t.TempDir()
	for _, sub := range []string{"out/tmp", "etc/ssl/certs"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"Dockerfile": []byte("FROM scratch\n" + strings.ReplaceAll(stage, "--from=build ", "")), "etc/ssl/certs/ca-certificates.crt": nil, "out/mcp-code-sandbox": server,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
