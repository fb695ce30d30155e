"""Runs a user's Python cell by cell, like a notebook. The agent starts it and exchanges lines with
it on descriptor 3; see internal/agent.

Variables, imports, the working directory and os.environ persist. Each cell has its own stdout and
stderr: pipes that the agent reads, including what a child process prints later. The driver shows the
value of a cell's last expression. What threads and tasks of an earlier cell print is late output:
the next cell's stdout has it, between two lines that mark it.
"""

import ast
import builtins
import contextvars
import fcntl
import functools
import io
import os
import signal
import sys
import termios
import threading
import time
import types
import warnings

CHANNEL_FD = 3
MAX_DISPLAYS = 64  # per cell, the agent's limit
MAX_MARKUP = 256 << 10  # bytes of a value's HTML or Markdown, and of the text that it replaces on the page
MAX_LATE = 8 << 10  # bytes of late output that are kept
MAX_FRAMES = 20  # of an interrupted cell
BUNDLE = "application/vnd.mcp-code-sandbox.bundle+json"
CLEAR = "application/vnd.mcp-code-sandbox.clear"


class Cell:
    """The present cell, its namespace, and how much it has displayed."""

    number = 0
    directory = None
    shown = 0  # since the output was cleared
    files = 0
    clearing = False  # before the next output
    stdin = None
    started_by = contextvars.ContextVar("cell")  # the number of the cell that started a task or a callback


def show_bytes(mime, data, saved=None):
    """Hands something to the agent to display. saved is the file below /data in which the code saved it."""
    if Cell.clearing:
        clear()
    if Cell.directory is None or os.getpid() != PID or Cell.shown >= MAX_DISPLAYS:
        return
    Cell.shown, Cell.files = Cell.shown + 1, Cell.files + 1
    name = f"display-{Cell.files}"
    path = os.path.join(Cell.directory, name)
    with open(path, "wb") as f:
        f.write(data)
    tell(f"display {Cell.number} {mime} {name}" + (f" {saved}" if saved else ""))
    Order.await_end(lambda: not os.path.exists(path))  # it has its place in the output


def clear(wait=False):
    """Withdraws what the cell has printed and shown, now or when there is something new."""
    Cell.clearing = wait
    if not wait:
        Cell.shown = 0
        show_bytes(CLEAR, b"\n")
        Cell.shown = 0


def tell(line):
    os.write(CHANNEL, line.encode() + b"\n")


class Order:
    """Keeps what this process prints and shows in order. The agent reads and passes on in one step, so it
    is enough to wait until the pipe that was used before is empty."""

    PATIENCE = 1  # seconds; with a reader that is slower, the order is lost, but no output
    last = None  # the pipe that was used last

    @classmethod
    def use(cls, pipe):
        before, cls.last = cls.last, pipe
        if before is not None:
            cls.await_end(before.is_empty)

    @classmethod
    def await_end(cls, has_ended):
        pause, until = 20e-6, None
        while not has_ended():
            now = time.monotonic()
            until = until or now + cls.PATIENCE
            if now > until:
                return
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)


# ---- Showing values ----


def emit(mime, data, saved=None):
    """Shows an image of sandbox_figures."""
    if IPYTHON is None:
        show_bytes(mime, data, saved)
    else:
        SHELL.display_pub.publish({mime: data}, {"saved": saved})


def show_text(text, mime=None, markup=None):
    """Prints a text on lines of its own, which a page may replace with HTML or Markdown."""
    pipe = Output.pipes[1]
    if sys.stdout is Stream.current[1] and pipe is not None and not pipe.is_at_line_start():
        sys.stdout.write("\n")
    text += "\n"
    sys.stdout.write(text)
    if mime is None or sys.stdout is not Stream.current[1] or max(len(text), len(markup)) > MAX_MARKUP or Cell.shown >= MAX_DISPLAYS:
        return
    import json

    text = text.encode(errors=Stream.FORMAT["errors"]).decode()
    show_bytes(BUNDLE, json.dumps({mime: markup, "text/plain": text}).encode())


