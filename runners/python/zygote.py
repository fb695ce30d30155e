"""A zygote: Python with its libraries imported, that forks a process for each run. docs/warm-start.md
explains it and has the protocol on descriptor 3. The agent starts it. With the argument
"shared-zygote" the server starts it, outside all sandboxes, and it forks a zygote into each.

The zygote never sees anything of a run: code and environment do not pass through its memory, which
every later run inherits. A run's process reads them itself, after it has entered the run's namespaces
and dropped every privilege.
"""

import array
import atexit
import builtins
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import types

CHANNEL = 3
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 4, 24, 38, 47, 4
PR_SET_CHILD_SUBREAPER = 36
CAP_SYS_CHROOT, CAP_SYS_ADMIN = 18, 21
LINUX_CAPABILITY_VERSION_3 = 0x20080522
SECCOMP_MODE_FILTER, PR_SET_SECCOMP = 2, 22
MADV_COLLAPSE, LARGE = 25, 2 << 20
SYS_LANDLOCK_RESTRICT_SELF = 446
CLONE, CLONE_PARENT = {"x86_64": 56, "aarch64": 220}, 0x8000
SIGACTION = {"x86_64": 13, "aarch64": 134}
INIT_FDS = 6  # of a run-init
SANDBOX_UID = 1000  # in a sandbox's user namespace
HIGH = 64  # descriptors from here on collide with no other

