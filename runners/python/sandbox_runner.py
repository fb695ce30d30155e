"""sandbox_runner.pth imports this whenever the interpreter starts, so it must stay small. It does
nothing until matplotlib is imported.

matplotlib scans all fonts if its cache directory is empty, as in every new sandbox, and warns if it
is not writable. So the cache made at installation is copied into MPLCONFIGDIR.

Figures that are shown, or left open at the end, go to SANDBOX_DISPLAY, a directory with a file index
of lines "<MIME type> <name>", or to a replacement of emit.
"""
import sys


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "matplotlib":
            try:
                _copy_fonts()
            except OSError:
                pass  # matplotlib makes its own
        elif name == "matplotlib.pyplot" and not _Finder.looking:
            _Finder.looking = True
            try:
                return _showing(name)
            finally:
                _Finder.looking = False
        return None

    looking = False  # while other finders look for pyplot's spec


def _copy_fonts():
    import os
    import shutil

    target = os.environ.get("MPLCONFIGDIR")
    source = os.path.join(sys.prefix, "share", "matplotlib-cache")
    if not target or os.path.isdir(target):
        return
    names = os.listdir(source)
    os.makedirs(target)
    for name in names:
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))


def _showing(name):
    """The spec of matplotlib.pyplot, with our show."""
    import importlib.util
    import os

    global process
    process = os.getpid()
    if emit is _to_directory and "SANDBOX_DISPLAY" not in os.environ:
        return None
    spec = importlib.util.find_spec(name)
    execute = spec.loader.exec_module

    def exec_module(module):
        import atexit

        execute(module)  # until this succeeds, the finder must handle the next import, too
        if _Finder in sys.meta_path:
            sys.meta_path.remove(_Finder)
        figure = sys.modules["matplotlib.figure"].Figure
        save = figure.savefig

        def savefig(self, *args, **kwargs):
            self.sandbox_saved = True
            return save(self, *args, **kwargs)

        figure.savefig, figure.sandbox_save = savefig, save
        figure.show = lambda self, *_, **__: show_figure(self)
        module.show = show_open_figures
        module.savefig = _saving(module)
        if emit is _to_directory:
            atexit.register(lambda: show_forgotten_figures() if os.getpid() == process else None)

    spec.loader.exec_module = exec_module
    return spec


def _saving(pyplot):
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
            agg.FigureCanvasAgg.renderer = property(_drawn_renderer, lambda self, value: vars(self).update(renderer=value))
        canvas.sandbox_outdated = False
        result = canvas.figure.savefig(*args, **kwargs)
        canvas.sandbox_outdated = True
        return result

    return savefig


def _drawn_renderer(canvas):
    if vars(canvas).pop("sandbox_outdated", False):
        canvas.draw()
    try:
        return vars(canvas)["renderer"]
    except KeyError:
        raise AttributeError("renderer") from None


def show_open_figures(*_, **__):
    """Replaces plt.show()."""
    for figure in _open_figures():
        _show_and_close(figure)


def show_forgotten_figures():
    """Shows the figures that are still open, except those that were saved to a file."""
    for figure in _open_figures():
        if hasattr(figure, "sandbox_saved"):
            sys.modules["matplotlib.pyplot"].close(figure)
        else:
            _show_and_close(figure)


def recover():
    """Removes what an error or an interrupt left, so that the next cell can plot: open figures, and
    the modules of a matplotlib whose import was interrupted."""
    if "matplotlib" not in sys.modules:
        for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
            if str(getattr(sys.modules[name], "__file__", "")).endswith(".py"):  # extension modules load only once
                del sys.modules[name]
    for figure in _open_figures():
        sys.modules["matplotlib.pyplot"].close(figure)


def _show_and_close(figure):
    try:
        show_figure(figure)
    finally:
        sys.modules["matplotlib.pyplot"].close(figure)


def _open_figures():
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not hasattr(pyplot, "get_fignums"):
        return []
    return [pyplot.figure(number) for number in pyplot.get_fignums()]


def show_figure(figure):
    import io

    if not figure.get_children()[1:]:
        return  # nothing was drawn
    buffer = io.BytesIO()
    figure.sandbox_save(buffer, format="png", bbox_inches="tight")
    emit("image/png", buffer.getvalue())


def _to_directory(mime, data):
    import os
    import uuid

    directory = os.environ["SANDBOX_DISPLAY"]
    name = uuid.uuid4().hex
    with open(os.path.join(directory, name), "wb") as f:
        f.write(data)
    with open(os.path.join(directory, "index"), "a") as f:
        f.write(f"{mime} {name}\n")


emit = _to_directory
process = None  # the process that shows figures at its end; its forks do not

sys.meta_path.insert(0, _Finder)
