"""The notebook in which the driver runs Python cells: IPython's shell without a terminal, a history file
or a profile. A zygote imports this, so that all interpreters share the shell's memory.
"""

import asyncio
import atexit
import binascii
import builtins
import contextlib
import functools
import html
import json
import linecache
import os
import re
import subprocess
import sys
import types
import warnings
from asyncio import base_events, events, runners

from IPython.core import interactiveshell, oinspect, page
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.display_functions import display
from IPython.core.formatters import PlainTextFormatter
from traitlets.config import Config, Configurable
from traitlets import Any, Dict, Bool

PROFILE = "/tmp/.ipython/profile_default"  # never created
KEPT_VALUES = 8  # in Out
KEPT_SIZE = 1 << 20  # bytes of a value in Out, as far as they are known
IMAGES = ("image/png", "image/jpeg", "image/svg+xml", "image/gif", "image/webp")
MARKUP = ("text/html", "text/markdown", "text/latex")  # what a page can show in place of text
TEXTS = ("text/markdown", "text/latex")  # what is its own text, if a value has no better one


class Compiler(CachingCompiler):
    """Names cells like tracebacks do."""

    def get_code_name(self, raw_code, transformed_code, number):
        return f"<cell {number}>"

    def cache(self, transformed_code, number=0, raw_code=None):
        """Lets tracebacks quote the cell. Lines end where Python ends them, and str.splitlines finds more."""
        name = super().cache(transformed_code, number, raw_code)
        linecache.cache[name] = (len(transformed_code), None, [line + "\n" for line in transformed_code.split("\n")], name)
        return name


class Hook(DisplayHook):
    """Shows the value of a cell's last expression."""

    @property
    def prompt_count(self):
        return self.shell.number

    def quiet(self):
        return self.semicolon_at_end_of_expression(self.shell.code)

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.shell.display_pub.publish(format_dict, md_dict)

    def log_output(self, format_dict):
        pass

    def finish_displayhook(self):
        self._is_active = False

    def update_user_ns(self, result):
        super().update_user_ns(result)
        names, hidden = self.shell.user_ns, self.shell.user_ns_hidden
        values = names.get("_oh")
        if not isinstance(values, dict):
            return
        old = [n for n in values if isinstance(n, int)][:-KEPT_VALUES]
        if size(result) > KEPT_SIZE:
            old.append(self.prompt_count)
        for n in old:
            for each, key in ((values, n), (names, f"_{n}"), (hidden, f"_{n}")):
                each.pop(key, None)
        for name in "__", "___":
            if size(getattr(self, name)) > KEPT_SIZE:
                setattr(self, name, "")
                if names.get(name) is hidden.get(name):
                    self.shell.push({name: ""}, interactive=False)


def size(value):
    """The size of a value as far as it is known without looking at every part."""
    try:
        known = getattr(value, "nbytes", None)
        if isinstance(known, int):
            return known
        estimated = getattr(type(value), "estimated_size", None)
        if estimated is not None:  # polars
            return int(estimated(value))
        cells = getattr(value, "size", None)
        if isinstance(cells, int):  # pandas.DataFrame, whose memory_usage takes as long as showing it
            return 8 * cells
        return sys.getsizeof(value)
    except Exception:
        return 0


class PlainText(PlainTextFormatter):
    """Lets the error of a repr end the cell. IPython prints it and goes on."""

    __call__ = PlainTextFormatter.__call__.__wrapped__


class Publisher(DisplayPublisher):
    """Hands what is shown to Shell.show and Shell.show_text."""

    def publish(self, data, metadata=None, *args, transient=None, update=False, **kwargs):
        image = next((mime for mime in IMAGES if data.get(mime)), None)
        if image is not None:
            self.show(image, content(image, data[image]), metadata or {})
            return
        markup = next((mime for mime in MARKUP if isinstance(data.get(mime), str) and data[mime]), None)
        text = plain(data)
        if text is not None:
            self.shell.show_text(text, markup, data.get(markup))

    def show(self, mime, data, metadata):
        figures = sys.modules.get("sandbox_figures")
        self.shell.show(mime, data, metadata.get("saved") or figures and figures.file_of(data))

    def clear_output(self, wait=False):
        if self.shell.clear is not None:
            self.shell.clear(wait)


def content(mime, data):
    """The bytes of an image, which a value may give as text: SVG, or base64."""
    if isinstance(data, bytes):
        return data
    return data.encode(errors="replace") if mime == "image/svg+xml" else binascii.a2b_base64(data)


def plain(data):
    """The text that a value is printed as: its own, or that of a richer form if its own says nothing."""
    own = data.get("text/plain")
    if own is not None and not (own.startswith("<") and own.endswith(">")):
        return own
    texts = [data[mime] for mime in TEXTS if data.get(mime)]
    if isinstance(data.get("text/html"), str):
        texts.append(text_of(data["text/html"]))
    if "application/json" in data:
        texts.append(json.dumps(data["application/json"], indent=2, ensure_ascii=False, default=str))
    return next((text for text in texts if text), own)


