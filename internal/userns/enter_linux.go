package userns

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
)

// allowNamespaces is the fix where this package cannot name another one.
const allowNamespaces = "allow user namespaces; docs/isolation.md says what the server does with one"

// entered is what the marker says, as JSON.
type entered struct {
	NS       uint64 // inode of the namespace
	FD       int    // of the namespace
	Program  int    // descriptor of the program; 0: none
	UID, GID int    // outside
	Problem  string // why there is no subordinate range
	Fix      string
}

// Enter starts this program again, in the same process, in an outer namespace. It returns if that
// is impossible or unnecessary; Current says why. environ is the environment without the marker.
// noRange, if not nil, says why sandboxes must not have the namespace's subordinate ids.
func Enter(args, environ []string, noRange error) {
	if os.Geteuid() == 0 || status.Inside || status.Problem != nil {
		return
	}
	status.Problem = enter(args, environ, noRange)
}

func enter(args, environ []string, noRange error) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return problem(errors.New("nsenter is not installed"), "apt-get install util-linux")
	}
	self, program, err := findSelf()
	if err != nil {
		return problem(err, allowNamespaces)
	}
	defer program.Close()
	e := entered{UID: os.Geteuid(), GID: os.Getegid()}
	e.Problem, e.Fix = Status{Problem: noRange}.Explain()
	ns, err := createUsable(nsenter, environ, mapRange)
	if err != nil {
		e.Problem, e.Fix = Status{Problem: err}.Explain()
		ns, err = createUsable(nsenter, environ, mapUser)
	}
	if err != nil {
		return problem(err, allowNamespaces)
	}
	defer ns.Close()
	if e.FD, err = inherit(ns); err != nil {
		return problem(err, allowNamespaces)
	}
	e.NS = inode(e.FD)
	if program != nil {
		if e.Program, err = inherit(program); err != nil {
			return problem(err, allowNamespaces)
		}
	}
	marker, err := json.Marshal(e)
	if err == nil {
		err = syscall.Exec(nsenter, slices.Concat(command(e.FD), []string{self}, args),
			slices.Concat(environ, []string{Marker + "=" + string(marker)}))
	}
	return problem(err, allowNamespaces)
}

// inherit lets the program that replaces this one have a file, and returns its descriptor.
func inherit(f *os.File) (fd int, err error) {
	fd = int(f.Fd())
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETFD, 0)
	return fd, err
}

// findSelf returns the path of this program. If an upgrade has replaced the file, that is the path
// of the open program.
func findSelf() (path string, program *os.File, err error) {
	const self = "/proc/self/exe"
	running, err := os.Stat(self)
	if err != nil {
		return "", nil, err
	}
	if path, err = os.Executable(); err == nil {
		if fi, err := os.Stat(path); err == nil && os.SameFile(fi, running) {
			return path, nil, nil
		}
	}
	if program, err = os.Open(self); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d", program.Fd()), program, nil
}

// command is the beginning of a command line that enters the namespace behind a descriptor.
// --preserve-credentials keeps the user, who is 0 there, and the groups, as that of Docker.
func command(fd int) []string {
	return []string{"nsenter", "--preserve-credentials", fmt.Sprintf("--user=/proc/self/fd/%d", fd), "--"}
}

// createUsable is create for a namespace in which a jail would work.
func createUsable(nsenter string, environ []string, mapIDs func(pid int) error) (*os.File, error) {
	ns, err := create(mapIDs)
	if err != nil {
		return nil, err
	}
	if err := try(nsenter, ns, environ); err != nil {
		_ = ns.Close()
		return nil, err
	}
	return ns, nil
}

// create makes a user namespace. mapIDs gives ids to it, by the pid of a process in it.
func create(mapIDs func(pid int) error) (*os.File, error) {
	holder := exec.Command("cat") // until its input ends
	holder.Dir, holder.Env = "/", []string{}
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	input, err := holder.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := holder.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = input.Close()
		_ = holder.Wait()
	}()
	if err := mapIDs(holder.Process.Pid); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", holder.Process.Pid))
}

// trial does in the namespace what a jail does first. Some machines let users make namespaces, but
// not use them.
const trial = `mount --make-rslave / && mount -t tmpfs none /mnt &&
bwrap --unshare-user --unshare-pid --unshare-net --cap-drop ALL --ro-bind / / --proc /proc true`

// try reports why a jail would not work in the namespace.
func try(nsenter string, ns *os.File, environ []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, nsenter, append(command(3)[1:], "unshare", "--mount", "sh", "-c", trial)...)
	cmd.Dir, cmd.Env = "/", []string{"LC_ALL=C"}
	for _, variable := range environ {
		if strings.HasPrefix(variable, "PATH=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.ExtraFiles = []*os.File{ns}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.New(cmp.Or(strings.TrimSpace(string(out)), err.Error()))
	}
	return nil
}

// Adopt reads what Enter has told this program: the value of the marker, or "". Call it first, and
// remove the marker from the environment.
func Adopt(marker string) {
	if marker == "" {
		return
	}
	var e entered
	if err := json.Unmarshal([]byte(marker), &e); err != nil {
		status.Problem = problem(fmt.Errorf("%s: %w", Marker, err), "unset it")
		return
	}
	own, err := os.Open("/proc/self/ns/user")
	if err == nil {
		defer own.Close()
	}
	if err != nil || inode(int(own.Fd())) != e.NS {
		status.Problem = problem(errors.New("nsenter did not enter it"), allowNamespaces)
		return
	}
	if e.FD > 2 && inode(e.FD) == e.NS {
		_ = unix.Close(e.FD)
	}
	var program, running unix.Stat_t
	err = errors.Join(unix.Fstat(e.Program, &program), unix.Stat("/proc/self/exe", &running))
	if e.Program > 2 && err == nil && program.Dev == running.Dev && program.Ino == running.Ino {
		_ = unix.Close(e.Program)
	}
	status.Inside, uid, gid = true, e.UID, e.GID
	if status.HasRange = e.Problem == ""; !status.HasRange {
		status.Problem = &sandbox.Error{Op: "use subordinate ids", Err: errors.New(e.Problem), Fix: e.Fix}
	}
}

// inode identifies the file behind a descriptor of a namespace.
func inode(fd int) uint64 {
	var st unix.Stat_t
	_ = unix.Fstat(fd, &st)
	return st.Ino
}
