package jail

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
// there and none elsewhere.
type template struct {
	zygote sandbox.Zygote
	key    string
	made   time.Time
	cmd    *exec.Cmd    // bubblewrap, which ends after it
	output sandbox.Tail // what it and bubblewrap printed
	conn   *os.File
	known  chan struct{} // closed when first is set, or will not be
	first  *os.File      // pidfd of the interpreter
	pid    int
	gone   chan struct{} // closed when nothing is left of it

	ready     chan struct{} // closed when it has imported, or ended
	readyOnce sync.Once

	mu     sync.Mutex // one request at a time
	dead   atomic.Bool
	ending atomic.Bool // end was called

	users sync.WaitGroup // the sandboxes that are to have a fork of it; none comes after it has been replaced
}

// forkTimeout is how long a template may take to fork. One that takes longer is stuck, and with it the end of every sandbox that has a
// zygote from it: only it can wait for them.
const forkTimeout = 3 * time.Second

// templates are those of a backend, by the name of their zygotes.
type templates struct {
	mu     sync.Mutex
	byName map[string]*templateSlot
	closed bool
	wg     sync.WaitGroup // of the goroutines that watch them
}

// templateSlot is where a zygote's template is, or will be again.
type templateSlot struct {
	*template           // nil if the last start failed
	successor *template // takes its place when it is ready; nil unless that is old
	next      time.Time // no new one before
	warned    bool      // of a failure, and none has become ready since
}

// templatePause is the least time between two starts of a template that does not become ready: what made it fail
// would make it fail again.
const templatePause = time.Minute

// templateLife bounds how long sandboxes share what a process gets when it starts: the layout of its address space, the
// canary of its stack and the seed of its hashes.
const templateLife = time.Hour

// templatesFor returns those for a spec's zygotes, as far as there are any at the moment, and starts the others. The
// caller calls release for each when it needs no fork of it any more.
func (b *Backend) templatesFor(spec sandbox.Spec) (all []*template) {
	if b.cfg.NoTemplates || os.Geteuid() != 0 {
		return nil
	}
	for _, z := range spec.Zygotes {
		if t := b.template(spec, z); t != nil {
			all = append(all, t)
		}
	}
	return all
}

// release says that a template which templatesFor returned is not needed any more.
func (t *template) release() { t.users.Done() }

// template returns the one for a zygote, and starts it if there is none: also when it has died since, or the runner has changed.
func (b *Backend) template(spec sandbox.Spec, z sandbox.Zygote) *template {
	key := templateKey(spec, z)
	b.templates.mu.Lock()
	defer b.templates.mu.Unlock()
	if b.templates.closed {
		return nil
	}
	slot := b.templates.byName[z.Name]
	if slot == nil {
		if b.templates.byName == nil {
			b.templates.byName = map[string]*templateSlot{}
		}
		slot = &templateSlot{}
		b.templates.byName[z.Name] = slot
	}
	if t := slot.template; t != nil {
		switch {
		case t.key != key || t.replaced():
			slot.next = time.Time{} // that was not its fault
			b.templates.endLocked(slot)
		case !t.isDead():
			if slot.successor == nil && t.isReady() && time.Since(t.made) > cmp.Or(b.cfg.TemplateLife, templateLife) {
				slot.successor = b.startLocked(slot, spec, z, key)
			}
			t.users.Add(1)
			return t
		}
	}
	slot.template = b.startLocked(slot, spec, z, key)
	if slot.template != nil {
		slot.users.Add(1)
	}
	return slot.template
}

// startLocked starts a template for the slot, unless one has failed a short while ago.
func (b *Backend) startLocked(slot *templateSlot, spec sandbox.Spec, z sandbox.Zygote, key string) *template {
	if time.Now().Before(slot.next) {
		return nil
	}
	slot.next = time.Now().Add(templatePause)
	t, err := b.startTemplate(spec, z, key)
	if err != nil {
		b.warnLocked(slot, z.Name, err, "")
		return nil
	}
	b.templates.wg.Go(func() { b.watch(t, slot) })
	return t
}

