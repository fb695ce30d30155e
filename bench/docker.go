//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// benchDocker measures the docker backend beside the docker command doing the same. It prints a table of its own.
func benchDocker(binary, root, engine string, n int) error {
	if engine == "" {
		fmt.Println("\nThe docker backend was left out: no engine was named.")
		return nil
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	const (
		image  = "runner-python"
		python = "/opt/runners/python/bin/python"
		code   = "print(2+2)"
	)
	// What a server would do with the command: no network, no rights, nothing left.
	hardened := []string{
		"run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--memory", "512m", "--pids-limit", "256", "--log-driver", "none",
	}
	docker := func(args ...string) func() error {
		return command("docker", append([]string{"--host", engine}, args...)...)
	}
	run := func(args ...string) []string { return append(hardened[:len(hardened):len(hardened)], args...) }

	name := fmt.Sprintf("bench-%d", os.Getpid())
	if err := docker(run("--detach", "--name", name, "--entrypoint", "sleep", image, "infinity")...)(); err != nil {
		return fmt.Errorf("docker run %s: %w: are the images on the engine? (make images)", image, err)
	}
	defer docker("rm", "--force", name)()

	s, err := startServer(binary, root, "SANDBOX_BACKEND=docker", "DOCKER_HOST="+engine)
	if err != nil {
		return err
	}
	defer s.stop()
	var fresh int
	t := &table{base: "docker exec"}
	err = measure(t, 0, []kind{
		{"docker exec python", docker("exec", name, python, "-c", code), n},
		{"docker run python", docker(run("--entrypoint", python, image, "-c", code)...), n / 3},
		{"run_code python on docker, warm, through HTTP", func() error { return s.run("warm", "python", code) }, n},
		{"run_code python on docker, first run of a session", func() error {
			fresh++
			return s.run(fmt.Sprintf("new-%d-%d", os.Getpid(), fresh), "python", code)
		}, n / 3},
		{"run_code typescript on docker, warm", func() error {
			return s.run("warm", "typescript", "const x: number = 4; console.log(x)")
		}, n / 2},
	})
	if err == nil {
		fmt.Print("\n" + t.String())
	}
	return err
}
