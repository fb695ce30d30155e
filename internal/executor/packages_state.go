package executor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"mcp-code-sandbox/internal/runner"
	"mcp-code-sandbox/internal/session"
	"mcp-code-sandbox/internal/workspace"
)

// Bounds of what the server reads about a session's packages: code writes it.
const (
	maxEntriesRead   = 10_000
	maxInstalled     = 1000
	maxUnfinished    = 100     // packages; an installation has fewer
	maxPackageLock   = 2 << 20 // bytes
	maxPackageStates = 200
	lockName         = "lock.txt"
	packageLock      = "/.package-lock.json" // npm's, in node_modules; rewritten in place
)

// packageStates remembers what sessions have installed. It is a cache: it may forget anything but
// the installations in progress.
type packageStates struct {
	mu         sync.Mutex
	byID       map[string]packageState  // by session and directory
	installing map[string]chan struct{} // by session and directory; closed at the end
	// The packages of runners, by where they come from.
	runners map[string]map[string]string
	live    map[string]livePackages // by interpreter
}

// livePackages is what a live interpreter may have loaded.
type livePackages struct {
	started []Package // the replaced packages with which it started
	last    []Package // the session's packages after its last cell
	told    []Package // the packages of the last notice that it may have loaded others
}

// liveIn returns what is known of an interpreter.
func (s *packageStates) liveIn(interpreter string) (live livePackages, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	live, ok = s.live[interpreter]
	return live, ok
}

// packageState is what a directory of a session held.
type packageState struct {
	version   string // when it was read; "" if it cannot be known
	list      []Package
	satisfied []string // requirements that were installed then
}

// packagesRun is what a run has to do with the packages of its session.
type packagesRun struct {
	e      *Executor
	s      *session.Session
	runner runner.Runner
	dirs   []runner.PackageDir
	// Set when it is the run's turn.
	prepared bool
	before   []packageState // of dirs
	listed   []packageState // what the lists of packages say
	now      []packageState // when the code starts
	// conflicts are pip's sentences about versions that do not fit together.
	conflicts []string
}

// packagesOf returns nil if the run can have no packages.
func (e *Executor) packagesOf(s *session.Session, r runner.Runner) *packagesRun {
	dirs := e.packageDirs(r)
	if len(dirs) == 0 {
		return nil
	}
	return &packagesRun{e: e, s: s, runner: r, dirs: dirs, now: make([]packageState, len(dirs))}
}

// refresh reads the directories again.
func (p *packagesRun) refresh() {
	for i, d := range p.dirs {
		p.now[i] = p.read(d)
	}
}

// read returns the state of a directory. It lists the directory only if that has changed.
func (p *packagesRun) read(d runner.PackageDir) packageState {
	id, dir := p.id(d), p.place(d)
	version := p.version(d, dir)
	if version == "" {
		return packageState{}
	}
	states := &p.e.packageStates
	states.mu.Lock()
	state, known := states.byID[id]
	states.mu.Unlock()
	if known && state.version == version {
		return state
	}
	state = packageState{version: version}
	unfinished := 0
	if d.Index == npm {
		state.list = readPackageLock(p.s.Workspace(), dir)
	} else {
		state.list, unfinished = readDistributions(p.s.Workspace(), dir)
	}
	if unfinished == 0 && len(state.list) > 0 || unfinished == maxUnfinished {
		p.remember(d, state)
	}
	return state
}

// version returns a text that changes whenever the packages in a directory do, or those that the
// runner has itself. It is empty if code has put a link there.
func (p *packagesRun) version(d runner.PackageDir, dir string) string {
	version, names := p.runner.DistributionsSource(), []string{dir}
	if d.Index == npm {
		names = append(names, dir+packageLock)
	}
	for _, name := range names {
		fi, err := p.s.Workspace().Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return ""
		}
		version += fmt.Sprint(" ", fi.ModTime().UnixNano(), " ", fi.Size())
	}
	return version
}