known = {}  # the modules that the zygote has imported

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def check(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def prctl(option, *args):
    check(libc.prctl(option, *(ctypes.c_ulong(a) for a in (args + (0, 0, 0, 0))[:4])))


def setns(fd):
    check(libc.setns(fd, 0))


class Filter(ctypes.Structure):
    """A struct sock_fprog that owns its program."""

    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]

    def __init__(self, program):
        self.memory = ctypes.create_string_buffer(program, len(program))
        super().__init__(len(program) // 8, ctypes.addressof(self.memory))


# ---- The zygote ----


def main():
    prctl(PR_SET_DUMPABLE, 0)
    channel = socket.socket(fileno=CHANNEL)
    config = json.loads(channel.recv(1 << 20))
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # Python ignores those two
        if signal.getsignal(number) == signal.SIG_IGN:  # inherited from a server started by nohup
            signal.signal(number, signal.SIG_DFL)
    reset_library_signals()
    if sys.path and sys.path[0] != sys.prefix and not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the directory of this file
    shared_zygote = sys.argv[1:] == ["shared-zygote"]
    if shared_zygote:
        die_with_server(channel)
        # Runs go first; the server resets it. A server that nice has started may be nicer yet.
        os.setpriority(os.PRIO_PROCESS, 0, max(10, os.getpriority(os.PRIO_PROCESS, 0)))
    set_limits(config["limits"])
    preload(config["preload"])
    filter = Filter(bytes.fromhex(config["filter"]))
    drop_bounding_set()
    if shared_zygote:
        outlive_imports(channel)
        channel.send(b"ready %d" % os.getpid())
        channel = serve_forks(channel)
    if "shared_pids" in config:
        channel.send(b"ready")
        serve_beside_runs(channel, config["shared_pids"]["program"], [Filter(bytes.fromhex(config["shared_pids"]["filter"])), filter])
    while True:
        channel.send(b"ready")
        names = serve(channel, filter)
        channel.send(b"grown %d" % os.getpid())
        preload(names)


def reset_library_signals():
    """Stops ignoring the C library's two signals, which Python does not name. Programs that glibc's
    posix_spawn has started ignore them, and so do their children."""
    for number in 32, 33:
        check(libc.syscall(SIGACTION[os.uname().machine], number, bytes(32), None, 8))


# ---- The shared zygote ----


def die_with_server(channel):
    """Makes the kernel end this process if the server hangs up while it imports. A death signal would not
    work: bubblewrap, its parent, has another uid and may not send it."""
    os.closerange(CHANNEL + 1, 1 << 16)
    fcntl.fcntl(channel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(channel, fcntl.F_SETFL, fcntl.fcntl(channel, fcntl.F_GETFL) | os.O_ASYNC)  # the kernel sends SIGIO, which ends the process
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(0)  # it has hung up already


def outlive_imports(channel):
    """Undoes die_with_server: from now on the process notices the end itself."""
    fcntl.fcntl(channel, fcntl.F_SETFL, fcntl.fcntl(channel, fcntl.F_GETFL) & ~os.O_ASYNC)


def serve_forks(channel):
    """Forks zygotes until the server hangs up. Returns, in a zygote, the connection to its agent."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # it must reap the zygotes, or their sandboxes could not end
    wake, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd == wake:
                os.read(wake, 512)
                reap()
                continue
            word, fds = receive(channel)
            if not word:
                os._exit(0)
            try:
                pid = os.fork()
            except OSError:
                pid = -1
            if pid == 0:
                try:
                    channel.detach()
                    return move(fds)
                except BaseException:
                    os._exit(1)
            for each in fds:
                os.close(each)
            channel.send(b"forked %d" % pid)


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def move(fds):
    """Moves a fork of the shared zygote into a sandbox, with nothing from outside but its memory. Returns
    in the zygote only."""
    gate, agent, user, net, ipc, uts, cgroup, mount, pid, *groups = fds
    if os.read(gate, 1) != b"1":  # without groups, the server has moved this process into the sandbox's
        os._exit(1)
    for group in groups:
        os.write(group, b"0")
        os.close(group)
    setns(user)
    os.setresgid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    os.setresuid(SANDBOX_UID, SANDBOX_UID, SANDBOX_UID)
    prctl(PR_SET_DUMPABLE, 0)  # before any process of the sandbox can see this one
    for namespace in (net, ipc, uts, cgroup, mount, pid):
        setns(namespace)
    if os.fork():
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    agent = os.dup2(agent, 100, inheritable=False)
    for target in range(3):
        os.dup2(null, target)
    os.dup2(agent, CHANNEL, inheritable=False)
    os.closerange(CHANNEL + 1, 1 << 16)
    drop_bounding_set()
    keep = 1 << CAP_SYS_ADMIN | 1 << CAP_SYS_CHROOT
    check(libc.capset(struct.pack("Ii", LINUX_CAPABILITY_VERSION_3, 0), struct.pack("6I", keep, keep, 0, 0, 0, 0)))
    return socket.socket(fileno=CHANNEL)


def drop_bounding_set():
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break


def preload(names):
    for name in names or ():
        try:
            importlib.import_module(name)
        except Exception:
            pass  # a run that imports it gets the error
    if shares_memory():
        sys.exit("a preloaded library has shared memory, so runs forked from this zygote would not be isolated")
    known.update(sys.modules)
    gc.collect()
    gc.freeze()
    collapse()


def collapse():
    """Moves the memory into large pages, if the kernel has them: a fork copies fewer page table entries."""
    with open("/proc/self/maps") as f:
        maps = [line.split() for line in f]
    for place, mode, _, _, _, *name in maps:
        if mode == "rw-p" and name in ([], ["[heap]"]):
            begin, end = (int(x, 16) for x in place.split("-"))
            for page in range(-(-begin // LARGE) * LARGE, end - LARGE + 1, LARGE):
                libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(LARGE), MADV_COLLAPSE)


def shares_memory():
    """Reports whether forks would share writable memory, such as that of mmap.mmap(-1, n)."""
    with open("/proc/self/smaps") as f:
        flags = [set(line.split()) for line in f if line.startswith("VmFlags:")]
    return any("sh" in each and "dc" not in each for each in flags)  # shared, and inherited by forks


def serve(channel, filter):
    """Forks programs until the agent hangs up. Returns only in a successor, where channel is a new
    connection to the agent. The result names the modules that the successor must import."""
    own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    children = {}  # by descriptor
    while True:
        for fd, _ in poll.poll():
            if fd != CHANNEL:
                end(channel, poll, fd, *children.pop(fd))
                continue
            word, fds = receive(channel)
            if not word:
                os._exit(0)
            if word.startswith(b"grow "):
                if succeed(fds):
                    return word.decode().split()[1:]
                continue
            pid, reported = fork(fds, own_namespace, filter, word == b"prestart")
            for each in fds:
                os.close(each)
            if pid is None:
                channel.send(b"failed")
                continue
            number, memory = facts(pid)
            number = number or reported
            channel.send(b"started %d %d" % (pid, number))
            child = os.pidfd_open(pid)
            children[child] = pid, memory
            poll.register(child, select.POLLIN)


def succeed(fds):
    """Forks a successor and leaves it to the agent, process 1 here. Returns True in the successor."""
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid:
        for each in fds:
            os.close(each)
        if pid > 0:
            os.waitpid(pid, 0)
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    os.dup2(fds[0], CHANNEL, inheritable=False)
    os.closerange(CHANNEL + 1, 1 << 16)
    return True


def receive(channel):
    fds = array.array("i")
    word, control, _, _ = channel.recvmsg(4096, socket.CMSG_SPACE(16 * fds.itemsize))
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return word, list(fds)


def fork(fds, own_namespace, filter, prestart):
    """Forks a run's process into the namespaces behind the first descriptors. If the kernel does not report
    the pid inside, the process does."""
    reported = 0
    report = () if REPORTS_PIDS else os.pipe()
    try:
        setns(fds[0])
        pid = os.fork()
    except OSError:
        pid = None  # too many processes, or too little memory
    if pid == 0:
        try:
            if report:
                os.write(report[1], b"%d" % os.getpid())
            become(fds[1:], filter, prestart)
        except BaseException as e:
            os.write(2, f"cannot start the run: {e}\n".encode(errors="replace"))
        finally:
            os._exit(126)
    setns(own_namespace)
    if report:
        os.close(report[1])
        reported = int(os.read(report[0], 32) or 0)
        os.close(report[0])
    return pid, reported


def reports_pids():
    with open("/proc/self/status", "rb") as f:
        return b"\nNSpid:" in f.read()


REPORTS_PIDS = reports_pids()  # gVisor's kernel does not


def facts(pid):
    """Returns the process's pid inside its namespace, and how much memory it inherited."""
    number = memory = 0
    with open(f"/proc/{pid}/status", "rb") as f:
        for line in f:
            if line.startswith(b"NSpid:"):
                number = int(line.split()[-1])
            elif line.startswith(b"VmRSS:"):
                memory = int(line.split()[1])
    return number, memory


def end(channel, poll, fd, pid, inherited):
    poll.unregister(fd)
    os.close(fd)
    _, status, usage = os.wait4(pid, 0)
    added = max(0, usage.ru_maxrss - inherited) << 10
    channel.send(b"ended %d %d %d %d %d" % (pid, status, usage.ru_utime * 1e6, usage.ru_stime * 1e6, added))


# ---- Without namespaces; see docs/agent.md ----


def serve_beside_runs(channel, program, filters):
    """Forks until the agent hangs up. Never returns, neither in the zygote nor in a fork."""
    # A plain clone: the fork of the run's process makes Python's own preparations.
    clone = CLONE[os.uname().machine], ctypes.c_ulong(CLONE_PARENT | signal.SIGCHLD), *[ctypes.c_ulong(0)] * 4
    while True:
        word, fds = receive(channel)
        if not word:
            os._exit(0)
        pid = libc.syscall(*clone)
        if pid == 0:
            become_init(channel, program, fds, filters, word == b"prestart")
        if pid < 0:
            channel.send(b"failed")
        for each in fds:
            os.close(each)


def become_init(channel, program, fds, filters, prestart):
    """Forks a run's process and becomes its init."""
    try:
        init, (spec, rules, *driver) = fds[:INIT_FDS], fds[INIT_FDS:]
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        gate, opener = os.pipe()
        try:
            pid = os.fork()
        except OSError:  # too many processes, or too little memory
            channel.send(b"failed")
            os._exit(1)
        if pid == 0:
            channel.close()
            os.close(opener)
            become_beside_runs(gate, spec, rules, [*init[1:3], *driver[1:]], filters, prestart)
        channel.send(b"started %d %d" % (os.getpid(), pid))
        inherited = [*init, opener, *driver[:1]]
        arrange(inherited)
        os.closerange(len(inherited), 1 << 16)
        os.execve(program, ["run-init", "shared-pids"], {"GOMAXPROCS": "1"})
    finally:
        os._exit(1)


def become_beside_runs(gate, spec, rules, streams, filters, prestart):
    """Turns a fork of the zygote into a run's program. streams become its descriptors from 1 on."""
    try:
        os.setsid()
        os.chdir("/data")
        # From here on it is an ordinary process, and its memory holds no secret.
        prctl(PR_SET_DUMPABLE, 1)
        oom_score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        for filter in filters:
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter))
        spec, gate, oom_score, rules = arrange([os.open(os.devnull, os.O_RDONLY), *streams], spec, gate, oom_score, rules)
        os.closerange(1 + len(streams), spec)
        prepare(prestart)
        if os.read(gate, 1):
            check(libc.syscall(SYS_LANDLOCK_RESTRICT_SELF, rules, 0))  # now they are complete
            os.write(oom_score, b"1000")  # not earlier: when memory runs out, running programs are killed first
            with open(spec, "rb", closefd=False) as f:
                text = f.read()
            os.closerange(1 + len(streams), 1 << 16)
            run = json.loads(text)
            start(run)
    except BaseException as e:
        os.write(2, f"cannot start the run: {e}\n".encode(errors="replace"))
    finally:
        os._exit(126)


