package doctor

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/userns"
)

// System returns the machine that this runs on.
func System() Host {
	server, _ := os.Executable() // it only appears in advice
	return Host{
		OS:       "linux",
		UID:      userns.UID(),
		Outer:    userns.Current(),
		Server:   server,
		ReadFile: os.ReadFile,
		Exists:   func(path string) bool { _, err := os.Stat(path); return err == nil },
		Writable: func(path string) bool { return unix.Access(path, unix.W_OK) == nil },
		LookPath: exec.LookPath,
		Output: func(ctx context.Context, program string, args ...string) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
			out, err := cmd.CombinedOutput()
			return string(out), err
		},
		Owner: func(path string) (uid int, err error) {
			var st unix.Stat_t
			err = unix.Stat(path, &st)
			return int(st.Uid), err
		},
		Free: func(path string) (uint64, error) {
			for { // path may not exist yet
				var st unix.Statfs_t
				err := unix.Statfs(path, &st)
				if err == nil {
					return st.Bavail * uint64(st.Bsize), nil
				}
				if up := filepath.Dir(path); up != path && os.IsNotExist(err) {
					path = up
					continue
				}
				return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
			}
		},
	}
}
