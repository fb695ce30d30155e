"""Changes libraries that show something, when sandbox_runner sees that they are imported.

matplotlib scans all fonts if its cache directory is empty, as in every new sandbox, and warns if it
is not writable. So the cache made at installation is copied into MPLCONFIGDIR.

Figures that are shown, or left open at the end, and images that are saved in /data go to the directory
SANDBOX_DISPLAY, or to a replacement of emit. An image is shown once, however often it is saved or shown.
"""

import atexit
import importlib.util
import io
import os
import sys
from urllib.parse import quote, unquote

WORKSPACE = "/data"
WORKSPACES = ("/data/", "/mnt/data/", "/workspace/")  # the same directory
TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
FONTS = (  # for Chinese and Japanese, Korean, and emoji
    "zhplot/fonts/NotoSansSC-Regular.ttf",
    "koreanize_matplotlib/fonts/NanumGothic.ttf",
    "sandbox_emoji.ttf",
)
FAMILIES = (  # that people name for these characters, and that are not needed for them
    "SimHei SimSun YaHei Heiti PingFang KaiTi FangSong WenQuanYi JhengHei Noto_Sans_ Noto_Serif_ Source_Han Arial_Unicode Malgun Nanum AppleGothic "
    "Yu_Gothic Meiryo MS_Gothic Hiragino IPA Takao Emoji"
).split()
MAX_SAVED = 10  # saved images that a program or a cell shows, as many as an answer has
MAX_SAVED_SIZE = 4 << 20
MAX_FILES = 64

process = os.getpid()  # the one that shows figures at its end; its forks do not
saved = 0  # images that were shown because they were saved
is_saving_again = False  # a figure that was shown, to another file
logged = set()  # messages of matplotlib about fonts
files = {}  # by the hash of a saved image: its path below /data, as it is announced, and when it was saved


def find_spec(name):
    """The spec of a library, with our changes made after it is imported."""
    if name == "matplotlib":
        try:
            copy_fonts()
        except OSError:
            pass  # matplotlib makes its own
        return None
    change, shows_images = CHANGES[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None or shows_images and emit is leave_file and "SANDBOX_DISPLAY" not in os.environ:
        return spec
    execute = spec.loader.exec_module

    def exec_module(module):
        execute(module)
        change(module)

    spec.loader.exec_module = exec_module
    return spec


def copy_fonts():
    import shutil

    target = os.environ.get("MPLCONFIGDIR")
    source = os.path.join(sys.prefix, "share", "matplotlib-cache")
    if not target or os.path.isdir(target):
        return
    names = os.listdir(source)
    os.makedirs(target)
    for name in names:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))


# ---- Images that are saved ----


def change_pillow(module):
    save = module.Image.save

    def save_and_show(self, fp, *args, **kwargs):
        result = save(self, fp, *args, **kwargs)
        show_saved(fp)
        return result

    save_and_show.__name__, save_and_show.__doc__ = "save", save.__doc__
    module.Image.save = save_and_show
    module.Image.show = show_picture


def show_picture(picture, title=None, **_):
    """Replaces Image.show, which starts a viewer."""
    data = picture._repr_png_() or picture.convert("RGB")._repr_png_()
    emit("image/png", data, file_of(data))


def show_saved(file):
    """Shows an image that was saved in /data, at a path or in an open file."""
    global saved
    try:
        path = os.path.realpath(os.fspath(getattr(file, "name", file)))
        kind = TYPES[os.path.splitext(path)[1].lower()]
        name = next(path[len(place) :] for place in WORKSPACES if path.startswith(place))
        if os.getpid() != process or saved >= MAX_SAVED or os.path.getsize(path) > MAX_SAVED_SIZE:
            return
        with open(path, "rb") as f:
            data = f.read()
        modified = os.stat(path).st_mtime_ns
    except (TypeError, KeyError, OSError, ValueError, StopIteration):
        return
    if len(files) >= MAX_FILES:
        files.clear()
    files[hash(data)] = quote(name), modified
    if not is_saving_again:
        saved += 1
        emit(kind, data, file_of(data))


