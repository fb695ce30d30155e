//go:build linux

// Command bench measures the built server beside plain processes, bubblewrap and docker's own
// commands, in one run, so that ratios mean something on a noisy machine. `make bench` starts it
// and it writes bench/RESULTS.md; `make guard` compares a few ratios with their limits. It reaches
// the server through HTTP only, except for the execution proxy, which it measures within one
// process.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run of the program.
type bench struct {
	binary  string // the built server
	runners string // prepared language environments
	dir     string // of this run; removed at its end
	engine  string // address of a Docker engine, or empty
	quick   bool
	part    int           // of the measurements are taken: all, or one in so many
	budget  time.Duration // for the contenders of a part
	session int           // number of the last new one

	user       *ordinaryUser   // made once; nil if this process is not root's
	started    []*server       // to be ended
	windows    map[string]kind // by data directory: servers that windows share, to be ended
	excesses   []error         // of idle sessions, for the guard
	shared     []kind          // with a server each that many parts use
	missing    error           // why a kind of server is not measured
	dockerSide *dockerSide
}

// part measures one thing.
type part struct {
	name string
	do   func(context.Context) (*section, error)
}

func (b *bench) parts() []part {
	var parts []part
	for _, name := range []string{"python", "pandas", "plot", "typescript", "shell"} {
		parts = append(parts, part{name, b.latency(works[name])})
	}
	return append(parts, part{"stdio", b.stdio}, part{"backtoback", b.backToBack}, part{"throughput", b.throughput}, part{"memory", b.pandasMemory},
		part{"sessions-root", b.sessions(rootKind)}, part{"sessions-ordinary", b.sessions(ordinaryKind)},
		part{"hostile", b.hostile}, part{"download", b.download}, part{"proxy", b.proxy}, part{"packages", b.packages})
}

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	binary := flags.String("server", "bin/mcp-code-sandbox", "the built server")
	root := flags.String("root", ".cache/bench", "where to put data of servers, and finished parts")
	runners := flags.String("runners", ".cache/runners", "prepared language environments")
	engine := flags.String("docker", os.Getenv("SANDBOX_TEST_DOCKER_HOST"), "address of a Docker engine that has the runner images; empty: docker is left out")
	filter := flags.String("run", "", "measure only the parts whose name this expression matches, and print them")
	quick := flags.Bool("quick", false, "take fewer measurements, open fewer sessions, and only print")
	budget := flags.Duration("budget", 70*time.Second, "end a part after this time, if all its contenders have been measured a few times")
	guard := flags.Bool("guard", false, "compare a few ratios with what is allowed, and fail if one is worse three times in a row")
	out := flags.String("o", "bench/RESULTS.md", "the file to write when all parts are measured in full")
	pages := flags.String("pages", ".", "the checkout whose pages show figures; they are written with the results")
	_ = flags.Parse(args)
	syscall.Umask(0o022) // ordinary users must reach what is made here
	wanted, err := regexp.Compile(*filter)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}

	b := &bench{windows: map[string]kind{}, engine: *engine, quick: *quick || *guard, part: 1, budget: *budget}
	switch {
	case *guard:
		b.part = 2
	case *quick:
		b.part = 4
	}
	if b.binary, err = filepath.Abs(*binary); err != nil {
		return err
	}
	if b.runners, err = filepath.Abs(*runners); err != nil {
		return err
	}
	if _, err := os.Stat(b.program("python")); err != nil {
		return fmt.Errorf("no language environments: %w (make bench prepares them)", err)
	}
	if err := os.MkdirAll(*root, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(*root, "run-")
	if err != nil {
		return err
	}
	if b.dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := os.Chmod(b.dir, 0o755); err != nil { // sandboxes of a root server have another user
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()

	if *guard {
		return b.guard(ctx)
	}
	build, err := b.build()
	if err != nil {
		return err
	}
	if *filter != "" || b.quick {
		sections, err := b.measureParts(ctx, build, func(name string) bool { return wanted.MatchString(name) }, nil)
		fmt.Print(render(b.machine(ctx), sections))
		return err
	}
	shelf := &shelf{filepath.Join(*root, "parts")}
	sections, err := b.measureParts(ctx, build, func(string) bool { return true }, shelf)
	if err != nil {
		return fmt.Errorf("%w\nThe parts that are finished are kept: the next run goes on from there", err)
	}
	all := valuesOf(sections)
	if err := os.WriteFile(*out, []byte(render(b.machine(ctx), sections)), 0o644); err != nil {
		return err
	}
	if err := writeFigures(*pages, all); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "bench: wrote %s and the tables of %s\n%s", *out, strings.Join(figurePaths(), ", "), goalsTable(all))
	return shelf.clear()
}

// measureParts measures the wanted parts that the shelf does not have. The shelf may be nil.
func (b *bench) measureParts(ctx context.Context, build string, wanted func(name string) bool, kept *shelf) (sections []*section, err error) {
	start := time.Now()
	for _, p := range b.parts() {
		if !wanted(p.name) {
			continue
		}
		if kept != nil {
			s, err := kept.get(p.name, build)
			if err != nil {
				return sections, err
			}
			if s != nil {
				fmt.Fprintf(os.Stderr, "bench: %s: from the run that was interrupted\n", p.name)
				sections = append(sections, s)
				continue
			}
		}
		began := time.Now()
		s, err := p.do(ctx)
		if err := cmp.Or(ctx.Err(), err); err != nil {
			return sections, fmt.Errorf("%s: %w", p.name, err)
		}
		s.Build, s.Took = build, time.Since(began)
		if b.missing != nil {
			s.Notes = append(s.Notes, b.missing.Error())
		}
		fmt.Fprintf(os.Stderr, "bench: %s: %.0f s, %.0f s in all\n", p.name, s.Took.Seconds(), time.Since(start).Seconds())
		sections = append(sections, s)
		if kept != nil {
			if err := kept.put(p.name, s); err != nil {
				return sections, err
			}
		}
	}
	return sections, nil
}

// build identifies the built server and the bench itself.
func (b *bench) build() (string, error) {
	h := sha256.New()
	for _, path := range []string{b.binary, "/proc/self/exe"} {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("no server: %w (make build)", err)
		}
		_, err = io.Copy(h, f)
		_ = f.Close()
		if err != nil {
			return "", err
		}
	}
	settings := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return !strings.HasPrefix(kv, "SANDBOX_") || strings.HasPrefix(kv, "SANDBOX_TEST_")
	})
	slices.Sort(settings)
	fmt.Fprint(h, b.quick, b.engine != "", settings)
	return hex.EncodeToString(h.Sum(nil)), nil
}

// scaled adjusts a number of measurements to the mode.
func (b *bench) scaled(n int) int {
	return max(min(n, 5), n/b.part)
}

// newSession returns a session name that was not used before.
func (b *bench) newSession() string {
	b.session++
	return fmt.Sprintf("new-%d", b.session)
}

// close ends everything that was started and removes everything that was written.
func (b *bench) close() error {
	for _, s := range b.started {
		s.stop()
	}
	b.dockerSide.stop()
	var errs []error
	for root, k := range b.windows {
		errs = append(errs, b.endShared(k, root))
	}
	b.user.close()
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}
