package jail

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/sandbox/sandboxtest"
)

// newPlaces returns the places of a server that cannot map files. locks is the file of locks; ""
// means that there is none.
func newPlaces(t *testing.T, locks string) *places {
	t.Helper()
	if os.Geteuid() != 0 || sandboxtest.CurrentUserMode() == sandboxtest.UserAlone {
		t.Skip("tested as root")
	}
	ids := newIdentities()
	if ids.why != "" {
		sandboxtest.Skip(t, ids.why)
	}
	_ = ids.locks.Close()
	ids.locks = nil
	if locks != "" {
		f, err := os.OpenFile(locks, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		ids.locks = f
	}
	t.Cleanup(ids.close)
	cannot := func(dir string, _ *os.File) (*os.File, error) {
		return nil, &os.PathError{Op: "mount_setattr", Path: dir, Err: unix.EINVAL}
	}
	return &places{ids: ids, clone: cannot, held: map[placeKey]*place{}, maps: map[uint64]bool{}}
}

// newSession makes a workspace and returns it with a function that returns its owner.
func newSession(t *testing.T) (dir string, owner func() int) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Chown(dir, OwnerUID, OwnerUID); err != nil {
		t.Fatal(err)
	}
	return dir, func() int {
		fi, err := os.Lstat(dir)
		if err != nil {
			t.Fatal(err)
		}
		return int(fi.Sys().(*syscall.Stat_t).Uid)
	}
}

