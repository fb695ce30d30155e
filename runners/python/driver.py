"""Runs a user's Python cell by cell, as a notebook does. The agent starts it; see internal/agent/cells_linux.go for the lines it
reads and writes on descriptor 3.

Variables, imports, the working directory and os.environ live on in one namespace. Each cell has its own stdout and stderr: pipes
that the agent reads until the cell has ended. The value of a cell's last expression is shown.
"""

import ast
import builtins
import io
import os
import signal
import sys
import threading
import types

CHANNEL_FD = 3
MAX_ROWS, MAX_COLUMNS = 20, 20


class Cell:
    """The cell that runs: where it lives, and what was shown so far."""

    number = 0
    directory = None
    shown = 0


def show_bytes(mime, data):
    """Hands something to the agent to be displayed."""
    if Cell.directory is None or os.getpid() != PID:
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
    """Shows values as a notebook would: pictures, tables, or their repr."""
    for value in values:
        show(value)


def show(value):
    if FIGURES is not None and _is(value, "matplotlib.figure", "Figure"):
        FIGURES.show_figure(value)
        sys.modules["matplotlib.pyplot"].close(value)
        return
    text = table(value)
    if text is not None:
        sys.stdout.write(text)
        return
    for method, mime in (("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_svg_", "image/svg+xml"),
                         ("_repr_markdown_", "text/markdown"), ("_repr_html_", "text/html")):
        data = _call(value, method)
        if data is None:
            continue
        show_bytes(mime, data if isinstance(data, bytes) else str(data).encode())
        if mime == "text/html":
            break  # a model reads the repr, too
        return
    sys.stdout.write(repr(value) + "\n")


def _is(value, module, name):
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name, ()))


def _call(value, method):
    if isinstance(value, type):
        return None
    try:
        return getattr(value, method)()
    except Exception:
        return None


