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
import functools
import io
import os
import signal
import sys
import threading
import types

CHANNEL_FD = 3
MAX_DISPLAYS = 64  # per cell, the agent's limit
MAX_MARKUP = 256 << 10  # bytes of a value's HTML or Markdown, and of the text that it replaces on the page
MAX_LATE = 8 << 10  # bytes of late output that are kept
MAX_FRAMES = 20  # of an interrupted cell
BUNDLE = "application/vnd.mcp-code-sandbox.bundle+json"


class Cell:
    """The present cell, its namespace, and how much it has displayed."""

    number = 0
    directory = None
    shown = 0
    started_by = contextvars.ContextVar("cell")  # the number of the cell that started a task or a callback


def show_bytes(mime, data):
    """Hands something to the agent to display."""
    if Cell.directory is None or os.getpid() != PID or Cell.shown >= MAX_DISPLAYS:
        return
    Cell.shown += 1
    name = f"display-{Cell.shown}"
    with open(os.path.join(Cell.directory, name), "wb") as f:
        f.write(data)
    tell(f"display {Cell.number} {mime} {name}")


def tell(line):
    os.write(CHANNEL, line.encode() + b"\n")


# ---- Showing values ----


def display(*values):
    """Shows values like a notebook: images, or what the interpreter prints."""
    for value in values:
        show(value)


def show(value):
    """Shows an image, or prints the repr, which a page may replace with HTML or Markdown."""
    if FIGURES is not None and _is(value, "matplotlib.figure", "Figure"):
        try:
            FIGURES.show_figure(value)
        finally:
            sys.modules["matplotlib.pyplot"].close(value)
        return
    for method, mime in (("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_svg_", "image/svg+xml")):
        data = represent(value, method)
        if data:
            show_bytes(mime, data if isinstance(data, bytes) else data.encode(errors="replace"))
            return
    text = repr(value) + "\n"
    sys.stdout.write(text)
    if sys.stdout is Stream.current[1] and len(text) <= MAX_MARKUP and Cell.shown < MAX_DISPLAYS:
        show_markup(value, text.encode(errors=Stream.FORMAT["errors"]).decode())


def show_markup(value, text):
    """Sends the value's HTML or Markdown, with the text that was printed for it."""
    for method, mime in (("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown")):
        data = represent(value, method)
        if isinstance(data, str) and data and len(data) <= MAX_MARKUP:
            import json

            show_bytes(BUNDLE, json.dumps({mime: data, "text/plain": text}).encode())
            return


def _is(value, module, name):
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name, ()))


def represent(value, method):
    """Calls a method by which objects describe themselves to notebooks. Returns None if it is missing
    or fails. It must be a method of the type: mocks and proxies have every attribute."""
    found = getattr(type(value), method, None)
    if found is None or isinstance(value, type):
        return None
    try:
        data = found(value)
    except Exception:
        return None
    if isinstance(data, tuple) and len(data) == 2:  # with metadata
        data = data[0]
    return data if isinstance(data, (str, bytes)) else None


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


def run(code, filename, namespace):
    """Runs a cell and shows the value of its last expression."""
    tree = compile(code, filename, "exec", ast.PyCF_ONLY_AST)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        last = ast.Expression(tree.body.pop().value)
    if tree.body:
        execute(compile(tree, filename, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
    if last is not None:
        value = execute(compile(last, filename, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)
        if value is not None:
            namespace["_"] = value
            show(value)


def execute(compiled, namespace):
    value = eval(compiled, namespace)
    if compiled.co_flags & 0x80:  # a coroutine, because of an await at the top level
        try:
            return loop().run_until_complete(value)
        except KeyboardInterrupt as e:
            e.sandbox_coroutine = value
            raise
    return value


def loop():
    import asyncio

    if Loop.loop is None or Loop.loop.is_closed():
        Loop.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(Loop.loop)
    return Loop.loop


class Loop:
    loop = None


def cell_exit_code(code, filename, namespace):
    """Runs a cell to its end and returns its exit code. Errors go to its stderr."""
    try:
        run(code, filename, namespace)
        return 0
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return (e.code or 0) & 0xFF
        print(e.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as e:
        print_interrupt(e)
        return 130
    except BaseException as e:
        print_exception(e)
        return 1


def user_frames(tb):
    """Removes the driver's frames from a traceback."""
    frames = []
    while tb is not None:
        if tb.tb_frame.f_code.co_filename != __file__:
            frames.append(tb)
        tb = tb.tb_next
    for tb, following in zip(frames, frames[1:] + [None]):
        tb.tb_next = following
    return frames[0] if frames else None


def print_exception(e):
    import traceback

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


def print_interrupt(e):
    """Prints where the cell was interrupted: the outermost and the innermost of the user's frames."""
    import traceback

    coroutine, waits = getattr(e, "sandbox_coroutine", None), []
    while getattr(coroutine, "cr_frame", None) is not None:  # the traceback shows only the event loop
        waits.append((coroutine.cr_frame, coroutine.cr_frame.f_lineno))
        coroutine = coroutine.cr_await
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
        pipe.write(text if pipe.at_line_start else b"\n" + text)


class Pipe:
    """A cell's output pipe, with its own descriptor: 1 and 2 soon lead to the next cell's pipes."""

    def __init__(self, number, fd):
        self.number, self.file, self.at_line_start = number, io.FileIO(fd, "w"), True

    def write(self, data):
        rest = memoryview(data).cast("B")
        if rest:
            self.at_line_start = rest[-1] == ord("\n")
        while rest:
            rest = rest[self.file.write(rest):]

    def end(self, null):
        """Discards further output. The descriptor is freed when no thread writes to it any more."""
        os.dup2(null, self.file.fileno(), inheritable=False)


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

    def write(self, data):
        data = memoryview(data).cast("B")
        pipe, number = self.pipes[self.fd], printing_cell()
        if pipe is not None and number == pipe.number:
            pipe.write(data)
        else:
            Late.add(number, data)
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
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    namespace["display"] = display
    threading.Thread.start = start_thread
    PandasFinder.install()
    sys.argv = [""]
    sys.path[0] = os.getcwd()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    redirect(None)
    tell("ready")
    lines = os.fdopen(os.dup(CHANNEL), "r", encoding="utf-8")
    for line in lines:
        verb, number, directory = line.split()
        if verb != "execute":
            continue
        Cell.number, Cell.directory, Cell.shown = int(number), directory, 0
        Cell.started_by.set(Cell.number)
        sys.stdout, sys.stderr = Stream.of(1), Stream.of(2)  # what the old ones still hold is late
        redirect(directory)
        attempt(print_late)
        sys.stdin = open(os.devnull)
        with open(os.path.join(directory, "code"), encoding="utf-8", errors="surrogateescape") as f:
            code = f.read()
        filename = f"<cell {number}>"
        remember_source(filename, code)
        restore_environment = apply_environment(directory)
        attempt(adopt_pools)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            exit_code = cell_exit_code(code, filename, namespace)
            if FIGURES is not None:
                FIGURES.show_forgotten_figures()
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
    attempt(getattr(FIGURES, "recover", None), flush, restore_environment, print_late)
    redirect(None)
    Cell.directory = None


try:
    import sandbox_runner as FIGURES  # an interpreter without libraries has no figures

    FIGURES.emit = show_bytes
except ImportError:
    FIGURES = None
PID = os.getpid()
CHANNEL = os.dup(CHANNEL_FD)
os.close(CHANNEL_FD)
os.set_inheritable(CHANNEL, False)
main()