def file_of(data):
    """The file in which an image was saved, if that still has it."""
    path, modified = files.get(hash(data), ("", None))
    try:
        return path if os.stat(os.path.join(WORKSPACE, unquote(path))).st_mtime_ns == modified else None
    except OSError:
        return None


# ---- Figures ----


def change_pyplot(module):
    figure = sys.modules["matplotlib.figure"].Figure
    save = figure.savefig

    def savefig(self, fname, *args, **kwargs):
        global is_saving_again
        before = saved
        shown = is_saving_again = is_shown(self)
        try:
            result = save(self, fname, *args, **kwargs)  # through Pillow, unless it is SVG or PDF
        finally:
            is_saving_again = False
        if shown or saved > before:
            mark_shown(self)
        return result

    figure.savefig, figure.sandbox_save = savefig, save
    change_text(sys.modules["matplotlib.text"].Text)
    sys.modules["matplotlib.font_manager"]._log.addFilter(is_about_other_fonts)
    figure.show = lambda self, *_, **__: show_figure(self)
    module.show = show_open_figures
    module.savefig = saving(module)
    if emit is leave_file:
        atexit.register(lambda: show_open_figures() if os.getpid() == process else None)


def mark_shown(figure):
    figure.sandbox_shown, figure.stale = True, False


def is_shown(figure):
    """Reports whether the figure was shown and has not changed since."""
    return getattr(figure, "sandbox_shown", False) and not figure.stale


def change_text(text):
    """Adds fonts once a text needs them: to open them takes time and memory."""
    set_text = text.set_text

    def set_text_with_fonts(self, s):
        if set_text_with_fonts.missing and isinstance(s, str) and any(c >= "\u2600" for c in s):
            set_text_with_fonts.missing = False
            add_fonts()
        return set_text(self, s)

    set_text_with_fonts.missing = True
    text.set_text = set_text_with_fonts


def is_about_other_fonts(record):
    """Filters matplotlib's log, which repeats itself: a missing family does not matter if add_fonts has its
    characters."""
    text = record.getMessage()
    if not text.startswith("findfont:"):
        return True
    is_new = text not in logged
    logged.add(text)
    return is_new and not any(family.replace("_", " ") in text for family in FAMILIES)


def add_fonts():
    """Makes matplotlib look for characters that a font lacks in the fonts of FONTS, whatever the family."""
    manager = sys.modules["matplotlib.font_manager"]
    site = os.path.dirname(__file__)
    paths = [path for path in (os.path.join(site, name) for name in FONTS) if os.path.exists(path)]
    find = getattr(manager.FontManager, "_find_fonts_by_props", None)
    if find is None:
        return

    def find_with_fallback(self, *args, **kwargs):
        found = find(self, *args, **kwargs)
        return found + [path for path in paths if path not in found]

    manager.FontManager._find_fonts_by_props = find_with_fallback


def saving(pyplot):
    """pyplot.savefig, which draws its figure twice: to the file, and then to a canvas that nobody sees.
    Ours draws to the canvas when the program looks at it."""
    import functools

    original = pyplot.savefig

    @functools.wraps(original)
    def savefig(*args, **kwargs):
        agg = sys.modules.get("matplotlib.backends.backend_agg")
        canvas = pyplot.gcf().canvas
        if agg is None or type(canvas) is not agg.FigureCanvasAgg:
            return original(*args, **kwargs)
        if not hasattr(agg.FigureCanvasAgg, "renderer"):
            agg.FigureCanvasAgg.renderer = property(drawn_renderer, lambda self, value: vars(self).update(renderer=value))
        canvas.sandbox_outdated = False
        result = canvas.figure.savefig(*args, **kwargs)
        canvas.sandbox_outdated = True
        return result

    return savefig


