//go:build unix

package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout bounds the start of Postgres on a busy machine.
const startTimeout = 2 * time.Minute

// script makes and runs a server in the directory $1, with the programs in $2, until stdin ends.
// The test program holds the other end, so the server ends with it, even after a crash. Lines of
// stdin stop and start the server.
const script = `
set -eu
dir=$1 bin=$2
trap 'rm -rf "$dir"' EXIT
"$bin/initdb" -D "$dir/data" -U "$USER_NAME" -A scram-sha-256 --pwfile="$dir/password" -E UTF8 --locale=C --no-sync
start() {
	"$bin/postgres" -D "$dir/data" -k "$dir" -c listen_addresses= -c fsync=off -c synchronous_commit=off \
		-c full_page_writes=off -c max_connections=200 -c shared_buffers=32MB &
	server=$!
}
stop() {
	kill -INT "$server"
	wait "$server" || true
	server=
}
start
while read -r command; do "$command"; done
kill -CONT "$server" # a test may have ended after Freeze
kill -QUIT "$server"
wait "$server" || true
`

// startServer starts Postgres.
func startServer() (instance, error) {
	bin, err := programs()
	if err != nil {
		return instance{}, err
	}
	dir, err := os.MkdirTemp("", "postgres-")
	if err != nil {
		return instance{}, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return instance{}, err
	}
	defer log.Close()
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte(Password), 0o600); err != nil {
		return instance{}, err
	}
	cmd := exec.Command("/bin/sh", "-c", script, "sh", dir, bin)
	cmd.Env = []string{"USER_NAME=" + User, "PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches it through stdin
	if os.Getuid() == 0 {                                 // as whom initdb refuses to work
		id, err := nobody()
		if err != nil {
			return instance{}, err
		}
		cmd.SysProcAttr.Credential = id
		for _, path := range []string{dir, log.Name(), password} {
			if err := os.Chown(path, int(id.Uid), int(id.Gid)); err != nil {
				return instance{}, err
			}
		}
	}
	commands, err := cmd.StdinPipe() // nobody closes it
	if err != nil {
		return instance{}, err
	}
	if err := cmd.Start(); err != nil {
		return instance{}, err
	}
	started := instance{dir, cmd.Process.Pid, commands}
	if err := started.await(); err != nil {
		said, _ := os.ReadFile(log.Name())
		return instance{}, fmt.Errorf("%w\n%s", err, said)
	}
	return started, nil
}

// await returns when the server answers, or its script has ended. No goroutine waits for the
// script: tests look for goroutines that are left.
func (s instance) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		db, err := pgx.Connect(ctx, URL(s.dir, "postgres"))
		if err == nil {
			return db.Close(ctx)
		}
		if ended, _ := syscall.Wait4(s.script, nil, syscall.WNOHANG, nil); ended == s.script {
			return fmt.Errorf("it has ended: %w", err)
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// Stop shuts the server down, and with it all connections, until start or the end of the test. No
// other test may use the server meanwhile.
func Stop(tb testing.TB) (start func()) {
	tb.Helper()
	s, err := server()
	if err != nil {
		tb.Fatal(err)
	}
	command := func(name string) {
		if _, err := io.WriteString(s.commands, name+"\n"); err != nil {
			tb.Fatal(err)
		}
	}
	command("stop")
	start = sync.OnceFunc(func() {
		command("start")
		if err := s.await(); err != nil {
			tb.Fatal(err)
		}
	})
	tb.Cleanup(start)
	late := time.After(startTimeout)
	for {
		if _, err := os.Stat(filepath.Join(s.dir, ".s.PGSQL.5432")); errors.Is(err, fs.ErrNotExist) {
			return start
		}
		select {
		case <-late:
			tb.Fatal("Postgres does not stop")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// programs returns the directory of initdb and postgres. Debian has one for each version, which is
// not on the PATH.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb"); len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	return "", errors.New("it is not installed: install the package postgresql")
}

func nobody() (*syscall.Credential, error) {
	u, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}
