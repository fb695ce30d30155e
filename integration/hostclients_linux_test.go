package integration

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mcp-code-sandbox/internal/egress/egresstest"
	"mcp-code-sandbox/internal/store/storetest"
)

// envWheels names a directory of wheels, for a test binary that another one started.
const envWheels = "SANDBOX_TEST_WHEELS"

// downloadWheels downloads packages and what they need, from the index that this host's pip uses.
func downloadWheels(t *testing.T, packages ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(runners, "python", "bin", "python"),
		append([]string{"-m", "pip", "download", "-q", "--no-input", "--only-binary=:all:", "-d", dir}, packages...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		skip(t, "the wheels cannot be downloaded: %v\n%s", err, out)
	}
	return dir
}

// simpleIndex serves a directory of wheels as a package index: each package's page lists them all.
func simpleIndex(dir string) http.Handler {
	files, mux := http.FileServer(http.Dir(dir)), http.NewServeMux()
	mux.HandleFunc("GET /simple/{name}/{file...}", func(w http.ResponseWriter, r *http.Request) {
		http.StripPrefix("/simple/"+r.PathValue("name"), files).ServeHTTP(w, r)
	})
	return mux
}

// repository returns the directory of a Git repository with one commit, for a server of files.
func repository(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, args := range []string{"init -q", "-c user.name=ann -c user.email=ann@example.com commit -q --allow-empty -m first-commit", "update-server-info"} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, strings.Fields(args)...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v\n%s", args, err, out)
		}
	}
	return filepath.Join(dir, ".git")
}

// toSocket passes connections on to a server that listens on a Unix socket.
func toSocket(t *testing.T, path string) func(net.Conn) {
	return func(c net.Conn) {
		server, err := net.Dial("unix", path)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		go func() {
			_, _ = io.Copy(server, c)
			_ = server.(*net.UnixConn).CloseWrite()
		}()
		_, _ = io.Copy(c, server)
	}
}

// startRedis starts Redis and returns its socket. Debian's redis-tools has the server as
// redis-check-rdb: the program decides by its name what it does.
func startRedis(t *testing.T) (socket string) {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if program, err = exec.LookPath("redis-check-rdb"); err != nil {
			skip(t, "Redis is not installed: install the package redis-tools")
		}
	}
	socket = filepath.Join(t.TempDir(), "redis")
	cmd := exec.Command(program)
	cmd.Args = []string{"redis-server", "--port", "0", "--unixsocket", socket, "--save", ""}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	eventually(t, 20*time.Second, "Redis to listen", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return socket
}

// pipInstall installs libraries that the environment does not have.
const pipInstall = `import os, subprocess, sys
subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--target', '/data/lib', '--index-url', 'https://index.example.com/simple', 'httpx', 'redis'], check=True)
print(*sorted(os.listdir('/data/lib')))`

// TestHostClients: with packages off, pip installs from an index that its run names. What it
// installs and other clients reach real servers: Git's files, Postgres and Redis.
func TestHostClients(t *testing.T) {
	wheels := os.Getenv(envWheels)
	if wheels == "" {
		wheels = downloadWheels(t, "httpx", "redis", "async-timeout", "typing-extensions") // the last two for older Pythons
	}
	w, s := enterHosts(t, `{"allow": ["api.example.com", "code.example.com", "index.example.com", "db.example.com:5433", "cache.example.com:6379"]}`, envWheels+"="+wheels)
	if w == nil {
		return
	}
	for _, name := range []string{"api.example.com", "code.example.com", "index.example.com", "db.example.com", "cache.example.com"} {
		w.Name(name, egresstest.Public)
	}
	w.Site("code.example.com", http.FileServer(http.Dir(repository(t))))
	w.Site("index.example.com", simpleIndex(wheels))
	w.Serve(t, egresstest.Public+":6379", toSocket(t, startRedis(t)))
	database, err := url.Parse(storetest.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(t, egresstest.Public+":5433", toSocket(t, filepath.Join(database.Query().Get("host"), ".s.PGSQL.5432")))
	database.Host, database.RawQuery = "db.example.com:5433", ""

	const lib = "import sys; sys.path.append('/data/lib')\n"
	for _, tt := range []struct{ name, language, host, code, want string }{
		{"pip", "python", "index.example.com", pipInstall, " httpx "},
		{"httpx", "python", "api.example.com", lib + "import httpx\nprint(httpx.get('https://api.example.com/h').text)", "GET /h host=api.example.com"},
		{"httpx async", "python", "api.example.com", lib + `import asyncio, httpx
async def main():
    async with httpx.AsyncClient() as client:
        answers = await asyncio.gather(*(client.post(f'https://api.example.com/{i}', content='abc') for i in range(8)))
        print(answers[7].text)
asyncio.run(main())`, "POST /7 host=api.example.com body=3"},
		{"git", "shell", "code.example.com", "git clone -q https://code.example.com/ /tmp/code && git -C /tmp/code log --format=%s", "first-commit"},
		{"redis", "python", "cache.example.com:6379", lib + `import redis
r = redis.Redis('cache.example.com')
r.set('kept', 'x' * 1000000)
print(len(r.get('kept')), r.info('server')['redis_mode'])`, "1000000 standalone"},
		{"redis-cli", "shell", "cache.example.com:6379", "redis-cli -h cache.example.com ECHO hello", "hello"},
		{"psycopg2", "python", "db.example.com:5433", fmt.Sprintf(`import psycopg2
with psycopg2.connect('%s') as db, db.cursor() as c:
    c.execute("SELECT repeat('x', 3000000), version()")
    text, version = c.fetchone()
    print(len(text), version)`, database), "3000000 PostgreSQL"},
		{"pg", "javascript", "db.example.com:5433", fmt.Sprintf(`const { default: pg } = await import('pg');
const client = new pg.Client('%s');
await client.connect();
console.log((await client.query('SELECT 6 * 7 AS n')).rows[0]);
await client.end();`, database), "{ n: 42 }"},
		{"psql", "shell", "db.example.com:5433", fmt.Sprintf("psql -Atc 'SELECT 6 * 7' '%s'", database), "42"},
	} {
		if onDocker() && tt.language == "shell" {
			continue // its image has none of the clients
		}
		start := time.Now()
		if r := s.runHosts(t, tt.language, tt.code, []string{tt.host}); !r.Success || !strings.Contains(r.Output, tt.want) || len(r.Blocked) > 0 {
			t.Errorf("%s: %+v", tt.name, r)
		}
		t.Logf("%s: %d ms", tt.name, time.Since(start).Milliseconds())
	}

	// Where a run does not name the host, the result says which entry does.
	for host, code := range map[string]string{
		"db.example.com:5433": fmt.Sprintf("import psycopg2\npsycopg2.connect('%s')", database),
		"api.example.com":     lib + "import httpx\nhttpx.get('https://api.example.com/')",
	} {
		r := s.runHosts(t, "python", code, []string{})
		if r.Success || len(r.Blocked) != 1 || r.Blocked[0].Rule != host || !strings.Contains(r.Hint, fmt.Sprintf("hosts: [%q]", host)) {
			t.Errorf("%s without hosts: %+v", host, r)
		}
	}
}