LINES = {"br", "div", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "p", "pre", "table", "tr"}
HIDDEN = {"audio", "head", "iframe", "script", "style", "template", "title", "video"}


def text_of(markup):
    """The text of HTML, with a line per row and a tab between cells. It takes linear time, which
    html.parser does not."""
    parts, lower, at = [], markup.lower(), 0
    while (start := markup.find("<", at)) >= 0:
        parts.append(one_line(markup[at:start]))
        close = "-->" if markup.startswith("<!--", start) else ">"
        end = markup.find(close, start)
        if end < 0:
            break
        at = end + len(close)
        slash, name = re.match("<(/?)([a-z0-9]*)", lower[start : start + 20]).groups()
        if name in HIDDEN and not slash:
            end = lower.find(f"</{name}", at)
            at = end if end >= 0 else len(markup)
        elif name in LINES:
            parts.append("\n")
        elif slash and name in ("td", "th"):
            parts.append("\t")
    else:
        parts.append(one_line(markup[at:]))
    lines = (line.rstrip(" \t") for line in "".join(parts).split("\n"))
    return "\n".join(line for line in lines if line)


def one_line(text):
    return html.unescape(" ".join(text.split()) if "\n" in text else text)


class InlineBackend(Configurable):
    """Accepts the settings that notebooks make with %config InlineBackend. Figures are shown in any case."""

    figure_format = Any("png").tag(config=True)
    figure_formats = Any({"png"}).tag(config=True)
    print_figure_kwargs = Dict({"bbox_inches": "tight"}).tag(config=True)
    rc = Dict().tag(config=True)
    close_figures = Bool(True).tag(config=True)


class Shell(interactiveshell.InteractiveShell):
    code, number = "", 0  # of the present cell
    show = show_text = report = clear = None  # see activate
    reported = None  # the last exception that was given to report
    profile_dir = Any()
    db = property(lambda self: self.__dict__.setdefault("sandbox_db", {}), lambda self, value: None)

    def activate(self, show, show_text, report, clear=None):
        """Makes this the shell of the process. show(mime, data, saved) shows an image, show_text(text, mime,
        markup) prints a text that a page may replace with markup, report(error) prints an exception,
        clear(wait) withdraws what the cell has printed and shown."""
        self.show, self.show_text, self.report, self.clear = show, show_text, report, clear
        self.user_ns["_dh"][:] = [os.getcwd()]
        for kind in Shell._walk_mro():
            kind._instance = self
        vars(builtins).update(OWN_BUILTINS)
        warnings.filterwarnings("ignore", "`make_tokens_by_line`")  # IPython's, about odd line separators
        return self

    def init_ipython_dir(self, ipython_dir):
        pass

    def init_profile_dir(self, profile_dir):
        self.profile_dir = types.SimpleNamespace(location=PROFILE)

    def init_virtualenv(self):
        pass

    def init_sys_modules(self):
        pass  # the driver does it

    def init_io(self):
        pass

    def _tee(self, channel):  # IPython keeps what cells print; nobody reads it here
        return contextlib.nullcontext()

    def run(self, number, code):
        """Runs a cell and returns the exception that ended it, or None."""
        self.number = self.execution_count = number
        self.code, self.reported = code, None
        self.remember(code)
        with pretended_loop(code):
            result = self.run_cell(code)
        return result.error_before_exec or result.error_in_exec

    def remember(self, code):
        """Keeps the cell for In, _i and %history."""
        for inputs in (self.history_manager.input_hist_parsed, self.history_manager.input_hist_raw):
            inputs.extend([""] * (self.number - len(inputs)))
            inputs[self.number :] = [code]
        earlier = dict(zip(("_i", "_ii", "_iii"), inputs[self.number - 1 :: -1]))
        self.user_ns.update({**earlier, f"_i{self.number}": code})

    def enable_matplotlib(self, gui=None):
        return gui or "inline", "agg"

    def enable_gui(self, gui=None):
        pass

    def ask_exit(self):
        raise SystemExit(0)

    def showtraceback(self, exc_tuple=None, *args, **kwargs):
        error = exc_tuple[1] if exc_tuple else sys.exc_info()[1] or getattr(sys, "last_value", None)
        if error is None or isinstance(error, SystemExit):
            return
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        self.reported = error
        self.report(error)

    def showsyntaxerror(self, *args, **kwargs):
        self.showtraceback()

    showindentationerror = showsyntaxerror

    def system(self, command):
        """Runs a command of a line with "!". It writes to the descriptors of the cell itself."""
        command = self.var_expand(command, depth=1)
        sys.stdout.flush()
        sys.stderr.flush()
        status = subprocess.call(command, shell=True, executable="/bin/bash" if os.path.exists("/bin/bash") else None, stdin=subprocess.DEVNULL)
        self.user_ns["_exit_code"] = status


