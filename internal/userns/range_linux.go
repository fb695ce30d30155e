package userns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"

	"mcp-code-sandbox/internal/sandbox"
)

// mapUser makes the user 0 in the namespace of a process. No other id exists there.
func mapUser(pid int) error {
	dir := fmt.Sprintf("/proc/%d/", pid)
	for _, file := range []struct{ name, text string }{
		{"setgroups", "deny"}, // or the kernel refuses the map of groups
		{"uid_map", fmt.Sprintf("0 %d 1", os.Geteuid())},
		{"gid_map", fmt.Sprintf("0 %d 1", os.Getegid())},
	} {
		if err := os.WriteFile(dir+file.name, []byte(file.text), 0); err != nil {
			return err
		}
	}
	return nil
}

// mapRange makes the user 0 in the namespace of a process, and the user's subordinate ids 1 to
// MaxID.
func mapRange(pid int) error {
	account, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil {
		return &sandbox.Error{Op: "find subordinate ids", Err: fmt.Errorf("uid %d has no account", os.Geteuid()), Fix: "run the server as a user of /etc/passwd"}
	}
	for _, m := range []struct {
		program, file string
		own           int
		option        []string
	}{
		{"newuidmap", "/etc/subuid", os.Geteuid(), nil},
		{"newgidmap", "/etc/subgid", os.Getegid(), []string{"-g"}},
	} {
		path, err := exec.LookPath(m.program)
		if err != nil {
			return &sandbox.Error{Op: "find subordinate ids", Err: errors.New(m.program + " is not installed"), Fix: "sudo apt-get install uidmap"}
		}
		start, ok := subordinate(m.file, account)
		if !ok {
			start, ok = askSubids(append(m.option, account.Username))
		}
		if !ok {
			return &sandbox.Error{
				Op: "find subordinate ids", Err: fmt.Errorf("%s gives %s no range of %d ids", m.file, account.Username, MaxID),
				Fix: fixRange(account.Username, "/etc/subuid", "/etc/subgid"),
			}
		}
		cmd := exec.Command(path, fmt.Sprint(pid), "0", fmt.Sprint(m.own), "1", "1", fmt.Sprint(start), fmt.Sprint(MaxID))
		cmd.Dir, cmd.Env = "/", []string{}
		if out, err := cmd.CombinedOutput(); err != nil {
			return &sandbox.Error{
				Op: "map subordinate ids", Err: fmt.Errorf("%s: %w: %s", m.program, err, strings.TrimSpace(string(out))),
				Fix: "let " + path + " be setuid root, and start the server without NoNewPrivileges",
			}
		}
	}
	return nil
}

// fixRange returns a command that gives the user ids that no line of the files has, from 100000 on.
func fixRange(name string, files ...string) string {
	const none = 1 << 31 // no account gets ids from here on
	start := int64(100_000)
	for _, file := range files {
		text, _ := os.ReadFile(file) // usermod makes it
		for line := range strings.Lines(string(text)) {
			_, ids, _ := strings.Cut(strings.TrimSpace(line), ":")
			var first, count int64
			if n, _ := fmt.Sscanf(ids, "%d:%d", &first, &count); n == 2 && count > 0 && first < none-count-MaxID {
				start = max(start, first+count)
			}
		}
	}
	return fmt.Sprintf("sudo usermod --add-subuids %d-%[2]d --add-subgids %[1]d-%[2]d %s", start, start+MaxID, name)
}

// subordinate finds a range of at least MaxID ids for the user in /etc/subuid or /etc/subgid.
func subordinate(file string, account *user.User) (start int64, ok bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		owner, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		if owner == account.Username || owner == account.Uid {
			if start, ok := parseRange(strings.ReplaceAll(rest, ":", " ")); ok {
				return start, true
			}
		}
	}
	return 0, false
}

// askSubids asks getsubids, which knows directories such as LDAP. It prints lines like
// "0: alice 100000 65536".
func askSubids(args []string) (start int64, ok bool) {
	out, err := exec.Command("getsubids", args...).Output()
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) == 4 {
			if start, ok := parseRange(fields[2] + " " + fields[3]); ok {
				return start, true
			}
		}
	}
	return 0, false
}

// parseRange parses "start count", if it is large enough.
func parseRange(text string) (start int64, ok bool) {
	var count int64
	n, err := fmt.Sscanf(text, "%d %d", &start, &count)
	return start, err == nil && n == 2 && start > 0 && count >= MaxID
}