// lock waits until no other run installs packages into a directory of the session. It gives up with
// session.ErrBusy after the time that the run may take.
func (p *packagesRun) lock(ctx context.Context, d runner.PackageDir, most time.Duration) (unlock func(), err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, most, session.ErrBusy)
	defer cancel()
	states, id, ended := &p.e.packageStates, p.s.Key()+"/"+d.Name, make(chan struct{})
	for {
		states.mu.Lock()
		other := states.installing[id]
		if other == nil {
			break
		}
		states.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer states.mu.Unlock()
	if states.installing == nil {
		states.installing = map[string]chan struct{}{}
	}
	states.installing[id] = ended
	return func() {
		states.mu.Lock()
		defer states.mu.Unlock()
		delete(states.installing, id)
		close(ended)
	}, nil
}

// id identifies a directory of the session.
func (p *packagesRun) id(d runner.PackageDir) string { return p.s.Key() + "/" + d.Name + "/" + d.Index }

func (p *packagesRun) remember(d runner.PackageDir, state packageState) {
	states := &p.e.packageStates
	states.mu.Lock()
	defer states.mu.Unlock()
	if states.byID == nil || len(states.byID) >= maxPackageStates {
		states.byID = map[string]packageState{}
	}
	states.byID[p.id(d)] = state
}

// satisfy records that requirements are installed, by the session or the runner, until the version
// changes.
func (p *packagesRun) satisfy(d runner.PackageDir, requirements []string) {
	state := p.read(d)
	if state.version == "" {
		return
	}
	state.satisfied = append(slices.Clone(state.satisfied), requirements...)
	if len(state.satisfied) > maxInstalled {
		state.satisfied = slices.Clone(requirements)
	}
	p.remember(d, state)
}

var pythonMinor = regexp.MustCompile(`^Python (3\.\d{1,3})\b`)

// place returns the directory of a workspace in which packages appear.
func (p *packagesRun) place(d runner.PackageDir) string {
	dir := workspace.PackagesDir + "/" + d.Name
	if d.Index == npm {
		return dir + "/node_modules"
	}
	version := "3"
	if m := pythonMinor.FindStringSubmatch(p.runner.Version); m != nil {
		version = m[1]
	} else if names, err := p.s.Workspace().Names(dir+"/lib", 16); err == nil { // of a shell
		for _, name := range names {
			if m := pythonMinor.FindStringSubmatch(strings.Replace(name, "python", "Python ", 1)); m != nil {
				version = m[1]
			}
		}
	}
	return dir + "/lib/python" + version + "/site-packages"
}

// readDistributions lists the Python packages in a directory, sorted, and counts those that are not
// whole. Installers write INSTALLER after a package's files: without it, it is not listed.
func readDistributions(ws *workspace.Workspace, dir string) (list []Package, unfinished int) {
	root, err := ws.OpenDir(dir)
	if err != nil {
		return nil, 0
	}
	defer root.Close()
	names, _ := workspace.NamesIn(root, maxEntriesRead)
	for _, entry := range names {
		name, version, ok := runner.ParseDistribution(entry)
		if !ok {
			continue
		}
		if fi, err := root.Lstat(entry + "/INSTALLER"); err != nil || !fi.Mode().IsRegular() {
			if unfinished++; unfinished == maxUnfinished {
				break
			}
			continue
		}
		if list = append(list, Package{name, version}); len(list) == maxInstalled {
			break
		}
	}
	return sorted(list), unfinished
}

// npmVersion matches a version of npm. Code can write others, which messages would repeat.
var npmVersion = regexp.MustCompile(`^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(?:-[0-9A-Za-z.-]{1,36})?(?:\+[0-9A-Za-z.-]{1,24})?$`)