def drawn_renderer(canvas):
    if vars(canvas).pop("sandbox_outdated", False):
        canvas.draw()
    try:
        return vars(canvas)["renderer"]
    except KeyError:
        raise AttributeError("renderer") from None


def show_open_figures(*_, **__):
    """Shows the figures that are open: for plt.show(), and at the end."""
    for figure in open_figures():
        show_and_close(figure)


def recover():
    """Removes what an error or an interrupt left, so that the next cell can plot: open figures, and
    the modules of a matplotlib whose import was interrupted."""
    if "matplotlib" not in sys.modules:
        for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
            if str(getattr(sys.modules[name], "__file__", "")).endswith(".py"):  # extension modules load only once
                del sys.modules[name]
    for figure in open_figures():
        sys.modules["matplotlib.pyplot"].close(figure)


def show_and_close(figure):
    try:
        show_figure(figure)
    finally:
        sys.modules["matplotlib.pyplot"].close(figure)


def open_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return []
    return [pyplot.figure(number) for number in pyplot.get_fignums()]


def show_figure(figure):
    if is_drawn(figure) and not is_shown(figure):
        emit("image/png", picture(figure))


def is_drawn(figure):
    return len(figure.get_children()) > 1  # besides the background


def picture(figure):
    """Draws a figure that is about to be shown."""
    buffer = io.BytesIO()
    save = getattr(figure, "sandbox_save", figure.savefig)  # its own if pyplot was not imported
    save(buffer, format="png", bbox_inches="tight")
    mark_shown(figure)
    return buffer.getvalue()


# ---- Other libraries ----


def change_plotly(module):
    """Makes figures say what to do: they need a browser to be drawn."""
    renderers = module.renderers
    renderers.default, renderers.render_on_display = "plotly_mimetype", True  # a value is shown with show
    original = module.show

    def show(fig, renderer=None, *args, **kwargs):
        if renderer in ("png", "jpeg", "jpg", "svg", "pdf", "json"):
            return original(fig, renderer, *args, **kwargs)
        kinds = ", ".join(dict.fromkeys(str(trace.type) for trace in getattr(fig, "data", ()))) or "empty"
        print(
            f"[plotly figure ({kinds}): it is interactive and cannot be drawn here. Save it for the user with "
            'fig.write_html("/data/figure.html", include_plotlyjs="cdn"). To see an image, draw it with matplotlib.]'
        )

    module.show = show


def change_tqdm(module):
    """Makes the progress bars of notebooks plain ones where their widgets are not installed."""
    if getattr(module, "IProgress", None) is None:
        std = sys.modules["tqdm.std"]
        module.tqdm = module.tqdm_notebook = std.tqdm
        module.trange = module.tnrange = std.trange


# ---- Fresh runs ----


def leave_file(kind, data, path=None):
    """Leaves a file, announces it in the named pipe index, and waits until it is gone: then it has its
    place in the output."""
    import uuid

    directory = os.environ["SANDBOX_DISPLAY"]
    index, name = os.path.join(directory, "index"), uuid.uuid4().hex
    content = os.path.join(directory, name)
    if not wait_until(lambda: os.path.exists(index)):
        return
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    with open(content, "wb") as f:
        f.write(data)
    fd = os.open(index, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(fd, f"{kind} {name} {path or ''}\n".encode())
    finally:
        os.close(fd)
    wait_until(lambda: not os.path.exists(content))


def wait_until(is_so, patience=1):
    import time

    pause, until = 20e-6, time.monotonic() + patience
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    return True


emit = leave_file
CHANGES = {  # and whether they show images
    "matplotlib.pyplot": (change_pyplot, True),
    "PIL.Image": (change_pillow, True),
    "plotly.io._renderers": (change_plotly, False),
    "tqdm.notebook": (change_tqdm, False),
}
