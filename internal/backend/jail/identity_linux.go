package jail

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox"
	"mcp-code-sandbox/internal/userns"
)

// OwnerUID is the owner uid and gid: of the sandboxes' user namespaces, of shared zygotes and, on
// disk, of workspaces. Distributions leave its range unused, so it belongs to no account.
const OwnerUID = 61000

// Owner returns the owner uid and gid as the server sees them, or the server's own if it has no
// others.
func Owner() (uid, gid int) {
	outer := userns.Current()
	if os.Geteuid() == 0 && mapped(idRange{OwnerUID, OwnerUID + 1}) && outer.Inside == outer.HasRange {
		return OwnerUID, OwnerUID
	}
	return os.Geteuid(), os.Getegid()
}

// sandboxIDs are the ranges of ids that sandboxes may have. The first one that exists counts.
// systemd and shadow give nobody the first one. The second is for user namespaces, where accounts
// rarely reach it.
var sandboxIDs = []idRange{{1879048192, 2147483648}, {20000, 60000}}

// idRange holds the ids from first to just before end.
type idRange struct{ first, end int }

func (r idRange) contains(id int) bool { return r.first <= id && id < r.end }

// identity is whom the kernel takes a sandbox for. No other live sandbox has the same one, unless
// both have the same workspace. docs/isolation.md explains it.
type identity struct {
	uid     int // uid and gid of the sandbox's processes
	network int // uid and gid of its slirp4netns
	// mapping is a user namespace that maps OwnerUID to uid, for mounts and for the start of
	// bubblewrap. It is nil if all sandboxes share a uid.
	mapping *os.File
	// withNetwork also maps 0 to network. It is nil until a sandbox with network needs it.
	withNetwork *os.File
	borrowed    bool // another server has reserved the uid
	holders     int  // guarded, with withNetwork, by identities.mu
}

// enter returns a command line that runs argv as an id of a user namespace, for a process of
// OwnerUID that has the namespace as descriptor fd. If ns is nil, it returns argv.
func enter(ns *os.File, fd, id int, argv ...string) []string {
	if ns == nil {
		return argv
	}
	as := fmt.Sprint(id)
	return append([]string{"nsenter", fmt.Sprintf("--user=/proc/self/fd/%d", fd), "-S", as, "-G", as, "--"}, argv...)
}

func (id *identity) close() {
	_ = id.mapping.Close()
	_ = id.withNetwork.Close()
}

// maxFree is how many identities wait for their next sandbox. Each holds two descriptors at most.
const maxFree = 4

// identities gives each sandbox a uid of its own, where the server has more than one.
type identities struct {
	owner int      // OwnerUID, or the only uid there is
	why   string   // why all sandboxes have the uid owner; empty if each has its own
	ids   idRange  // the ids of sandboxes, of this server or of another one of its user
	only  identity // of all sandboxes, unless each has its own
	locks *os.File // shows other servers which ids are in use; nil if no directory is shared

	mu       sync.Mutex
	free     []*identity
	known    map[int]bool      // the uids that this server has reserved
	borrowed map[int]*identity // by uid
	closed   bool
}

// Where the locks are. One on byte n of the file means that a server has reserved id n.
const (
	borrowedAt int64 = 1 << 32 // and after it: servers that have borrowed a uid
	placesAt   int64 = 1 << 62 // and after it: places of live sandboxes
)

// newIdentities finds out which ids the server may use.
func newIdentities() *identities {
	ids := &identities{known: map[int]bool{}, borrowed: map[int]*identity{}}
	ids.owner, _ = Owner()
	ids.only = identity{uid: ids.owner, network: ids.owner, holders: 1}
	if os.Geteuid() != 0 {
		ids.why = "the server's user has only one uid"
		return ids
	}
	at := slices.IndexFunc(sandboxIDs, mapped)
	if at >= 0 {
		ids.ids = sandboxIDs[at]
	}
	setgroups, err := os.ReadFile("/proc/self/setgroups")
	switch {
	case ids.owner != OwnerUID || at < 0:
		ids.why = "the server's user namespace has too few uids"
		return ids
	case err == nil && strings.TrimSpace(string(setgroups)) != "allow":
		ids.why = "the server's user namespace forbids setgroups"
		return ids
	}
	for _, name := range []string{"nsenter", "unshare"} {
		if _, err := exec.LookPath(name); err != nil {
			ids.why = name + " is not installed"
			return ids
		}
	}
	ids.locks = openLocks()
	return ids
}

// check reports whether each sandbox has a uid of its own.
func (ids *identities) check() sandbox.Check {
	if ids.why == "" {
		detail := fmt.Sprintf("each sandbox has a uid of its own, from %d on", ids.ids.first)
		if ids.locks == nil {
			detail += "; two servers cannot use a session at the same time, since they have no directory below /run " +
				"for their locks (loginctl enable-linger makes one)"
		}
		return sandbox.Check{Name: "uids", Detail: detail}
	}
	c := sandbox.Check{
		Name: "uids", Status: sandbox.Warn,
		Detail: fmt.Sprintf("all sandboxes have the uid %d, and share what the kernel limits per uid: %s", ids.owner, ids.why),
		Fix:    "start the server as root, or give its user subordinate ids (package uidmap, /etc/subuid and /etc/subgid)",
	}
	if problem, fix := userns.Current().Explain(); problem != "" { // it keeps subordinate ids from the server
		c.Detail = "all sandboxes have the id of the server's user, and share what the kernel limits per uid: " + problem
		c.Fix = cmp.Or(fix, c.Fix)
	}
	return c
}

