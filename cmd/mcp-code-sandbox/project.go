package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/sandbox"
)

// takenMounts are the places inside a sandbox that are something already.
var takenMounts = []string{
	"/.sandbox-agent", "/bin", "/data", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/mnt", "/opt/runners",
	"/proc", "/sbin", "/sys", "/tmp", "/usr", "/workspace",
}

// checkProject says what is wrong with PROJECT_DIR or PROJECT_MOUNT, naming it. The root must be known.
func (s *settings) checkProject() error {
	if s.ProjectDir == "" {
		return nil
	}
	if !filepath.IsAbs(s.ProjectDir) {
		return fmt.Errorf("PROJECT_DIR: %q is not absolute; write it like /home/me/project", s.ProjectDir)
	}
	dir, err := filepath.EvalSymlinks(s.ProjectDir)
	if err != nil {
		return fmt.Errorf("PROJECT_DIR: %v; set it to a directory that exists", err)
	}
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return fmt.Errorf("PROJECT_DIR: %s is not a directory", s.ProjectDir)
	}
	if root := resolve(s.Root); overlap(dir, root) {
		return fmt.Errorf("PROJECT_DIR: %s and SANDBOX_ROOT (%s) must not lie in one another: code could read every session and key", s.ProjectDir, s.Root)
	}
	if s.Config != "" && overlap(resolve(s.Config), dir) {
		return fmt.Errorf("PROJECT_DIR: %s must not hold SANDBOX_CONFIG (%s): code could read the secrets in it", s.ProjectDir, s.Config)
	}
	s.ProjectDir = dir
	if !filepath.IsAbs(s.ProjectMount) || filepath.Clean(s.ProjectMount) != s.ProjectMount || s.ProjectMount == "/" || strings.ContainsAny(s.ProjectMount, "\x00\n") {
		return fmt.Errorf("PROJECT_MOUNT: %q is not a valid mount point; write it like /project", s.ProjectMount)
	}
	for _, taken := range takenMounts {
		if overlap(s.ProjectMount, taken) {
			return fmt.Errorf("PROJECT_MOUNT: %s would cover, or be covered by, the sandbox's own %s; use /project", s.ProjectMount, taken)
		}
	}
	return nil
}

// resolve follows the links of the part of path that exists.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if dir := filepath.Dir(path); dir != path {
		return filepath.Join(resolve(dir), filepath.Base(path))
	}
	return path
}

// overlap tells whether one path is the other, or lies in it.
func overlap(a, b string) bool {
	in := func(a, b string) bool {
		rel, err := filepath.Rel(b, a)
		return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
	}
	return in(a, b) || in(b, a)
}

// mountProject gives the project to every runner of the jail; wrappers mount it themselves.
func mountProject(s *settings, set runner.Set) (problems []runner.Problem) {
	if s.ProjectDir == "" {
		return nil
	}
	for i := range set {
		r := &set[i]
		if r.Wrapper != "" {
			continue
		}
		if j := slices.IndexFunc(r.Mounts, func(m sandbox.Mount) bool { return overlap(m.Target, s.ProjectMount) }); j >= 0 {
			problems = append(problems, runner.Problem{
				Runner: r.Name, Problem: "it has no project: PROJECT_MOUNT would cover " + r.Mounts[j].Target + ", which it needs", Fix: "set PROJECT_MOUNT to /project",
			})
			continue
		}
		r.Mounts = append(slices.Clone(r.Mounts), sandbox.Mount{Source: s.ProjectDir, Target: s.ProjectMount})
	}
	return problems
}