// endLocked ends what is in a slot.
func (ts *templates) endLocked(slot *templateSlot) {
	for _, t := range []*template{slot.template, slot.successor} {
		if t != nil {
			ts.wg.Go(t.end)
		}
	}
	slot.template, slot.successor = nil, nil
}

// succeedLocked puts a successor that is ready in its place. The old one serves the sandboxes that wait for it.
func (b *Backend) succeedLocked(slot *templateSlot) {
	old := slot.template
	slot.template, slot.successor = slot.successor, nil
	if old != nil {
		b.templates.wg.Go(func() {
			old.users.Wait()
			old.end()
		})
	}
}

// warnLocked tells once that a template does not work.
func (b *Backend) warnLocked(slot *templateSlot, zygote string, err error, detail string) {
	level := slog.LevelWarn
	if slot.warned {
		level = slog.LevelDebug
	}
	slot.warned = true
	b.log.Log(context.Background(), level, "no template of interpreters: each sandbox imports libraries for itself",
		"zygote", zygote, "err", err, "detail", detail)
}

// watch lasts as long as the template.
func (b *Backend) watch(t *template, slot *templateSlot) {
	err := t.awaitReady()
	if err == nil {
		b.templates.mu.Lock()
		slot.warned, slot.next = false, time.Time{}
		if slot.successor == t {
			b.succeedLocked(slot)
		}
		b.templates.mu.Unlock()
		b.log.Debug("template of interpreters is ready", "zygote", t.zygote.Name)
	} else {
		t.kill()
	}
	<-t.gone
	t.dead.Store(true)
	t.markReady()
	b.templates.mu.Lock()
	defer b.templates.mu.Unlock()
	if slot.successor == t {
		slot.successor = nil
	}
	if !t.ending.Load() {
		b.warnLocked(slot, t.zygote.Name, errors.Join(errors.New("it has ended"), err), t.output.String())
	}
}

// templateKey tells templates apart by all that they are made of. A directory that was installed anew is another one.
func templateKey(spec sandbox.Spec, z sandbox.Zygote) string {
	var sources []string
	for _, m := range spec.Mounts {
		var st unix.Stat_t
		_ = unix.Stat(m.Source, &st)
		sources = append(sources, fmt.Sprint(st.Dev, st.Ino, st.Mtim))
	}
	text, _ := json.Marshal(struct {
		Mounts  []sandbox.Mount
		Sources []string
		Zygote  sandbox.Zygote
	}{spec.Mounts, sources, z}) // plain data
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

const templateSource = "/.zygote"

func (b *Backend) startTemplate(spec sandbox.Spec, z sandbox.Zygote, key string) (*template, error) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(agent.ZygoteConfig(z.Preload))
	if err != nil {
		return nil, err
	}
	source := filepath.Join(b.files, "zygote-"+key)
	if err := os.WriteFile(source, z.Source, 0o644); err != nil {
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
	t := &template{zygote: z, key: key, made: time.Now(), conn: os.NewFile(uintptr(fds[0]), "template"), ready: make(chan struct{}), known: make(chan struct{}), gone: make(chan struct{})}
	info, infoW, err := os.Pipe()
	if err != nil {
		_ = t.conn.Close()
		return nil, err
	}
	defer infoW.Close()
	err = b.launch.do(func() error {
		args, err := b.templateArgs(spec, z.Argv, source, setpriv)
		if err != nil {
			return err
		}
		t.cmd = exec.Command(b.bwrap, append([]string{"--info-fd", "4"}, args...)...)
		t.cmd.Dir = "/"
		t.cmd.Env = environ(z.Env)
		t.cmd.ExtraFiles = []*os.File{theirs, infoW, info} // as for a sandbox
		t.cmd.Stdout, t.cmd.Stderr = &t.output, &t.output
		t.cmd.WaitDelay = killDelay
		return t.cmd.Start()
	})
	if err != nil {
		_ = info.Close()
		_ = t.conn.Close()
		return nil, err
	}
	_, _ = t.conn.Write(config) // if it has ended already, wait says so
	go t.find(info)
	go t.wait()
	return t, nil
}

// find learns from bubblewrap which process the interpreter is.
func (t *template) find(info *os.File) {
	defer info.Close()
	defer close(t.known)
	pid, err := childPID(info)
	if err != nil {
		return
	}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil {
		t.first, t.pid = os.NewFile(uintptr(fd), "template process"), pid
	}
}

// wait ends when nothing of the template is left. Bubblewrap may have been killed alone.
func (t *template) wait() {
	_ = t.cmd.Wait()
	<-t.known
	if t.first != nil {
		signalPidfd(t.first, unix.SIGKILL)
		_ = t.first.Close()
	}
	_ = t.conn.Close()
	close(t.gone)
}

func environ(vars map[string]string) []string {
	env := []string{"HOME=/tmp", "TMPDIR=/tmp", "LANG=C.UTF-8", "USER=sandbox", "SANDBOX_DISPLAY=/tmp/.display"}
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		env = append(env, name+"="+vars[name])
	}
	return env
}