def arrange(fds, *others):
    """Moves fds to the numbers from 0 on and the others to high numbers, which it returns."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, HIGH) for fd in [*others, *fds]]
    for target, fd in enumerate(high[len(others) :]):
        os.dup2(fd, target)
    return high[: len(others)]


# ---- A run's process ----


def become(fds, filter, prestart):
    """Turns a fork of the zygote into a run's program. Its run may not be known yet."""
    mount, ipc, root, spec, out, err, *driver = fds
    setns(mount)
    os.fchdir(root)  # the namespace may not contain it
    os.chroot(".")
    setns(ipc)
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    check(libc.capset(struct.pack("Ii", LINUX_CAPABILITY_VERSION_3, 0), bytes(24)))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    streams = [os.open(os.devnull, os.O_RDONLY), out, err, *driver]
    (spec,) = arrange(streams, spec)
    os.closerange(len(streams), spec)  # including the zygote's connection: the agent must see it close when the zygote ends
    os.closerange(spec + 1, 1 << 16)
    os.setsid()
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(filter))
    prepare(prestart)
    with open(spec, "rb") as f:  # waits for the run
        text = f.read()
    if not text:
        os._exit(0)  # the agent discarded this process
    run = json.loads(text)
    os.chdir("/data")  # it may have been attached during the wait
    # From here on it is an ordinary process, and its memory holds no secret.
    prctl(PR_SET_DUMPABLE, 1)
    with open("/proc/self/oom_score_adj", "w") as f:
        f.write("1000")
    start(run)


