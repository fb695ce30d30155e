package prestart

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mcp-code-sandbox/internal/agent/runinit"
	"mcp-code-sandbox/internal/proc"
	"mcp-code-sandbox/internal/wire"
)

// zygotes are the zygotes of a sandbox, by name.
type zygotes struct {
	host zygoteHost

	mu     sync.Mutex
	known  map[string]*wire.Zygote
	alive  map[string][]*zygote // successors come after the zygotes they grew from
	failed map[string]bool      // modules that no zygote could import
	next   map[string]time.Time // when to retry a zygote that did not become ready
}

// restartPause is the minimum time between two starts of a zygote that does not become ready.
const restartPause = time.Minute

// ensure starts the zygote that w describes or names, unless one is alive. If it fails, runs start
// their own interpreters.
func (zs *zygotes) ensure(w *wire.Zygote) {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	if zs.known == nil {
		zs.known = map[string]*wire.Zygote{}
	}
	if len(w.Source) > 0 {
		zs.known[w.Name] = w
	}
	if w = zs.known[w.Name]; w == nil || len(zs.alive[w.Name]) > 0 || time.Now().Before(zs.next[w.Name]) {
		return
	}
	if z, err := startZygote(zs.host, w); err == nil {
		zs.addLocked(w.Name, z)
	}
}

// add adds a zygote that comes from outside.
func (zs *zygotes) add(name string, z *zygote) {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	zs.addLocked(name, z)
}

func (zs *zygotes) addLocked(name string, z *zygote) {
	if zs.alive == nil {
		zs.alive = map[string][]*zygote{}
	}
	z.children, z.ready = map[int]chan wire.Exit{}, make(chan struct{})
	zs.alive[name] = append(zs.alive[name], z)
	if z.lone {
		z.idle = time.AfterFunc(zygoteLife, z.endIfIdle)
	}
	go func() {
		z.listen()
		zs.mu.Lock()
		zs.removeLocked(name, z)
		zs.mu.Unlock()
		z.end()
	}()
}

// removeLocked removes a zygote that has ended. If it never became ready, its modules are not tried
// again.
func (zs *zygotes) removeLocked(name string, z *zygote) {
	zs.alive[name] = slices.DeleteFunc(zs.alive[name], func(other *zygote) bool { return other == z })
	if !z.lone || z.isReady() {
		return
	}
	if zs.failed == nil {
		zs.failed, zs.next = map[string]bool{}, map[string]time.Time{}
	}
	if maps.Copy(zs.failed, z.extra); z.proc != nil {
		zs.next[name] = time.Now().Add(restartPause)
	}
}

// suiting returns the zygote that may fork the run's program, or nil.
func (zs *zygotes) suiting(spec *runinit.Spec) *zygote {
	if spec.Zygote == nil {
		return nil
	}
	if z := zs.best(spec.Zygote.Name); z != nil && z.env.allows(spec.Env) {
		return z
	}
	return nil
}

// best returns the zygote that has imported the most, or one that is not ready yet, or nil.
func (zs *zygotes) best(name string) *zygote {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	alive := zs.alive[name]
	for _, z := range slices.Backward(alive) {
		if z.isReady() {
			return z
		}
	}
	if len(alive) == 0 {
		return nil
	}
	return alive[0]
}

// fork forks the program of a run into the place of its run-init, if there is a zygote for it.
func (zs *zygotes) fork(spec *runinit.Spec, place *runinit.Place) (forked, bool) {
	z := zs.suiting(spec)
	if z == nil {
		return forked{}, false
	}
	z.request()
	if z.soon {
		select {
		case <-z.ready:
		case <-time.After(arrivalTimeout):
		}
	}
	f, w, err := z.forkInto(place, requestRun, spec.Channel)
	if err != nil {
		return forked{}, false
	}
	go func() { _ = spec.WriteForFork(w) }()
	return f, true
}

// grow makes a zygote import the OnUse modules that the code mentions, for the next run. The zygote
// forks a successor that imports them and takes its place when it is ready. Nothing grows while a
// program is running: the program may need the memory.
func (zs *zygotes) grow(name string, code []byte) {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	z, more := zs.missingLocked(name, code)
	if len(more) == 0 || !z.isIdle() {
		return
	}
	ours, theirs, err := proc.SocketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return
	}
	defer theirs.Close()
	successor := &zygote{env: z.env, conn: ours, lone: true, extra: map[string]bool{}, reportsExits: z.reportsExits}
	maps.Copy(successor.extra, z.extra)
	for _, m := range more {
		successor.extra[m] = true
	}
	if proc.SendFiles(z.conn, requestGrow+strings.Join(more, " "), theirs) != nil {
		_ = ours.Close()
		return
	}
	zs.addLocked(name, successor)
}

// isComplete reports whether the zygote is ready and has imported what the code mentions.
func (zs *zygotes) isComplete(name string, code []byte) bool {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	z, missing := zs.missingLocked(name, code)
	return z != nil && z.isReady() && len(missing) == 0
}

// missingLocked returns the newest zygote of a name, and the modules that it has yet to import for
// the code.
func (zs *zygotes) missingLocked(name string, code []byte) (z *zygote, missing []string) {
	w, alive := zs.known[name], zs.alive[name]
	if w == nil || len(alive) == 0 {
		return nil, nil
	}
	z = alive[len(alive)-1]
	return z, slices.DeleteFunc(mentioned(code, w.OnUse), func(m string) bool { return z.extra[m] || zs.failed[m] })
}

// mentioned returns the modules that the code mentions: every part of the name is a word of the
// code.
func mentioned(code []byte, modules []string) (found []string) {
	for _, m := range modules {
		if !slices.ContainsFunc(strings.Split(m, "."), func(part string) bool { return !hasWord(code, part) }) {
			found = append(found, m)
		}
	}
	return found
}

func hasWord(code []byte, word string) bool {
	letter := func(i int) bool {
		if i < 0 || i >= len(code) {
			return false
		}
		c := code[i]
		return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
	}
	for at := 0; ; {
		i := bytes.Index(code[at:], []byte(word))
		if i < 0 {
			return false
		}
		if at += i; !letter(at-1) && !letter(at+len(word)) {
			return true
		}
		at++
	}
}