def table(value):
    """A pandas frame or series as a compact Markdown table; None for anything else."""
    if _is(value, "pandas", "Series"):
        value = value.to_frame(value.name if value.name is not None else "value")
    elif not _is(value, "pandas", "DataFrame"):
        return None
    rows, columns = value.shape
    frame = value
    if rows > MAX_ROWS:
        frame = sys.modules["pandas"].concat([value.head(MAX_ROWS // 2), value.tail(MAX_ROWS // 2)])
    frame = frame.iloc[:, :MAX_COLUMNS]
    clean = lambda x: " ".join(str(x).replace("|", "\\|").split())
    number = lambda x: f"{x:.6g}" if isinstance(x, float) else clean(x)
    lines = ["| " + " | ".join([""] + [clean(c) for c in frame.columns]) + " |", "|---" * (frame.shape[1] + 1) + "|"]
    for i, (index, row) in enumerate(zip(frame.index, frame.itertuples(index=False, name=None))):
        if rows > MAX_ROWS and i == MAX_ROWS // 2:
            lines.append("| … " * (frame.shape[1] + 1) + "|")
        lines.append("| " + " | ".join([clean(index)] + [number(x) for x in row]) + " |")
    if rows > MAX_ROWS or columns > MAX_COLUMNS:
        lines.append(f"\n{rows} rows × {columns} columns")
    return "\n".join(lines) + "\n"


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
    if compiled.co_flags & 0x80:  # a coroutine: there was an await at the top level
        return loop().run_until_complete(value)
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
    """Runs a cell to its end and returns its exit code; what went wrong is on its stderr."""
    try:
        run(code, filename, namespace)
        return 0
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return (e.code or 0) & 0xFF
        print(e.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    except BaseException as e:
        print_exception(e)
        return 1


def print_exception(e):
    import traceback

    seen = set()

    def user_frames(tb):
        while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
            tb = tb.tb_next
        return tb

    def strip(e):
        if e is None or id(e) in seen:
            return
        seen.add(id(e))
        e.__traceback__ = user_frames(e.__traceback__)
        strip(e.__cause__)
        strip(e.__context__)

    strip(e)
    traceback.print_exception(type(e), e, e.__traceback__)


def remember_source(filename, code):
    import linecache

    linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)


class Pipe:
    """One end of a cell's output. It has a descriptor of its own: descriptors 1 and 2 lead to the next cell's pipes at once."""

    def __init__(self, number, fd):
        self.number, self.file = number, io.FileIO(fd, "w")

    def end(self, null):
        """Has what still comes go nowhere. The descriptor's number is free when nobody is writing to it any more."""
        os.dup2(null, self.file.fileno(), inheritable=False)


class Output(io.RawIOBase):
    """What the cell that runs has for descriptor fd. A thread that an earlier cell left behind writes into the void."""

    pipes = {1: None, 2: None}

    def __init__(self, fd):
        self.fd = fd

    def writable(self):
        return True

    def fileno(self):
        return self.fd

    def close(self):
        """Does nothing: what a cell has wrapped around it closes it when it is freed, be it in a later cell."""

    def write(self, data):
        pipe = self.pipes[self.fd]
        if pipe is None or getattr(threading.current_thread(), "sandbox_cell", pipe.number) != pipe.number:
            return len(data)
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            rest = rest[pipe.file.write(rest):]
        return size


class Stream(io.TextIOWrapper):
    """An unbuffered text stream: output is seen as it is produced. One that an earlier cell has kept writes to the cell that runs."""

    FORMAT = {"encoding": "utf-8", "errors": "backslashreplace", "newline": None, "line_buffering": False, "write_through": True}
    current = {}
    former = []

    def __init__(self, fd):
        super().__init__(Output(fd), **self.FORMAT)

    @classmethod
    def of(cls, fd):
        """The stream of descriptor fd: the same for all cells, unless one has taken it apart. None is ever freed: a print in another thread may be
        using it without a reference of its own (in CPython before 3.14), and the interpreter would crash."""
        try:
            cls.current[fd].reset()
        except Exception:
            cls.former.append(cls.current.get(fd))
            cls.current[fd] = cls(fd)
        return cls.current[fd]

    def reset(self):
        """Takes back what a cell has changed."""
        self.reconfigure(**self.FORMAT)
        for own in (vars(self), vars(self.buffer)):
            for name in own.keys() - {"fd"}:
                del own[name]


def start_thread(thread, start=threading.Thread.start):
    """Thread.start, remembering the cell to which the thread belongs: that of the thread that starts it."""
    thread.sandbox_cell = getattr(threading.current_thread(), "sandbox_cell", Cell.number)
    start(thread)


def redirect(directory):
    """Points descriptors 1 and 2, and what is printed, at the cell's pipes; without a cell they lead nowhere."""
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
    """Sets the variables that a cell has for itself, and returns what takes them away again."""
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
                continue  # the cell has set it to something else
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
        sys.stdout, sys.stderr = Stream.of(1), Stream.of(2)  # what is still in those before goes nowhere
        redirect(directory)
        sys.stdin = open(os.devnull)
        with open(os.path.join(directory, "code"), encoding="utf-8", errors="surrogateescape") as f:
            code = f.read()
        filename = f"<cell {number}>"
        remember_source(filename, code)
        restore_environment = apply_environment(directory)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            exit_code = cell_exit_code(code, filename, namespace)
            if FIGURES is not None:
                FIGURES.show_forgotten_figures()
        except BaseException as e:  # an interrupt that came late, or a figure that cannot be drawn
            print_exception(e)
            exit_code = 1
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        flush()
        try:
            restore_environment()
        except Exception:  # the cell has put something else in place of os.environ
            pass
        redirect(None)
        Cell.directory = None
        tell(f"result {number} {exit_code}")


try:
    import sandbox_runner as FIGURES  # of the environment with the libraries; a bare interpreter has no figures

    FIGURES.emit = show_bytes
except ImportError:
    FIGURES = None
PID = os.getpid()
CHANNEL = os.dup(CHANNEL_FD)
os.close(CHANNEL_FD)
os.set_inheritable(CHANNEL, False)
main()