def prepare(prestart):
    reseed()
    if prestart:
        rehearse()


def rehearse():
    """Does what every run does first, so that the kernel copies the written pages before a caller waits."""
    run = json.loads('{"path": "/dev/null", "code": "", "env": {"PYTHONPATH": "/"}}')
    put(run, os.O_WRONLY)
    environment({**os.environ, **run["env"]})
    paths(run)
    exec(load(run["path"]), vars(main_module(run["path"])))
    exec(compile("for each in [0]: print(end='')", "<rehearsal>", "exec"), {})
    libraries = getattr(sys.modules.get("sandbox_exercise"), "rehearse", None)
    if libraries is not None:
        libraries()
    gc.collect()


def start(run):
    put(run, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    set_run_limits(run["limits"])  # they are the code's
    environment(run["env"])
    sys.argv = [run["path"]]
    sys.orig_argv = [sys.executable, run["path"]]
    sys.path[:0] = paths(run)
    use_packages()
    run_program(run["path"])


def put(run, flags):
    with open(os.open(run["path"], flags, 0o600), "wb") as f:
        f.write(bytes.fromhex(run["code"]))


def paths(run):
    return [os.path.dirname(run["path"])] + [p for p in run["env"].get("PYTHONPATH", "").split(":") if p]


def use_packages():
    """Adds the session's packages to the path, now that this process belongs to the session."""
    use = getattr(sys.modules.get("sandbox_runner"), "use_packages", None)
    if use is not None:
        use()


def set_run_limits(limits):
    """Sets a run's limits. The memory that it shares with the zygote does not count as its own."""
    if "RLIMIT_DATA" in limits:
        limits["RLIMIT_DATA"] += data_size()
    set_limits(limits)


def data_size():
    """Returns the size of this process's writable memory, as RLIMIT_DATA counts it."""
    with open("/proc/self/status", "rb") as f:
        return next((int(line.split()[1]) << 10 for line in f if line.startswith(b"VmData:")), 0)


def set_limits(limits):
    """Sets resource limits, by their names in the module resource. It never raises one."""
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def environment(env):
    os.environ.clear()
    os.environ.update(env)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # the old TMPDIR
    figures = sys.modules.get("sandbox_figures")
    if figures is not None:
        figures.process = os.getpid()


def reseed():
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # Python seeds its own generator after a fork
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None:
        multiprocessing.current_process().authkey = os.urandom(32)  # authenticates its processes to each other


def run_program(path):
    """Runs a file as the interpreter runs its main program, and ends the process as it does."""
    program = sys.modules["__main__"] = main_module(path)
    error = None
    try:
        exec(load(path), program.__dict__)
    except BaseException as e:
        error = e  # reported below, where it is not the context of others
    finish(failed(error) if error else 0, program)


def main_module(path):
    program = types.ModuleType("__main__")
    program.__dict__.update(
        __annotations__={}, __builtins__=builtins, __file__=path, __cached__=None, __loader__=importlib.machinery.SourceFileLoader("__main__", path)
    )
    return program


def load(path):
    with open(path, "rb") as f:
        return compile(f.read(), path, "exec", dont_inherit=True)


def failed(e):
    """Reports an exception as the interpreter does, and returns the exit status."""
    if isinstance(e, SystemExit):
        if e.code is None:
            return 0
        if isinstance(e.code, int):
            return e.code & 0xFF
        flush()
        print(e.code, file=sys.stderr)
        return 1
    trace = e.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    e.__traceback__ = trace
    try:
        sys.excepthook(type(e), e, trace)
    except SystemExit as exit:  # sandbox_errors has run the program after all
        return failed(exit)
    except BaseException:
        sys.__excepthook__(type(e), e, trace)
    return -signal.SIGINT if isinstance(e, KeyboardInterrupt) else 1


def finish(status, program):
    """Does what Py_FinalizeEx does, for the program's own objects. It leaves the libraries' objects alone:
    touching them would copy them."""
    try:
        threading._shutdown()
    except BaseException as e:
        failed(e)
    atexit._run_exitfuncs()
    flushed = flush()
    for module in [program, *imported()]:
        clear(module.__dict__)
    gc.collect()
    flushed = flush() and flushed
    if status == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status if flushed or status else 120)


def imported():
    """Returns the modules that the program has imported, the last one first. They are at the end of
    sys.modules, so it need not visit all others."""
    modules, new, missing = [], len(sys.modules) - len(known), object()
    try:
        for name, module in reversed(sys.modules.items()):
            if known.get(name, missing) is module:
                if new <= 0:
                    break
                continue
            new -= 1
            if isinstance(module, types.ModuleType):
                modules.append(module)
    except RuntimeError:
        pass  # a daemon thread imports something
    return modules


def clear(names):
    """Drops a module's values in the interpreter's order: private ones first, builtins never."""
    for private in (True, False):
        for name in list(names):
            if name != "__builtins__" and (name.startswith("_") and not name.startswith("__")) == private:
                names[name] = None


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException:
            if stream is sys.stdout:
                return False
    return True


if __name__ == "__main__":
    main()
