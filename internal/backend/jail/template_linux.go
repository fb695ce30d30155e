package jail

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent"
	"mcp-code-sandbox/internal/sandbox"
)

// template is an interpreter that has imported its libraries outside of every sandbox, and forks a zygote into each: their
// memory is shared, and a new sandbox does not pay for the import. It has never seen anybody's code. It runs as the
// sandboxes' uid, without a capability, on a read-only root like theirs with no workspace, without a network, and shares
// only the host's pid namespace, or it could not enter those of sandboxes. Nobody in a sandbox can name it.
//
// It owns no sandbox's user namespace, but has the uid that does; so a fork of it may enter one, and has every capability
// there and none elsewhere. What it does then is in runners/python/zygote.py.
type template struct {
	cmd    *exec.Cmd
	output tail // what it and bubblewrap printed
	conn   *os.File
	ready  chan struct{} // closed when it has imported, or ended

	mu   sync.Mutex // one request at a time
	dead bool
}

// templates are those of a backend, by what they are made of.
type templates struct {
	mu     sync.Mutex
	byKey  map[string]*template
	closed bool
}

// template returns the one for a spec, and starts it if there is none. It is nil where there can be none.
func (b *Backend) template(spec sandbox.Spec) *template {
	if spec.Zygote == nil || b.cfg.NoTemplates || os.Geteuid() != 0 {
		return nil
	}
	key := templateKey(spec)
	b.templates.mu.Lock()
	defer b.templates.mu.Unlock()
	if t := b.templates.byKey[key]; t != nil || b.templates.closed {
		return t
	}
	t, err := b.startTemplate(spec, key)
	if err != nil {
		b.log.Warn("cannot start a template of interpreters: each sandbox imports libraries for itself", "runner", spec.Runner, "err", err)
		t = &template{ready: make(chan struct{}), dead: true}
		close(t.ready)
	}
	if b.templates.byKey == nil {
		b.templates.byKey = map[string]*template{}
	}
	b.templates.byKey[key] = t
	return t
}

// Warm implements sandbox.Warmer.
func (b *Backend) Warm(spec sandbox.Spec) { b.template(spec) }

func templateKey(spec sandbox.Spec) string {
	text, _ := json.Marshal(struct {
		Mounts []sandbox.Mount
		Zygote *sandbox.Zygote
	}{spec.Mounts, spec.Zygote}) // plain data
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

const templateSource = "/.zygote.py"

func (b *Backend) startTemplate(spec sandbox.Spec, key string) (*template, error) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return nil, err
	}
	source := filepath.Join(b.files, "zygote-"+key+".py")
	if err := os.WriteFile(source, spec.Zygote.Source, 0o644); err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs := os.NewFile(uintptr(fds[1]), "template's")
	defer theirs.Close()
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		return nil, err
	}
	t := &template{conn: os.NewFile(uintptr(fds[0]), "template"), ready: make(chan struct{})}
	err = b.launch.do(func() error {
		args, err := b.templateArgs(spec, source, setpriv)
		if err != nil {
			return err
		}
		t.cmd = exec.Command(b.bwrap, args...)
		t.cmd.Dir = "/"
		t.cmd.Env = environ(spec.Zygote.Env)
		t.cmd.ExtraFiles = []*os.File{theirs}
		t.cmd.Stdout, t.cmd.Stderr = &t.output, &t.output
		t.cmd.WaitDelay = killDelay
		return t.cmd.Start()
	})
	if err != nil {
		_ = t.conn.Close()
		return nil, err
	}
	config, err := json.Marshal(map[string]any{"preload": slices.Concat([]string{}, spec.Zygote.Preload), "filter": agent.RunFilter()})
	if err == nil {
		_, err = t.conn.Write(config)
	}
	if err != nil {
		t.end()
		return nil, err
	}
	go func() {
		if err := t.awaitReady(); err != nil {
			b.log.Warn("a template of interpreters has ended: each sandbox imports libraries for itself", "runner", spec.Runner, "err", err, "detail", t.output.String())
		}
	}()
	return t, nil
}

func environ(vars map[string]string) []string {
	env := []string{"HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8", "USER=sandbox", "SANDBOX_DISPLAY=/tmp/.display"}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if name != "PYTHONPATH" { // no workspace, nowhere to import from
			env = append(env, name+"="+vars[name])
		}
	}
	return env
}