// checkRoot reports that sandboxes would have root's uid: the server is root of a user namespace
// with too few ids, which is not an outer namespace.
func (ids *identities) checkRoot() error {
	if ids.owner != 0 || userns.Current().Inside {
		return nil
	}
	return &sandbox.Error{
		Op: "prepare the jail", Err: fmt.Errorf("this user namespace has no uid %d, and sandboxes must not be root", OwnerUID),
		Fix: "map 65536 ids to the container, or start the server as an ordinary user",
	}
}

// mapped reports whether all ids of a range exist in this user namespace, as uids and as gids.
func mapped(r idRange) bool {
	for _, path := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		if !slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			var first, outside, n int
			_, err := fmt.Sscan(line, &first, &outside, &n)
			return err == nil && first <= r.first && r.end <= first+n
		}) {
			return false
		}
	}
	return true
}

// openLocks opens the file of locks that all servers of this user share. It returns nil where there
// is no place for it; then ids are only chosen at random among those without a process.
func openLocks() *os.File {
	text, _ := os.ReadFile("/proc/self/uid_map")
	var first, user int
	_, _ = fmt.Sscan(string(text), &first, &user)
	dirs := []string{"/run/mcp-code-sandbox"}
	if user != 0 { // an ordinary user's server is 0 in its own user namespace
		dirs = append(dirs, fmt.Sprintf("/run/user/%d/mcp-code-sandbox", user))
	}
	for _, dir := range dirs {
		_ = os.Mkdir(dir, 0o700)
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() || fi.Sys().(*syscall.Stat_t).Uid != 0 {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, "ids"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err == nil {
			return f
		}
	}
	return nil
}

// acquire returns an identity that no live sandbox has.
func (ids *identities) acquire() (*identity, error) {
	if ids.why != "" {
		return &ids.only, nil
	}
	if id := ids.takeFree(func(*identity) bool { return true }); id != nil {
		return id, nil
	}
	for range 1000 {
		uid := ids.ids.first + 2*rand.IntN((ids.ids.end-ids.ids.first)/2)
		if ids.reserve(uid) {
			return ids.makeReserved(uid)
		}
	}
	return nil, errors.New("no unused uid was found")
}

// acquireUID returns the identity of a uid, or nil if it is not free.
func (ids *identities) acquireUID(uid int) *identity {
	if id := ids.takeFree(func(id *identity) bool { return id.uid == uid }); id != nil {
		return id
	}
	if (uid-ids.ids.first)%2 != 0 || !ids.reserve(uid) {
		return nil
	}
	id, _ := ids.makeReserved(uid)
	return id
}

// borrow returns an identity with the uid of another server's live sandboxes, for their workspace,
// or nil if there are none. place is the lock that such a server holds. It must be checked last: a
// server unlocks it before it gives up the uid, and uses no uid again that is borrowed.
func (ids *identities) borrow(uid int, place int64) (_ *identity, err error) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if ids.locks == nil || ids.closed || !ids.lock(unix.F_RDLCK, borrowedAt+int64(uid)) {
		return nil, nil
	}
	id := ids.borrowed[uid]
	if ids.lockedElsewhere(place) {
		if id == nil {
			id, err = ids.make(uid)
		} else {
			id.holders++
		}
		if err == nil {
			id.borrowed, ids.borrowed[uid] = true, id
			return id, nil
		}
	}
	if ids.borrowed[uid] == nil {
		ids.lock(unix.F_UNLCK, borrowedAt+int64(uid))
	}
	return nil, err
}

// isBorrowed reports whether a server, perhaps this one, has borrowed a uid.
func (ids *identities) isBorrowed(uid int) bool {
	return ids.borrowed[uid] != nil || ids.lockedElsewhere(borrowedAt+int64(uid))
}

// join returns an identity that a live sandbox has, for another one, or nil if that has ended.
func (ids *identities) join(id *identity) *identity {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if id.holders == 0 {
		return nil
	}
	id.holders++
	return id
}

// takeFree returns a free identity that suits, if nothing of its last sandbox is left.
func (ids *identities) takeFree(suits func(*identity) bool) *identity {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	for i, id := range slices.Backward(ids.free) {
		if suits(id) && !ids.isBorrowed(id.uid) && !inUse(id.uid) {
			ids.free = slices.Delete(ids.free, i, i+1)
			id.holders = 1
			return id
		}
	}
	return nil
}

