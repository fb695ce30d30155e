package docker

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

// maxPasswd bounds how much of /etc/passwd is read.
const maxPasswd = 16 << 20

// checkUser warns if code has, outside its container, the uid of a user who can log in to this
// machine. It returns nothing if the engine's machine is another one.
func (b *Backend) checkUser(e *engine) []sandbox.Check {
	_, owner := e.user()
	if owner.uid < 0 || e.mapped || e.rootless || !b.sharesMachine(e) {
		return nil
	}
	f, err := os.Open("/etc/passwd")
	if err != nil {
		return nil
	}
	defer f.Close()
	name := loginOf(f, owner.uid)
	if name == "" {
		return nil
	}
	return []sandbox.Check{{
		Name: "user", Status: sandbox.Warn,
		Detail: fmt.Sprintf("code in containers is uid %d, which on this machine is %s, who can log in: "+
			"code that escapes has what that user has, also sudo", owner.uid, name),
		Fix: `map users: put "userns-remap": "default" into /etc/docker/daemon.json and restart the engine; then uids in ` +
			"containers are other ones outside, which own nothing (run make images again: the engine starts with none)",
	}}
}

// sharesMachine reports whether the engine runs on this machine, with the same accounts.
func (b *Backend) sharesMachine(e *engine) bool {
	if runtime.GOOS != "linux" || !strings.HasPrefix(b.client.DaemonHost(), "unix://") || b.cfg.HostRoot != "" {
		return false
	}
	host, err := os.Hostname()
	_, derr := os.Stat(e.dir) // missing if this server is in a container or the engine in a virtual machine
	return err == nil && host == e.machine && e.dir != "" && derr == nil
}

// noLogin lists shells that end a login at once.
var noLogin = []string{"nologin", "false", "true", "sync", "halt", "shutdown"}

// loginOf returns the quoted name of the account in a passwd file that has the uid and a shell, or
// "". It skips invalid lines.
func loginOf(passwd io.Reader, uid int) string {
	lines := bufio.NewScanner(io.LimitReader(passwd, maxPasswd))
	lines.Buffer(nil, maxPasswd)
	for lines.Scan() {
		f := strings.Split(lines.Text(), ":") // name, password, uid, gid, comment, home, shell
		if len(f) != 7 || f[0] == "" || strings.HasPrefix(f[0], "#") {
			continue
		}
		n, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || int64(n) != int64(uid) {
			continue
		}
		if shell := strings.TrimSpace(f[6]); !slices.Contains(noLogin, path.Base(shell)) { // an empty one is /bin/sh
			return fmt.Sprintf("%.64q", f[0])
		}
	}
	return ""
}