# ---- One event loop for all cells ----


class Loop:
    loop = None


def session_loop():
    if Loop.loop is None or Loop.loop.is_closed():
        Loop.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(Loop.loop)
    return Loop.loop


def run_in_loop(coroutine):
    """Runs a cell with await at its top level."""
    events._set_running_loop(None)
    loop = session_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt as e:
        e.sandbox_waits = waits(coroutine)
        task.cancel()
        loop.run_until_complete(asyncio.wait([task], timeout=1))
        raise


def waits(coroutine):
    """The frames in which a coroutine waits: a traceback shows only the event loop's."""
    found = []
    while getattr(coroutine, "cr_frame", None) is not None:
        found.append((coroutine.cr_frame, coroutine.cr_frame.f_lineno))
        coroutine = coroutine.cr_await
    return found


@contextlib.contextmanager
def pretended_loop(code):
    """Lets a cell without await start tasks, as in a notebook, where the loop always runs."""
    if Loop.loop is None and "asyncio" not in code:
        yield
        return
    events._set_running_loop(session_loop())
    try:
        yield
    finally:
        events._set_running_loop(None)


def apart(function):
    """Lets a function that runs a loop do so although a cell pretends that one is running."""

    @functools.wraps(function)
    def run_apart(*args, **kwargs):
        loop = events._get_running_loop()
        if loop is None or loop.is_running():
            return function(*args, **kwargs)
        events._set_running_loop(None)
        try:
            return function(*args, **kwargs)
        finally:
            events._set_running_loop(loop)

    return run_apart


def run_tasks(fd):
    """Lets tasks of earlier cells go on until fd can be read."""
    if Loop.loop is None or Loop.loop.is_closed() or not asyncio.all_tasks(Loop.loop):
        return
    readable = Loop.loop.create_future()
    Loop.loop.add_reader(fd, lambda: readable.done() or readable.set_result(None))
    try:
        Loop.loop.run_until_complete(readable)
    finally:
        Loop.loop.remove_reader(fd)


def patch_asyncio():
    asyncio.run = runners.run = apart(runners.run)
    if hasattr(runners, "Runner"):  # since Python 3.11
        runners.Runner.run = apart(runners.Runner.run)
    for name in "run_forever", "run_until_complete":
        setattr(base_events.BaseEventLoop, name, apart(getattr(base_events.BaseEventLoop, name)))


# ---- Values, figures and packages ----


def find_file(value, find=oinspect.find_file):
    """The file of a value for help. A cell is not in the working directory."""
    name = find(value)
    return os.path.basename(name) if name and os.path.basename(name).startswith("<cell ") else name


def show_captured():
    """Shows figures to %%capture. The driver shows those of other cells."""
    figures = sys.modules.get("sandbox_figures")
    if figures is not None and not isinstance(SHELL.display_pub, Publisher):
        figures.show_open_figures()


def picture(figure):
    """A figure of matplotlib that is a value."""
    import sandbox_figures

    return sandbox_figures.picture(figure) if sandbox_figures.is_drawn(figure) else None


def install(line):
    """%pip, without IPython's advice to restart."""
    SHELL.system(f"{sys.executable} -m pip {line}")


def install_by_uv(line):
    """%uv: the command, which is no module of this Python."""
    SHELL.system(f"uv {line}")


OWN_BUILTINS = {"__IPYTHON__": True, "display": display}


def make():
    """Makes the shell. It stays out of programs' sight until it is activated."""
    before = sys.displayhook, sys.excepthook, sys.modules.get("__main__")
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.cache_size = 1000
    config.InteractiveShell.separate_in = ""
    config.Completer.use_jedi = False
    interactiveshell.PickleShareDB = lambda path: None
    oinspect.find_file = find_file
    shell = Shell.instance(
        config=config, user_module=types.ModuleType("__main__"), display_pub_class=Publisher, displayhook_class=Hook, compiler_class=Compiler, colors="nocolor"
    )
    shell.loop_runner = run_in_loop
    for names in shell.user_ns, shell.user_ns_hidden:
        names.pop("open", None)  # IPython's own, which only keeps a cell from closing its streams
    atexit.unregister(shell.atexit_operations)
    shell.configurables.append(InlineBackend(parent=shell))
    shell.set_hook("show_in_pager", page.as_hook(page.display_page), 99)
    shell.events.register("post_execute", show_captured)
    formatters = shell.display_formatter.formatters
    formatters["text/plain"] = PlainText(parent=shell.display_formatter)
    formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", picture)
    shell.register_magic_function(install, magic_name="pip")
    shell.register_magic_function(install_by_uv, magic_name="uv")
    shell.transform_cell("!a\n%b\nc?")  # compiles regular expressions
    sys.displayhook, sys.excepthook, sys.modules["__main__"] = before
    Shell.clear_instance()
    for name in OWN_BUILTINS:
        vars(builtins).pop(name, None)
    return shell


patch_asyncio()
SHELL = make()
