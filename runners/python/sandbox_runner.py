"""Imported at every start of the environment's interpreter, by sandbox_runner.pth: keep it tiny. Nothing happens before matplotlib is
imported.

matplotlib scans all fonts when its cache directory is empty, which in a sandbox it always is, and warns when the directory
is not writable. So the cache made at installation is copied into MPLCONFIGDIR.

Figures that are shown, or left open at the end, are handed on to be displayed: to SANDBOX_DISPLAY, a directory with a file index of
lines "<MIME type> <name>", or to whatever emit is replaced by.
"""
import sys


class _Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "matplotlib":
            try:
                _copy_fonts()
            except OSError:
                pass  # matplotlib then makes its own
        elif name == "matplotlib.pyplot" and not _Finder.looking:
            _Finder.looking = True
            try:
                return _showing(name)
            finally:
                _Finder.looking = False
        return None

    looking = False  # for the spec of pyplot, which others find


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
    """The spec of matplotlib.pyplot with a show that shows."""
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

        execute(module)  # until this succeeds, the next import of it must be found here, too
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
        if emit is _to_directory:
            atexit.register(lambda: show_forgotten_figures() if os.getpid() == process else None)

    spec.loader.exec_module = exec_module
    return spec


def show_open_figures(*_, **__):
    """What plt.show() does here."""
    for figure in _open_figures():
        _show_and_close(figure)


def show_forgotten_figures():
    """What becomes of figures that are left open: those that were saved to a file have been seen to."""
    for figure in _open_figures():
        if hasattr(figure, "sandbox_saved"):
            sys.modules["matplotlib.pyplot"].close(figure)
        else:
            _show_and_close(figure)


def recover():
    """Takes back what an error or an interrupt has left, so that the next cell can plot: open figures, into which it would draw, and
    the modules of a matplotlib whose import was interrupted, with which it could not be imported again."""
    if "matplotlib" not in sys.modules:
        for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
            if str(getattr(sys.modules[name], "__file__", "")).endswith(".py"):  # others can be loaded but once
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
process = None  # whose figures are shown at its end; a fork of it has none of its own

sys.meta_path.insert(0, _Finder)
