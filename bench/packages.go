//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mcp-code-sandbox/internal/packages"
)

// requirement is a wheel with a dependency that the runner does not have.
const requirement = "httpcore==1.0.7"

// packages compares an installation in a sandbox with the same pip on the host, with the index that
// the host's pip uses.
func (b *bench) packages(ctx context.Context) (*section, error) {
	s := &section{Title: "Packages", Header: []string{"install " + requirement, "p50", "of pip on the host"}}
	env := map[string]string{}
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	list, _, err := packages.Host{Env: env, ReadFile: os.ReadFile}.Indexes(ctx, packages.PyPI)
	if err != nil {
		s.leaveOut("everything", err)
		return s, nil
	}
	own, err := b.own(ctx)
	if err != nil {
		return nil, err
	}
	ways := []string{"pip on the host", "a session, nothing cached", "another session", "the same session again"}
	all := make([][]time.Duration, len(ways))
	for i := range b.scaled(15) {
		server, err := b.startServer(ctx, own, fmt.Sprint("packages-", i), "SANDBOX_PACKAGES=pypi")
		if err != nil {
			return nil, err
		}
		if _, err := server.run(ctx, "warm-up", "python", "print(1)"); err != nil {
			return nil, err
		}
		for way, install := range []func() error{
			func() error { return b.pipInstall(ctx, filepath.Join(b.dir, fmt.Sprint("site-", i))) },
			func() error { return installIn(ctx, server, "first") },
			func() error { return installIn(ctx, server, "second") },
			func() error { return installIn(ctx, server, "second") },
		} {
			start := time.Now()
			if err := install(); err != nil {
				return nil, err
			}
			all[way] = append(all[way], time.Since(start))
		}
		server.stop()
	}
	plain := percentile(all[0], 50)
	for way, name := range ways {
		took := percentile(all[way], 50)
		ratio := float64(took) / float64(plain)
		s.row(name, ms(took), times(ratio))
		s.set("packages "+name+" "+own.name, ratio)
	}
	m, err := startMirror(list, filepath.Join(b.dir, "cache"))
	if err != nil {
		return nil, err
	}
	defer m.stop()
	most, err := m.hundred()
	if err != nil {
		return nil, err
	}
	s.row("most downloads of one file by 100 clients at once", fmt.Sprint(most), "")
	start := time.Now()
	for i := range 10_000 {
		m.Grant("bench", fmt.Sprint(i), "box")
		m.Release(fmt.Sprint(i))
	}
	s.row("added to each run while packages are on", ms(time.Since(start)/10_000), "")
	return s, nil
}

// installIn runs code that needs the package.
func installIn(ctx context.Context, s *server, session string) error {
	_, err := s.call(ctx, "run_python", "installed-1", map[string]any{
		"session_id": session, "code": "import httpcore; print('installed-' + httpcore.__version__)", "packages": []string{requirement},
	})
	return err
}

// pipInstall installs the requirement into dir with the runner's pip, on the host. It knows the
// runner's libraries.
func (b *bench) pipInstall(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, b.program("python"), "-m", "pip", "install", "-q", "--no-cache-dir", "--only-binary", ":all:", "--prefix", dir, requirement)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pip: %w: %s", err, out)
	}
	return nil
}

// pipMirror is a mirror on loopback.
type pipMirror struct {
	*packages.Mirror
	front *httptest.Server
}

func startMirror(list []packages.Index, cache string) (*pipMirror, error) {
	p := &pipMirror{front: httptest.NewUnstartedServer(nil)}
	var err error
	p.Mirror, err = packages.New(packages.Config{Kinds: map[string]packages.Kind{packages.PyPI: {Indexes: list}}, MinAge: packages.DefaultMinAge,
		WheelsOnly: true, CacheDir: cache, Base: "http://" + p.front.Listener.Addr().String() + "/packages"})
	if err != nil {
		return nil, err
	}
	p.front.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.ServeSandbox(w, r, "box") })
	p.front.Start()
	p.Grant("bench", "run", "box")
	return p, nil
}

func (p *pipMirror) stop() {
	p.Release("run")
	p.front.Close()
	_ = p.Close()
}

// hundred lets a hundred clients get the files of a few packages at once, and returns how often a
// file was downloaded.
func (p *pipMirror) hundred() (downloads float64, err error) {
	var wanted []string
	for _, name := range []string{"httpcore", "h11", "certifi"} {
		body, err := p.get("/packages/pypi/simple/" + name + "/")
		if err != nil {
			return 0, err
		}
		file := regexp.MustCompile(`\.\./\.\./(files/[^"#]+\.whl)#`).FindSubmatch(body)
		if file == nil {
			return 0, fmt.Errorf("the index has no wheel of %s", name)
		}
		wanted = append(wanted, "/packages/pypi/"+string(file[1]))
	}
	var failed atomic.Int32
	var group sync.WaitGroup
	for range 100 {
		group.Go(func() {
			for _, path := range wanted {
				if _, err := p.get(path); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	group.Wait()
	if n := failed.Load(); n > 0 {
		return 0, fmt.Errorf("%d of %d downloads failed", n, 100*len(wanted))
	}
	return float64(p.Downloads()) / float64(len(wanted)), nil
}

func (p *pipMirror) get(path string) ([]byte, error) {
	resp, err := http.Get(p.front.URL + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", path, resp.Status)
	}
	return io.ReadAll(resp.Body)
}