// templateArgs is bubblewrap's command line for a template: a sandbox's, without user and pid namespaces and workspace.
func (b *Backend) templateArgs(spec sandbox.Spec, interpreter []string, source, setpriv string) ([]string, error) {
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
	return append(append(args, interpreter...), templateSource, "template"), nil
}

// awaitReady waits until it has imported.
func (t *template) awaitReady() error {
	word := make([]byte, 32)
	n, err := t.conn.Read(word)
	var pid int
	if err == nil {
		_, err = fmt.Sscanf(string(word[:n]), "ready %d", &pid)
	}
	if err == nil {
		// It has imported with a low priority, and keeps it in a container whose root may not raise one.
		_ = unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
		t.markReady()
	}
	return err
}

func (t *template) markReady() { t.readyOnce.Do(func() { close(t.ready) }) }

func (t *template) isReady() bool {
	select {
	case <-t.ready:
		return !t.isDead()
	default:
		return false
	}
}

func (t *template) isDead() bool {
	select {
	case <-t.gone:
		return true
	default:
	}
	return t.dead.Load()
}

// replaced reports whether the interpreter's program has been replaced on the disk, as an upgrade does.
func (t *template) replaced() bool {
	select {
	case <-t.known:
	default:
		return false
	}
	var st unix.Stat_t
	return t.first != nil && !t.isDead() && unix.Stat(fmt.Sprintf("/proc/%d/exe", t.pid), &st) == nil && st.Nlink == 0
}

// fork has the template fork a process, which waits at the gate, and returns its pid.
func (t *template) fork(files []*os.File) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.dead.Load() {
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
	if err = errors.Join(err, sendErr, t.conn.SetReadDeadline(time.Now().Add(forkTimeout))); err == nil {
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
		t.dead.Store(true)
		t.kill()
	}
	return pid, err
}

var errNoTemplate = errors.New("the template of interpreters cannot fork")

// kill ends the interpreter, after which bubblewrap ends.
func (t *template) kill() {
	select {
	case <-t.known:
	case <-time.After(killDelay):
	}
	select {
	case <-t.known:
		if t.first != nil {
			signalPidfd(t.first, unix.SIGKILL)
			return
		}
	default:
	}
	_ = t.cmd.Process.Kill()
}

// end ends the template and returns when nothing is left of it. Zygotes live on in their sandboxes.
func (t *template) end() {
	t.ending.Store(true)
	t.dead.Store(true)
	t.kill()
	<-t.gone
}

func (ts *templates) close() {
	ts.mu.Lock()
	ts.closed = true
	for _, slot := range ts.byName {
		ts.endLocked(slot)
	}
	ts.byName = nil
	ts.mu.Unlock()
	ts.wg.Wait()
}

// adopt moves a fork of the template into a started sandbox, as its zygote. ours is the end of the socket whose other
// end the agent has; closing it tells the agent that there will be none.
func (s *jailed) adopt(t *template, ours *os.File, pid int) {
	defer t.release()
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
			s.backend.log.Debug("a sandbox imports libraries for itself", "sandbox", s.id, "err", err)
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
		f, err := os.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err != nil {
			return err
		}
		defer f.Close()
		files = append(files, f)
	}
	if !s.firstLives() { // the number may have been another's
		return errors.New("the sandbox has ended")
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