// templateArgs is bubblewrap's command line for a template: a sandbox's, without user and pid namespaces and workspace.
func (b *Backend) templateArgs(spec sandbox.Spec, source, setpriv string) ([]string, error) {
	args := []string{
		"--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--hostname", "sandbox", "--new-session", "--die-with-parent",
		"--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP",
	}
	// Bubblewrap would make them for root alone.
	made := map[string]bool{"/": true}
	var makeParents func(path string)
	makeParents = func(path string) {
		if dir := filepath.Dir(path); !made[dir] {
			makeParents(dir)
			made[dir] = true
			args = append(args, "--perms", "0755", "--dir", dir)
		}
	}
	makeParents("/etc/ssl/certs")
	for _, m := range spec.Mounts {
		makeParents(m.Target)
	}
	args = append(args, systemArgs()...)
	bind := func(source, target string) error {
		path, err := b.launch.onStage(source)
		if err == nil {
			args = append(args, "--ro-bind", path, target)
		}
		return err
	}
	for name := range etcFiles {
		if err := bind(filepath.Join(b.files, name), "/etc/"+name); err != nil {
			return nil, err
		}
	}
	for _, m := range append(slices.Clone(spec.Mounts), sandbox.Mount{Source: source, Target: templateSource}) {
		if err := bind(m.Source, m.Target); err != nil {
			return nil, err
		}
	}
	uid := fmt.Sprint(b.uid)
	args = append(args, "--tmpfs", "/tmp", "--chmod", "1777", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/",
		setpriv, "--reuid", uid, "--regid", uid, "--clear-groups", "--bounding-set", "-all", "--no-new-privs")
	return append(append(args, spec.Zygote.Argv...), templateSource, "template"), nil
}

func (t *template) awaitReady() error {
	defer close(t.ready)
	word := make([]byte, 32)
	n, err := t.conn.Read(word)
	var pid int
	if err == nil {
		_, err = fmt.Sscanf(string(word[:n]), "ready %d", &pid)
	}
	if err == nil { // it imported when nobody else had anything to do
		err = unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
	}
	if err != nil {
		t.mu.Lock()
		t.dead = true
		t.mu.Unlock()
	}
	return err
}

func (t *template) isReady() bool {
	select {
	case <-t.ready:
		t.mu.Lock()
		defer t.mu.Unlock()
		return !t.dead
	default:
		return false
	}
}

// fork has the template fork a process, which waits at the gate, and returns its pid.
func (t *template) fork(files []*os.File) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead {
		return 0, errNoTemplate
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	raw, err := t.conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		sendErr = unix.Sendmsg(int(fd), []byte("fork"), unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
		return sendErr != unix.EAGAIN
	})
	answer := make([]byte, 32)
	n := 0
	if err = errors.Join(err, sendErr); err == nil {
		n, err = t.conn.Read(answer)
	}
	var pid int
	if err == nil {
		_, err = fmt.Sscanf(string(answer[:n]), "forked %d", &pid)
	}
	if err == nil && pid <= 0 {
		return 0, errNoTemplate
	}
	if err != nil {
		t.dead = true
	}
	return pid, err
}

var errNoTemplate = errors.New("the template of interpreters cannot fork")

// end ends the template. Zygotes live on in their sandboxes.
func (t *template) end() {
	if t.conn != nil {
		_ = t.conn.Close()
	}
	if t.cmd != nil && t.cmd.Process != nil {
		_ = t.cmd.Process.Kill()
		_ = t.cmd.Wait()
	}
}

func (ts *templates) close() {
	ts.mu.Lock()
	ts.closed = true
	all := ts.byKey
	ts.byKey = nil
	ts.mu.Unlock()
	for _, t := range all {
		t.end()
	}
}

// adopt moves a fork of the template into a started sandbox, as its zygote. ours is the end of the socket whose other
// end the agent has; closing it tells the agent that there will be none.
func (s *jailed) adopt(t *template, ours *os.File, pid int) {
	defer ours.Close()
	select {
	case <-t.ready:
	case <-s.ended:
		return
	}
	if err := s.tryAdopt(t, ours, pid); err != nil {
		select {
		case <-s.ended: // it died meanwhile
		default:
			s.backend.log.Warn("a sandbox imports libraries for itself", "sandbox", s.id, "err", err)
		}
	}
}

// namespaces are the agent's, in the order in which they are entered after its user namespace.
var namespaces = []string{"user", "net", "ipc", "uts", "cgroup", "mnt", "pid"}

func (s *jailed) tryAdopt(t *template, ours *os.File, pid int) error {
	gate, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer gate.Close()
	defer open.Close()
	files := []*os.File{gate, ours}
	for _, name := range namespaces {
		// The agent has not been waited for, or Wait would have ended: its number still names it.
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	child, err := t.fork(files)
	if err != nil {
		return err
	}
	if err := s.group.add(child); err != nil {
		return err // it finds the gate closed, and ends
	}
	_, err = open.Write([]byte("1"))
	return err
}