// readPackageLock lists the packages that npm says it has installed in a directory, sorted. It
// leaves out those that another package has for itself.
func readPackageLock(ws *workspace.Workspace, dir string) (list []Package) {
	f, _, err := ws.Open(dir + packageLock)
	if err != nil {
		return nil
	}
	defer f.Close()
	var lock struct {
		Packages map[string]struct{ Version string }
	}
	if json.NewDecoder(io.LimitReader(f, maxPackageLock)).Decode(&lock) != nil {
		return nil
	}
	for path, p := range lock.Packages {
		name, ok := strings.CutPrefix(path, "node_modules/")
		if ok && len(name) <= maxRequirement && npmName.MatchString(name) && npmVersion.MatchString(p.Version) {
			list = append(list, Package{strings.Clone(name), p.Version})
		}
	}
	return sorted(list)
}

// sorted returns the first packages by name, in memory of their own: the rest may be long.
func sorted(list []Package) []Package {
	slices.SortFunc(list, func(a, b Package) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(b.Version, a.Version))
	})
	list = slices.CompactFunc(list, func(a, b Package) bool { return a.Name == b.Name }) // left by a failed upgrade
	return slices.Clone(list[:min(len(list), maxInstalled)])
}

// replaced lists the session's packages that are another version of one of the runner's.
func (p *packagesRun) replaced() (list []Package) {
	if p == nil {
		return nil
	}
	for i, d := range p.dirs {
		if d.Index != pypi || len(p.now[i].list) == 0 {
			continue
		}
		own := p.e.distributions(p.runner)
		for _, installed := range p.now[i].list {
			if version, both := own[installed.Name]; both && version != installed.Version && installed.Name != "pip" { // which stays the runner's
				list = append(list, installed)
			}
		}
	}
	return list
}

// distributions returns the Python packages of a runner.
func (e *Executor) distributions(r runner.Runner) map[string]string {
	source := r.DistributionsSource()
	states := &e.packageStates
	states.mu.Lock()
	defer states.mu.Unlock()
	found, known := states.runners[source]
	if !known {
		if states.runners == nil || len(states.runners) > 100 {
			states.runners = map[string]map[string]string{}
		}
		found = r.Distributions()
		states.runners[source] = found
	}
	return found
}

// cold returns the variables that an interpreter must start with to use the session's packages in
// place of the runner's, or nil if there is no need.
func (p *packagesRun) cold() map[string]string {
	if len(p.replaced()) == 0 {
		return nil
	}
	env := p.e.packageEnvironment(p.runner, nil)
	return map[string]string{"SANDBOX_PYTHON_PACKAGES": env["SANDBOX_PYTHON_PACKAGES"], "SANDBOX_PACKAGES_FIRST": "1"}
}

// note adds to a result what the run installed and which packages replaced the runner's. It updates
// the list of the session's packages.
func (p *packagesRun) note(ctx context.Context, r *run, res *Result, fresh bool) {
	if p == nil || !p.prepared {
		return
	}
	res.Conflicts = p.conflicts
	used := p.replaced()
	res.Installed = p.added()
	p.writeLock(ctx, r)
	if !slices.Contains(p.runner.Environments, "python") {
		if res.Persistent && !fresh && !res.StateLost {
			res.Replaced = p.replacedModules(res.Installed)
			res.Outdated = len(res.Replaced) > 0
		}
		return
	}
	if !res.Persistent || fresh { // later cells need not say it again
		res.Replaced = used
	}
	known := livePackages{started: used}
	if res.Persistent {
		known = p.knownTo(res.Network, used, fresh)
	}
	// What this process may have loaded in another version.
	stale := without(p.replaced(), known.started)
	stale = append(stale, without(upgraded(known.last, p.python(p.now)), stale)...)
	if res.Outdated = !res.StateLost && len(stale) > 0 && (!res.Persistent || p.tell(res.Network, stale) || !res.Success()); res.Outdated {
		res.Replaced = stale
	}
}

