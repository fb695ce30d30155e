package sandboxtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"mcp-code-sandbox/internal/userns"
)

// UserMode is how AsUser starts a test binary.
type UserMode string

// The kinds of server that an ordinary user may have.
const (
	UserOutside UserMode = "outside"   // no outer namespace
	UserAlone   UserMode = "alone"     // an outer namespace with the user's own id
	UserRange   UserMode = "withrange" // an outer namespace with subordinate ids
)

const modeEnv = "SANDBOXTEST_USER_MODE"

// CurrentUserMode returns how AsUser started this test binary, or "" if it did not.
func CurrentUserMode() UserMode { return UserMode(os.Getenv(modeEnv)) }

// enterOuterNamespace starts this test binary again in an outer namespace, if AsUser wants it. The
// binaries that it starts inherit the marker.
func enterOuterNamespace() {
	userns.Adopt(os.Getenv(userns.Marker))
	mode := CurrentUserMode()
	if mode == "" || mode == UserOutside {
		return
	}
	userns.Enter(os.Args[1:], os.Environ(), nil)
	if got := userns.Current(); !got.Inside || got.HasRange != (mode == UserRange) {
		fmt.Fprintf(os.Stderr, "mode %s, yet %+v\n", mode, got)
		os.Exit(1)
	}
}

// OrdinaryUser is a uid without an account. UserRange gives it one.
const OrdinaryUser = 123456

// prepareUser gives the user, in a mount namespace of its own: an account and subordinate ids if
// $1 is withrange, and /dev/net/tun as it is on most machines. $0 is a directory.
const prepareUser = `set -e
mode=$1 uid=$2
shift 2
mount -t tmpfs none "$0"
if [ "$mode" = withrange ]; then
	{ cat /etc/passwd; echo "sandboxtest:x:$uid:$uid::/:/bin/sh"; } > "$0/passwd"
	echo sandboxtest:1000000000:65536 > "$0/ids"
	touch /etc/subuid /etc/subgid
	mount --bind "$0/passwd" /etc/passwd
	mount --bind "$0/ids" /etc/subuid
	mount --bind "$0/ids" /etc/subgid
fi
if [ -e /dev/net/tun ]; then
	mknod -m 666 "$0/tun" c 10 200
	mount --bind "$0/tun" /dev/net/tun
fi
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups "$@"`

// FirstSubordinate is the first of the 65536 subordinate ids that UserRange gives to the user.
const FirstSubordinate = 1_000_000_000

// UserCommand returns a command line that runs argv as an ordinary user, in the same process. dir
// is an empty directory, which the user can read. Only root can run it.
func UserCommand(mode UserMode, uid int, dir string, argv ...string) []string {
	return append([]string{"unshare", "--mount", "sh", "-c", prepareUser, dir, string(mode), strconv.Itoa(uid)}, argv...)
}

// AsUser runs this test binary as an ordinary user, with arguments such as -test.run, and returns
// its output. Only root can.
func AsUser(t *testing.T, mode UserMode, args ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sandboxtest-user-") // not below a directory of root's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for name, perm := range map[string]os.FileMode{".": 0o755, "tmp": 0o700, "own": 0o755} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(path, perm); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, perm); err != nil {
			t.Fatal(err)
		}
	}
	tmp := filepath.Join(dir, "tmp")
	if err := os.Chown(tmp, OrdinaryUser, OrdinaryUser); err != nil {
		t.Fatal(err)
	}
	for name, source := range map[string]string{"test": "/proc/self/exe", "agent": AgentFile()} {
		b, err := os.ReadFile(source)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	args = append([]string{filepath.Join(dir, "test"), "-test.v", "-test.timeout=10m"}, args...)
	if testing.Short() {
		args = append(args, "-test.short")
	}
	become := UserCommand(mode, OrdinaryUser, filepath.Join(dir, "own"), args...)
	cmd := exec.CommandContext(t.Context(), become[0], become[1:]...)
	cmd.Dir = tmp
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "TMPDIR=" + tmp, "HOME=" + tmp, AgentEnv + "=" + filepath.Join(dir, "agent"),
		modeEnv + "=" + string(mode), RequireAll + "=" + os.Getenv(RequireAll),
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("as uid %d, %s: %v", OrdinaryUser, mode, err)
	}
	return strings.TrimSpace(string(out))
}