class PandasFinder:
    """Sets pandas' display.max_columns to the default of a notebook instead of a terminal's."""

    MODULE, OPTION, DEFAULT = "pandas.core.config_init", "display.max_columns", 20

    @classmethod
    def install(cls):
        if cls.MODULE in sys.modules:
            cls.set_default()
        else:
            sys.meta_path.insert(0, cls)

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != cls.MODULE:
            return None
        from importlib.machinery import PathFinder

        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            cls.set_default()

        spec.loader.exec_module = exec_module
        return spec

    @classmethod
    def set_default(cls):
        try:
            config = sys.modules["pandas._config.config"]
            option = config._registered_options[cls.OPTION]
            if option.defval == 0:
                config._registered_options[cls.OPTION] = option._replace(defval=cls.DEFAULT)
                config.set_option(cls.OPTION, cls.DEFAULT)
        except Exception:  # a pandas with other options
            pass


# ---- Running cells ----


class Plain:
    """Runs cells where IPython is not installed: without magics, and with few kinds of values."""

    METHODS = {
        "image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_", "image/svg+xml": "_repr_svg_",
        "text/html": "_repr_html_", "text/markdown": "_repr_markdown_",
    }
    loop = None

    reported = None

    def __init__(self):
        self.user_module = types.ModuleType("__main__")
        self.user_ns = self.user_module.__dict__
        self.user_ns.update(__builtins__=builtins, display=self.display)

    def run(self, number, code):
        """Runs a cell and returns the exception that ended it, or None."""
        filename = f"<cell {number}>"
        try:
            remember_source(filename, code)
            tree = compile(code, filename, "exec", ast.PyCF_ONLY_AST)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
                last = ast.Expression(tree.body.pop().value)
            self.execute(compile(tree, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
            if last is not None:
                value = self.execute(compile(last, filename, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
                if value is not None:
                    self.user_ns["_"] = value
                    self.display(value)
        except BaseException as e:
            return e

    def execute(self, compiled):
        value = eval(compiled, self.user_ns)
        if not compiled.co_flags & 0x80:  # a coroutine, because of an await at the top level
            return value
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(value)

    def display(self, *values):
        for value in values:
            mime, data = self.represent(value)
            if mime is None:
                show_text(repr(value))
            elif mime.startswith("image/"):
                show_bytes(mime, data.encode(errors="replace") if isinstance(data, str) else data)
            else:
                show_text(repr(value), mime, data)

    def represent(self, value):
        """The value as one of its own methods describes it to notebooks. It must be a method of the type:
        mocks and proxies have every attribute."""
        for mime, method in self.METHODS.items():
            method = None if isinstance(value, type) else getattr(type(value), method, None)
            try:
                data = None if method is None else method(value)
            except Exception:
                continue
            if isinstance(data, (str, bytes)):
                return mime, data
        return None, None


def cell_exit_code(code):
    """Runs a cell to its end and returns its exit code. Errors go to its stderr."""
    e = SHELL.run(Cell.number, code)
    if e is None:
        return 0
    if isinstance(e, SystemExit):
        if e.code is None or isinstance(e.code, int):
            return (e.code or 0) & 0xFF
        print(e.code, file=sys.stderr)
        return 1
    if e is not SHELL.reported:
        report(e)
    return 130 if isinstance(e, KeyboardInterrupt) else 1


def report(e):
    (print_interrupt if isinstance(e, KeyboardInterrupt) else print_exception)(e)


def user_frames(tb):
    """Removes the driver's frames from a traceback, and what leads to the cell."""
    frames = []
    while tb is not None:
        if is_users(tb.tb_frame, frames):
            frames.append(tb)
        tb = tb.tb_next
    for tb, following in zip(frames, frames[1:] + [None]):
        tb.tb_next = following
    return frames[0] if frames else None


def is_users(frame, before):
    name = frame.f_code.co_filename
    return name not in OWN_FILES and (bool(before) or f"{os.sep}IPython{os.sep}" not in name and not name.startswith(STANDARD_LIBRARY))


def print_exception(e):
    import traceback

    if type(e).__name__ == "UsageError":  # of a magic
        print(f"UsageError: {e}", file=sys.stderr)
        return

    seen = set()

    def strip(e):
        if e is None or id(e) in seen:
            return
        seen.add(id(e))
        e.__traceback__ = user_frames(e.__traceback__)
        strip(e.__cause__)
        strip(e.__context__)

    strip(e)
    traceback.print_exception(type(e), e, e.__traceback__)
    print_hint(e)


def print_hint(e):
    try:
        import sandbox_errors

        sandbox_errors.print_hint(e)
    except Exception:
        pass


def print_interrupt(e):
    """Prints where the cell was interrupted: the outermost and the innermost of the user's frames."""
    import traceback

    waits = []
    for frame, line in getattr(e, "sandbox_waits", ()):
        if is_users(frame, waits):
            waits.append((frame, line))
    frames, half = list(traceback.StackSummary.extract(waits) or traceback.extract_tb(user_frames(e.__traceback__))), MAX_FRAMES // 2
    text = traceback.format_list(frames)
    if len(frames) > MAX_FRAMES:
        left_out = f"  [{len(frames) - 2 * half} frames were left out]\n"
        text = [*traceback.format_list(frames[:half]), left_out, *traceback.format_list(frames[-half:])]
    if text:
        text.insert(0, "Traceback (most recent call last):\n")
    sys.stderr.write("".join(text + traceback.format_exception_only(type(e), e)))


def remember_source(filename, code):
    """Lets tracebacks quote the cell. Carets need a newline at the end of each line."""
    import linecache

    lines = [line + "\n" for line in code.split("\n")]
    linecache.cache[filename] = (len(code), None, lines, filename)


class Late:
    """Output of threads and tasks whose cell had ended. It takes no lock, because a signal or a fork
    may interrupt any thread that prints."""

    pieces = []  # (number of the cell, data)
    size = 0
    omitted = 0  # bytes

    @classmethod
    def add(cls, number, data):
        kept = bytes(data[: max(0, MAX_LATE - cls.size)])
        cls.omitted += len(data) - len(kept)
        if kept:
            cls.size += len(kept)
            cls.pieces.append((number, kept))

    @classmethod
    def take(cls):
        """Returns the output since the last call, by cell, between lines that mark it."""
        pieces, cls.pieces, omitted, cls.omitted, cls.size = cls.pieces, [], cls.omitted, 0, 0
        cells = {}
        for number, data in pieces:
            cells[number] = cells.get(number, b"") + data
        text = b""
        for number, data in cells.items():
            text += b"[late output of cell %d]\n" % number + data + (b"" if data.endswith(b"\n") else b"\n")
        if omitted:
            text += b"[%d bytes of late output were left out]\n" % omitted
        return text + b"[end of late output]\n" if text else text


def print_late():
    """Writes late output to the stdout of the present cell."""
    pipe, text = Output.pipes[1], Late.take()
    if pipe is not None and text:
        pipe.write(text if pipe.is_at_line_start() else b"\n" + text)


class Pipe:
    """A cell's output pipe, with its own descriptor: 1 and 2 soon lead to the next cell's pipes."""

    def __init__(self, number, fd):
        self.number, self.file, self.last = number, io.FileIO(fd, "w"), b"\n"

    def write(self, data):
        """Writes all data: a signal may interrupt a write."""
        if len(data):
            self.last = data
        written = self.file.write(data)
        if written != len(data):
            rest = memoryview(data)[written:]
            while rest:
                rest = rest[self.file.write(rest) :]

    def is_at_line_start(self):
        return self.last[-1] == ord("\n")

    def is_empty(self):
        try:
            return not any(fcntl.ioctl(self.file.fileno(), termios.FIONREAD, bytes(4)))
        except (OSError, ValueError):
            return True

    def end(self, null):
        """Discards further output. The descriptor is freed when no thread writes to it any more."""
        os.dup2(null, self.file.fileno(), inheritable=False)

    def __del__(self):
        self.file.close()  # without a ResourceWarning, which a cell may have enabled


class Output(io.RawIOBase):
    """Descriptor fd of the present cell. What threads and tasks of earlier cells write is late output."""

    pipes = {1: None, 2: None}

    def __init__(self, fd):
        self.fd = fd

    def writable(self):
        return True

    def fileno(self):
        return self.fd

    def close(self):
        """Does nothing: a wrapper that a cell made may close this when a later cell frees it."""

    def write(self, data, cell=Cell.started_by.get):  # it is called for every part of a print
        if type(data) is not bytes:
            data = bytes(data)
        pipe, number = self.pipes[self.fd], cell(None)
        if number is None:
            number = printing_cell()
        if pipe is None or number != pipe.number:
            Late.add(number, data)
            return len(data)
        if Cell.clearing:
            clear()
        if Order.last is not pipe:
            Order.use(pipe)
        if Late.pieces and self.fd == 1 and pipe.is_at_line_start():
            print_late()
        pipe.write(data)
        return len(data)


def printing_cell():
    """The number of the cell that this thread or task belongs to."""
    number = Cell.started_by.get(None)
    return getattr(threading.current_thread(), "sandbox_cell", Cell.number) if number is None else number


class Stream(io.TextIOWrapper):
    """An unbuffered text stream. One that an earlier cell kept writes to the present cell."""

    FORMAT = {"encoding": "utf-8", "errors": "backslashreplace", "newline": None, "line_buffering": False, "write_through": True}
    current = {}
    former = []

    def __init__(self, fd):
        super().__init__(Output(fd), **self.FORMAT)

    @classmethod
    def of(cls, fd):
        """The stream of descriptor fd, the same for all cells unless one detached it. It is never freed:
        before CPython 3.14, a print in another thread uses it without a reference."""
        try:
            cls.current[fd].reset()
        except Exception:
            cls.former.append(cls.current.get(fd))
            cls.current[fd] = cls(fd)
        return cls.current[fd]

    def reset(self):
        """Reverts what a cell has changed."""
        self.reconfigure(**self.FORMAT)
        for own in (vars(self), vars(self.buffer)):
            for name in own.keys() - {"fd"}:
                del own[name]


def start_thread(thread, start=threading.Thread.start):
    """Thread.start that also assigns the thread to the cell that starts it."""
    thread.sandbox_cell = printing_cell()
    start(thread)


def adopt_pools():
    """Assigns work in a thread pool to the cell that submits it, not to the one that made the pool."""
    pools = sys.modules.get("concurrent.futures.thread")
    submit = getattr(getattr(pools, "ThreadPoolExecutor", None), "submit", None)
    if submit is None or submit.__code__.co_filename == __file__:
        return

    def run(number, function, /, *args, **kwargs):
        before = Cell.started_by.set(number)
        try:
            return function(*args, **kwargs)
        finally:
            Cell.started_by.reset(before)

    @functools.wraps(submit)
    def submit_for_cell(self, function, /, *args, **kwargs):
        return submit(self, run, printing_cell(), function, *args, **kwargs)

    pools.ThreadPoolExecutor.submit = submit_for_cell


def redirect(directory):
    """Points descriptors 1 and 2, and print, at the cell's pipes, or at nothing without a cell."""
    Order.last = None
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if directory is not None:
            opened = os.open(os.path.join(directory, name), os.O_WRONLY)
            os.dup2(opened, fd)
            Output.pipes[fd] = Pipe(Cell.number, opened)
            continue
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, fd)
        before, Output.pipes[fd] = Output.pipes[fd], None
        if before is not None:
            before.end(null)
        os.close(null)


def apply_environment(directory):
    """Sets the variables of one cell, and returns a function that reverts them."""
    path = os.path.join(directory, "env")
    if not os.path.exists(path):
        return lambda: None
    with open(path, encoding="utf-8", errors="surrogateescape") as f:
        given = dict(line.split("=", 1) for line in f.read().split("\0") if line)
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    use = getattr(sys.modules.get("sandbox_runner"), "use_packages", None)
    if use is not None:
        use()

    def restore():
        for name, value in given.items():
            if os.environ.get(name) != value:
                continue  # the cell has changed it
            if before[name] is None:
                del os.environ[name]
            else:
                os.environ[name] = before[name]

    return restore


def flush():
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def main():
    sys.modules["__main__"] = SHELL.user_module
    threading.Thread.start = start_thread
    PandasFinder.install()
    warnings.filterwarnings("ignore", "To exit: use")  # IPython's, about sys.exit
    sys.argv = [""]
    sys.path[0] = os.getcwd()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect(None)
    tell("ready")
    lines = os.fdopen(os.dup(CHANNEL), "r", encoding="utf-8")
    while True:
        run_tasks()
        line = lines.readline()
        if not line:
            return
        verb, number, directory = line.split()
        if verb != "execute":
            continue
        Cell.number, Cell.directory, Cell.shown, Cell.clearing = int(number), directory, 0, False
        Cell.started_by.set(Cell.number)
        sys.stdout, sys.stderr = Stream.of(1), Stream.of(2)  # what the old ones still hold is late
        redirect(directory)
        attempt(print_late)
        Cell.stdin = sys.stdin = open(os.devnull)
        if FIGURES is not None:
            FIGURES.saved = 0
        with open(os.path.join(directory, "code"), encoding="utf-8", errors="surrogateescape") as f:
            code = f.read()
        restore_environment = apply_environment(directory)
        attempt(adopt_pools)
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            obey_early_interrupt(directory)
            exit_code = cell_exit_code(code)
            if FIGURES is not None:
                FIGURES.show_open_figures()
        except KeyboardInterrupt as e:  # from a late signal
            print_interrupt(e)
            exit_code = 130
        except BaseException as e:  # a figure that cannot be drawn
            print_exception(e)
            exit_code = 1
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.getpid() != PID:  # a child that the code forked must not run the next cells
            attempt(flush)
            os._exit(exit_code)
        end_cell(restore_environment)
        tell(f"result {number} {exit_code}")


def obey_early_interrupt(directory):
    """Raises an interrupt that came while it was ignored."""
    if os.path.exists(os.path.join(directory, "interrupted")):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the signal itself may still come
        raise KeyboardInterrupt


def run_tasks():
    """Lets tasks of earlier cells go on until the next cell comes. An interrupt ends one that blocks it."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        attempt(RUN_TASKS)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def attempt(*steps):
    """Takes every step that works, whatever the user's code has replaced."""
    for step in steps:
        try:
            if step is not None:
                step()
        except Exception:
            pass


def end_cell(restore_environment):
    """Ends the cell."""
    attempt(getattr(FIGURES, "recover", None), flush, restore_environment, print_late, Cell.stdin.close)
    redirect(None)
    Cell.directory = None


try:
    import sandbox_figures as FIGURES  # an interpreter without libraries has no figures

    FIGURES.emit = emit
except ImportError:
    FIGURES = None
try:
    import sandbox_shell as IPYTHON

    SHELL = IPYTHON.SHELL.activate(show_bytes, show_text, report, clear)
except ImportError:
    IPYTHON, SHELL = None, Plain()
RUN_TASKS = (lambda: IPYTHON.run_tasks(CHANNEL)) if IPYTHON else None
OWN_FILES = {__file__, getattr(IPYTHON, "__file__", None), getattr(sys.modules.get("sandbox_runner"), "__file__", None)}
STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
PID = os.getpid()
CHANNEL = os.dup(CHANNEL_FD)
os.close(CHANNEL_FD)
os.set_inheritable(CHANNEL, False)
main()