// added refreshes the packages and returns those that were added or changed since it was the run's
// turn.
func (p *packagesRun) added() (list []Package) {
	p.refresh()
	for i := range p.dirs {
		list = append(list, without(p.now[i].list, p.before[i].list)...)
	}
	return list
}

// writeLock updates the lists of the session's packages, after a refresh.
func (p *packagesRun) writeLock(ctx context.Context, r *run) {
	for i, d := range p.dirs {
		if slices.Equal(p.now[i].list, p.listed[i].list) {
			continue
		}
		p.listed[i] = p.now[i]
		var lock strings.Builder
		mark := "=="
		if d.Index == npm {
			mark = "@"
		}
		for _, each := range p.now[i].list {
			lock.WriteString(each.Name + mark + each.Version + "\n")
		}
		name := workspace.PackagesDir + "/" + d.Name + "/" + lockName
		if _, err := p.s.Write(name, strings.NewReader(lock.String()), workspace.WriteOptions{Overwrite: true, Quota: p.e.cfg.Quota}); err != nil {
			r.log.WarnContext(ctx, "cannot list the packages of a session", "error", err)
		}
	}
}

// tell reports whether a notice about packages is another one than the last of its live
// interpreter.
func (p *packagesRun) tell(network bool, packages []Package) bool {
	states, id := &p.e.packageStates, p.interpreter(network)
	states.mu.Lock()
	defer states.mu.Unlock()
	known, ok := states.live[id]
	if !ok || slices.Equal(known.told, packages) {
		return !ok
	}
	known.told = packages
	states.live[id] = known
	return true
}

// interpreter identifies a live interpreter of the session.
func (p *packagesRun) interpreter(network bool) string {
	return fmt.Sprint(p.s.Key(), "/", p.runner.Name, network)
}

// replacedModules returns those of the packages that a cell has installed which its interpreter may
// have loaded in another version: the session's own, or a library of a runner of Node.js.
func (p *packagesRun) replacedModules(installed []Package) []Package {
	var before []Package
	for _, state := range p.before {
		before = append(before, state.list...)
	}
	return slices.DeleteFunc(slices.Clone(installed), func(each Package) bool {
		return !slices.Contains(p.runner.Libraries, each.Name) && len(upgraded(before, []Package{each})) == 0
	})
}

// without returns the packages of list that are not in other.
func without(list, other []Package) []Package {
	return slices.DeleteFunc(slices.Clone(list), func(p Package) bool { return slices.Contains(other, p) })
}

// upgraded returns the packages of after that had another version before.
func upgraded(before, after []Package) (list []Package) {
	for _, p := range after {
		if slices.ContainsFunc(before, func(old Package) bool { return old.Name == p.Name && old.Version != p.Version }) {
			list = append(list, p)
		}
	}
	return list
}

// python lists the Python packages of a session.
func (p *packagesRun) python(states []packageState) []Package {
	i := slices.IndexFunc(p.dirs, func(d runner.PackageDir) bool { return d.Index == pypi })
	if i < 0 {
		return nil
	}
	return states[i].list
}

// knownTo returns what a live interpreter may have loaded before its present cell, and remembers
// what it may load in it. A fresh one has started with the replaced packages that were used.
func (p *packagesRun) knownTo(network bool, used []Package, fresh bool) livePackages {
	states := &p.e.packageStates
	id := p.interpreter(network)
	states.mu.Lock()
	defer states.mu.Unlock()
	known, ok := states.live[id]
	if fresh {
		known = livePackages{started: used}
	} else if !ok {
		known.last = p.python(p.before)
	}
	now := livePackages{known.started, p.python(p.now), known.told}
	if len(now.started)+len(now.last) == 0 {
		delete(states.live, id)
		return known
	}
	if states.live == nil || len(states.live) >= maxPackageStates {
		states.live = map[string]livePackages{}
	}
	states.live[id] = now
	return known
}
