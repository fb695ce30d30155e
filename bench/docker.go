//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// dockerSide is a server on the docker backend, and containers of the same images for docker exec.
type dockerSide struct {
	server     *server
	program    string
	engine     string
	containers map[string]string // by image
}

// hardened are the flags that a careful server would give docker run.
var hardened = []string{
	"run", "--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--workdir", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
	"--memory", "512m", "--pids-limit", "256", "--log-driver", "none",
	"--env", "OMP_NUM_THREADS=1", "--env", "OPENBLAS_NUM_THREADS=1",
}

const (
	pythonImage = "runner-python"
	nodeImage   = "runner-typescript"
)

// docker starts the docker side once. Without an engine it returns nil, and the section says why.
func (b *bench) docker(ctx context.Context, s *section) (*dockerSide, error) {
	if b.dockerSide != nil {
		return b.dockerSide, nil
	}
	if b.engine == "" {
		s.leaveOut("docker", errors.New("no engine was named (scripts/engine says why there was none; or set -docker)"))
		return nil, nil
	}
	d := &dockerSide{engine: b.engine, program: "/usr/bin/docker", containers: map[string]string{}}
	if _, err := os.Stat(d.program); err != nil {
		if d.program, err = exec.LookPath("docker"); err != nil {
			s.leaveOut("docker", errors.New("the docker command is not installed"))
			return nil, nil
		}
	}
	for _, image := range []string{pythonImage, nodeImage} {
		name := fmt.Sprintf("bench-%d-%s", os.Getpid(), image)
		_, err := d.docker(append(hardened[:len(hardened):len(hardened)], "--detach", "--name", name, "--entrypoint", "sleep", image, "infinity")...)(ctx)
		if err != nil {
			d.stop()
			return nil, fmt.Errorf("docker run %s: %w: are the images on the engine? (make images)", image, err)
		}
		d.containers[image] = name
	}
	var err error
	if d.server, err = b.startServer(ctx, kind{name: dockerKind}, "shared", "SANDBOX_BACKEND=docker", "DOCKER_HOST="+b.engine); err != nil {
		d.stop()
		return nil, err
	}
	b.dockerSide = d
	return d, nil
}

func (d *dockerSide) docker(args ...string) func(context.Context) ([]byte, error) {
	return command("", nil, append([]string{d.program, "--host", d.engine}, args...)...)
}

// commands returns docker's own ways to run a piece of work.
func (d *dockerSide) commands(b *bench, w work) []contender {
	image, program := pythonImage, w.plain[0]
	switch program {
	case "python":
		program = "/opt/runners/python/bin/python"
	case "node":
		image = nodeImage
	}
	args := append([]string{image}, w.plain[1:]...)
	args = append(args, w.command())
	run := append(hardened[:len(hardened):len(hardened)], "--entrypoint", program)
	exec := append([]string{"exec", d.containers[image], program}, args[1:]...)
	return []contender{
		{name: "docker exec", n: b.scaled(w.slow), do: d.docker(exec...), want: w.want},
		{name: "docker run", n: b.scaled(w.slow), do: d.docker(append(run, args...)...), want: w.want, rest: 5 * pause},
	}
}

func (d *dockerSide) stop() {
	if d == nil {
		return
	}
	d.server.stop()
	var errs []error
	for _, name := range d.containers {
		_, err := d.docker("rm", "--force", name)(context.Background())
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}