// choose makes a server choose an identity.
func choose(t *testing.T, p *places, dir string) *identity {
	t.Helper()
	id, err := p.choose(dir)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// begin does what the start of a sandbox does, and returns what its end does.
func begin(t *testing.T, p *places, dir string) (id *identity, end func()) {
	t.Helper()
	id = choose(t, p, dir)
	_, at, err := p.hold(t.Context(), dir, id)
	if err != nil {
		t.Fatal(err)
	}
	return id, func() {
		p.release(at)
		p.ids.release(id)
	}
}

// TestSharedPlace: two servers share a session's files, and its uid, until both have ended theirs.
func TestSharedPlace(t *testing.T) {
	locks := filepath.Join(t.TempDir(), "ids")
	a, b := newPlaces(t, locks), newPlaces(t, locks)
	dir, owner := newSession(t)
	first, endFirst := begin(t, a, dir)
	uid := first.uid
	second, endSecond := begin(t, b, dir)
	third, endThird := begin(t, b, dir)
	if second.uid != uid || third != second || owner() != uid {
		t.Fatalf("uids %d, %d and %d, on disk %d", uid, second.uid, third.uid, owner())
	}
	pooled, err := b.ids.acquire()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*places{a, b} {
		if _, _, err := p.hold(t.Context(), dir, pooled); err != errTaken || owner() != uid {
			t.Errorf("another uid gets the files: %v, on disk %d", err, owner())
		}
	}
	endSecond()
	endFirst()
	for range 2 {
		if a.ids.acquireUID(uid) != nil || choose(t, a, t.TempDir()).uid == uid {
			t.Error("a borrowed uid is used for another session")
		}
		again, end := begin(t, a, dir) // the server that had it first borrows it now
		if again.uid != uid || !again.borrowed {
			t.Errorf("%+v, want the borrowed uid %d", again, uid)
		}
		end()
	}
	a.ids.close() // the other server has ended
	c := newPlaces(t, locks)
	if c.ids.acquireUID(uid) != nil {
		t.Error("a uid is not borrowed any more because its server has ended")
	}
	endThird()
	if c.ids.acquireUID(uid) == nil {
		t.Error("a uid stays borrowed")
	}
}

// TestLockedPlace: code that locks its workspace gets no uid that another session has by now, and
// no server takes the files away from under a lock.
func TestLockedPlace(t *testing.T) {
	locks := filepath.Join(t.TempDir(), "ids")
	a, b := newPlaces(t, locks), newPlaces(t, locks)
	dir, owner := newSession(t)
	inside, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	flock := func(how int) error { return unix.Flock(int(inside.Fd()), how|unix.LOCK_NB) }
	first, end := begin(t, a, dir)
	if err := flock(unix.LOCK_EX); err == nil {
		t.Error("code gets a lock that keeps other servers out")
	}
	if err := flock(unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if id, endOther := begin(t, b, dir); id.uid != first.uid {
		t.Errorf("a lock of code: uid %d, want %d", id.uid, first.uid)
	} else {
		endOther()
	}
	end()
	again, end := begin(t, a, dir)
	if again != first {
		t.Errorf("after its end: %+v, want %+v", again, first)
	}
	end()
	if a.ids.acquireUID(first.uid) == nil { // for another session
		t.Fatal("the uid is not free")
	}
	for _, how := range []int{unix.LOCK_SH, unix.LOCK_EX} { // as if code lived on
		if err := flock(how); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*places{a, b} {
			id := choose(t, p, dir)
			if id.uid == first.uid {
				t.Error("a session gets the uid of another one")
			}
			if _, _, err := p.hold(t.Context(), dir, id); err != errTaken || owner() != first.uid {
				t.Errorf("the files under a lock: %v, on disk %d", err, owner())
			}
			p.ids.release(id)
		}
	}
	if err := flock(unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	id, end := begin(t, b, dir)
	defer end()
	if id.uid == first.uid || owner() != id.uid {
		t.Errorf("uid %d after %d, on disk %d", id.uid, first.uid, owner())
	}
}

// TestPlacesWithoutLocks: servers that cannot agree on a uid do not share a session.
func TestPlacesWithoutLocks(t *testing.T) {
	a, b := newPlaces(t, ""), newPlaces(t, "")
	dir, owner := newSession(t)
	first, end := begin(t, a, dir)
	other, err := b.ids.acquire()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.hold(t.Context(), dir, other); err != errNoAgreement || owner() != first.uid {
		t.Errorf("%v, on disk %d, want %d", err, owner(), first.uid)
	}
	end()
	if _, at, err := b.hold(t.Context(), dir, other); err != nil || owner() != other.uid {
		t.Errorf("%v, on disk %d, want %d", err, owner(), other.uid)
	} else {
		b.release(at)
	}
}

// TestPlacesOfOneUID: a server whose sandboxes all have the same uid and one with a uid for each do
// not take a live session's files from each other. Servers with the same uid share them.
func TestPlacesOfOneUID(t *testing.T) {
	locks := filepath.Join(t.TempDir(), "ids")
	ranged, one, same := newPlaces(t, locks), newPlaces(t, ""), newPlaces(t, "")
	one.ids.why, same.ids.why = "a test", "a test"
	dir, owner := newSession(t)
	refused := func(p *places) {
		t.Helper()
		was, id := owner(), choose(t, p, dir)
		if _, _, err := p.hold(t.Context(), dir, id); err != errInUse || owner() != was {
			t.Errorf("a live session's files: %v, on disk %d, want %d", err, owner(), was)
		}
		p.ids.release(id)
	}
	for range 2 {
		id, end := begin(t, ranged, dir)
		if owner() != id.uid {
			t.Errorf("on disk %d, want %d", owner(), id.uid)
		}
		refused(one)
		end()
		_, end = begin(t, one, dir)
		_, endSecond := begin(t, one, dir)
		_, endSame := begin(t, same, dir)
		end()
		refused(ranged)
		endSecond()
		refused(ranged)
		if endSame(); owner() != OwnerUID {
			t.Errorf("on disk %d, want %d", owner(), OwnerUID)
		}
	}
}

// TestPlacesAtOnce: however servers start and end sandboxes of sessions, files belong to the uid of
// all live sandboxes of their session, and no two sessions have the same uid.
func TestPlacesAtOnce(t *testing.T) {
	locks := filepath.Join(t.TempDir(), "ids")
	servers := []*places{newPlaces(t, locks), newPlaces(t, locks), newPlaces(t, locks)}
	var mu sync.Mutex
	live := map[int][]string{} // the sessions of each uid, one per sandbox
	use := func(p *places, dir string, owner func() int) {
		id, err := p.choose(dir)
		if err != nil {
			t.Error(err)
			return
		}
		defer p.ids.release(id)
		_, at, err := p.hold(t.Context(), dir, id)
		if err == errTaken {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		defer p.release(at)
		mu.Lock()
		live[id.uid] = append(live[id.uid], dir)
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		defer mu.Unlock()
		if owner() != id.uid || slices.ContainsFunc(live[id.uid], func(other string) bool { return other != dir }) {
			t.Errorf("a sandbox of %s has uid %d, on disk %d; with that uid live: %q", dir, id.uid, owner(), live[id.uid])
		}
		live[id.uid] = live[id.uid][1:]
	}
	var all sync.WaitGroup
	for range 3 {
		dir, owner := newSession(t)
		for _, p := range servers {
			for range 2 {
				all.Go(func() {
					for range 50 {
						use(p, dir, owner)
					}
				})
			}
		}
	}
	all.Wait()
}
