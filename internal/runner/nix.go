package runner

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// nixTimeout is how long one flake reference may take to build.
const nixTimeout = 15 * time.Minute

// FindNix returns the path of nix, which builds the flake references, or the problem without it.
func FindNix(env map[string]string, refs []string) (string, *Problem) {
	if nix := environ(env).lookPath("nix"); nix != "" {
		return nix, nil
	}
	return "", &Problem{
		"NIX_SANDBOX_ENVS", fmt.Sprintf("nix is not installed: %s cannot be built", strings.Join(refs, ", ")),
		"install Nix (https://nixos.org/download), or build the environments elsewhere and set NIX_SANDBOX_DIR",
	}
}

// BuildFlakes builds each reference into a wrapper in dir and returns what failed.
func BuildFlakes(ctx context.Context, env map[string]string, refs []string, dir string, log *slog.Logger) (problems []Problem) {
	nix, problem := FindNix(env, refs)
	if problem != nil {
		return []Problem{*problem}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return []Problem{{"NIX_SANDBOX_ENVS", err.Error(), "make SANDBOX_ROOT writable"}}
	}
	for i, ref := range refs {
		log := log.With("ref", ref)
		log.Info("building an environment with nix", "number", i+1, "of", len(refs))
		start := time.Now()
		if err := buildFlake(ctx, env, nix, ref, filepath.Join(dir, "env-"+strconv.Itoa(i)), log); err != nil {
			problems = append(problems, Problem{"NIX_SANDBOX_ENVS", fmt.Sprintf("%s: %v", ref, err), "try: nix build " + ref})
			continue
		}
		log.Info("built an environment with nix", "duration_ms", time.Since(start).Milliseconds())
	}
	return problems
}

func buildFlake(ctx context.Context, env environ, nix, ref, out string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeoutCause(ctx, nixTimeout, fmt.Errorf("it was not built within %v", nixTimeout))
	defer cancel()
	return env.command(ctx, "", nil, func(line string) { log.Info("nix: " + line) }, nix, "build", ref, "-o", out)
}
