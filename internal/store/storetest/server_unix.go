//go:build unix

package storetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout bounds the start of Postgres on a busy machine.
const startTimeout = 2 * time.Minute

// script makes and runs a server in the directory $1, with the programs in $2, until stdin ends.
// The test program holds the other end, so the server ends with it, even after a crash.
const script = `
set -eu
dir=$1 bin=$2
trap 'rm -rf "$dir"' EXIT
"$bin/initdb" -D "$dir/data" -U "$USER_NAME" -A scram-sha-256 --pwfile="$dir/password" -E UTF8 --locale=C --no-sync
"$bin/postgres" -D "$dir/data" -k "$dir" -c listen_addresses= -c fsync=off -c synchronous_commit=off \
	-c full_page_writes=off -c max_connections=200 -c shared_buffers=32MB &
server=$!
read -r _ || true
kill -CONT "$server" # a test may have ended after Freeze
kill -QUIT "$server"
wait "$server" || true
`

// startServer starts Postgres and returns the directory of its socket.
func startServer() (string, error) {
	bin, err := programs()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "postgres-")
	if err != nil {
		return "", err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte(Password), 0o600); err != nil {
		return "", err
	}
	cmd := exec.Command("/bin/sh", "-c", script, "sh", dir, bin)
	cmd.Env = []string{"USER_NAME=" + User, "PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches it through stdin
	if os.Getuid() == 0 {                                 // as whom initdb refuses to work
		id, err := nobody()
		if err != nil {
			return "", err
		}
		cmd.SysProcAttr.Credential = id
		for _, path := range []string{dir, log.Name(), password} {
			if err := os.Chown(path, int(id.Uid), int(id.Gid)); err != nil {
				return "", err
			}
		}
	}
	if _, err := cmd.StdinPipe(); err != nil { // cmd keeps it open for life
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := awaitServer(dir, ended); err != nil {
		said, _ := os.ReadFile(log.Name())
		return "", fmt.Errorf("%w\n%s", err, said)
	}
	return dir, nil
}

// awaitServer returns when the server answers, or has ended.
func awaitServer(dir string, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		db, err := pgx.Connect(ctx, URL(dir, "postgres"))
		if err == nil {
			return db.Close(ctx)
		}
		select {
		case ended := <-ended:
			return fmt.Errorf("it has ended: %w", errors.Join(ended, err))
		case <-ctx.Done():
			return err
		case <-tick.C:
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