// release gives up an identity. The processes of the sandbox must have ended.
func (ids *identities) release(id *identity) {
	if id == nil || id.mapping == nil {
		return
	}
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if id.holders--; id.holders > 0 {
		return
	}
	switch {
	case id.borrowed: // garbage collection closes its files: a failing start may still use them
		delete(ids.borrowed, id.uid)
		ids.lock(unix.F_UNLCK, borrowedAt+int64(id.uid))
	case ids.closed:
		id.close()
	default:
		ids.free = append(ids.free, id)
		if len(ids.free) > maxFree {
			ids.free[0].close()
			ids.forgetLocked(ids.free[0].uid)
			ids.free = slices.Delete(ids.free, 0, 1)
		}
	}
}

func (ids *identities) close() {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.closed = true
	for _, id := range ids.free {
		id.close()
	}
	ids.free = nil
	_ = ids.locks.Close()
}

// reserve makes uid and the one after it this server's, unless something uses them. The kernel ends
// the lock with the server.
func (ids *identities) reserve(uid int) bool {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if ids.known[uid] || !ids.lock(unix.F_WRLCK, int64(uid)) {
		return false
	}
	if ids.isBorrowed(uid) || inUse(uid) {
		ids.lock(unix.F_UNLCK, int64(uid))
		return false
	}
	ids.known[uid] = true
	return true
}

// forget undoes reserve.
func (ids *identities) forget(uid int) {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.forgetLocked(uid)
}

func (ids *identities) forgetLocked(uid int) {
	ids.lock(unix.F_UNLCK, int64(uid))
	delete(ids.known, uid)
}

// lock locks or unlocks two bytes of the locks: a sandbox's uid and its network uid.
func (ids *identities) lock(kind int16, at int64) bool {
	l := unix.Flock_t{Type: kind, Start: at, Len: 2}
	return ids.locks == nil || unix.FcntlFlock(ids.locks.Fd(), unix.F_OFD_SETLK, &l) == nil
}

// lockedElsewhere reports whether another server has locked two bytes of the locks.
func (ids *identities) lockedElsewhere(at int64) bool {
	if ids.locks == nil {
		return false
	}
	l := unix.Flock_t{Type: unix.F_WRLCK, Start: at, Len: 2}
	err := unix.FcntlFlock(ids.locks.Fd(), unix.F_OFD_GETLK, &l)
	return err == nil && l.Type != unix.F_UNLCK
}

// inUse reports whether a process has uid or the one after it: one of a server that was killed, or
// of a program that knows nothing of this one.
func inUse(uid int) bool {
	for _, each := range []int{uid, uid + 1} {
		if _, err := unix.Getpriority(unix.PRIO_USER, each); !errors.Is(err, unix.ESRCH) {
			return true
		}
	}
	return false
}

// makeReserved makes the identity of a reserved uid.
func (ids *identities) makeReserved(uid int) (*identity, error) {
	id, err := ids.make(uid)
	if err != nil {
		ids.forget(uid)
	}
	return id, err
}

func (ids *identities) make(uid int) (*identity, error) {
	ns, err := ids.newUserNamespace(fmt.Sprintf("%d %d 1\n", ids.owner, uid))
	if err != nil {
		return nil, err
	}
	return &identity{uid: uid, network: uid + 1, mapping: ns, holders: 1}, nil
}

// namespace returns the user namespace in which a sandbox starts, or nil if it needs none.
func (ids *identities) namespace(id *identity, network bool) (*os.File, error) {
	if id.mapping == nil || !network {
		return id.mapping, nil
	}
	ids.mu.Lock()
	defer ids.mu.Unlock()
	if id.withNetwork == nil {
		ns, err := ids.newUserNamespace(fmt.Sprintf("0 %d 1\n%d %d 1\n", id.network, ids.owner, id.uid))
		if err != nil {
			return nil, err
		}
		id.withNetwork = ns
	}
	return id.withNetwork, nil
}

// newUserNamespace makes a user namespace that the owner uid owns, with a map of uids and gids. A
// process of the owner uid makes it and ends; the descriptor keeps it.
func (ids *identities) newUserNamespace(idMap string) (_ *os.File, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--user", "cat")
	var output sandbox.Tail
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{}, &output
	// Some machines let only privileged programs make user namespaces. What makes one loses its
	// capabilities outside.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: ids.credential(), AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("make a user namespace: %w", err)
		}
	}()
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = in.Close()
		if exit := cmd.Wait(); err != nil {
			err = errors.Join(err, exit, errors.New(strings.TrimSpace(output.String())))
		}
	}()
	if _, err := in.Write([]byte{'\n'}); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // cat answers, in its namespace
		return nil, err
	}
	dir := fmt.Sprintf("/proc/%d/", cmd.Process.Pid)
	for _, name := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(dir+name, []byte(idMap), 0); err != nil {
			return nil, err
		}
	}
	return os.Open(dir + "ns/user")
}

// credential makes a child of the server run as the owner uid.
func (ids *identities) credential() *syscall.Credential {
	if ids.owner == os.Geteuid() {
		return nil
	}
	return &syscall.Credential{Uid: uint32(ids.owner), Gid: uint32(ids.owner), Groups: []uint32{}}
}
