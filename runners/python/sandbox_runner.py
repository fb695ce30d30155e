"""sandbox_runner.pth imports this whenever the interpreter starts, so it must stay small. What it adds is
in modules that are imported when they are needed: sandbox_figures, sandbox_pip and sandbox_errors.
"""
import builtins
import os
import sys
from _frozen_importlib_external import (
    BYTECODE_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, PathFinder, SourceFileLoader, SourcelessFileLoader,
)
from _imp import extension_suffixes


class Finder:
    """Lets our modules change libraries when they are imported."""

    CHANGED = {
        "matplotlib": "sandbox_figures",
        "matplotlib.pyplot": "sandbox_figures",
        "PIL.Image": "sandbox_figures",
        "plotly.io._renderers": "sandbox_figures",
        "tqdm.notebook": "sandbox_figures",
        "pip._internal.cli.main": "sandbox_pip",
    }
    # No package may bring these: the interpreter imports the first two when it starts, the driver imports its own
    # modules, and pip is the one that sandbox_pip knows.
    OWN = {
        "sitecustomize", "usercustomize", "pip",
        "sandbox_errors", "sandbox_exercise", "sandbox_figures", "sandbox_install", "sandbox_pip", "sandbox_runner", "sandbox_shell",
    }
    looking = False  # while other finders look for the library

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.OWN and packages() in sys.path:
            return without_packages(name)
        if cls.looking or name not in cls.CHANGED:
            return None
        cls.looking = True
        try:
            return __import__(cls.CHANGED[name]).find_spec(name)
        finally:
            cls.looking = False


# ---- The session's packages; see docs/packages.md ----


def packages():
    """The directory of the session's packages, which may not exist, or None. Zygotes have none."""
    prefix = os.environ.get("SANDBOX_PYTHON_PACKAGES")
    return prefix and f"{prefix}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


def use_packages(is_start=False):
    """Puts the session's packages last on the path, or before the runner's libraries if it has another version of
    some of them. When a process starts, it looks itself: nothing is loaded yet. It reads no .pth file.
    """
    directory = packages()
    if not directory or directory in sys.path:
        return
    own, at = os.path.dirname(__file__), len(sys.path)
    if own in sys.path and ("SANDBOX_PACKAGES_FIRST" in os.environ or is_start and replaces(directory, own)):
        at = sys.path.index(own)
    sys.path.insert(at, directory)
    sys.path_hooks.insert(0, package_finder)


def replaces(directory, own):
    """Whether the session has another version of one of the runner's libraries. The server decides it in the same way."""
    try:
        theirs, ours = versions(directory), versions(own)
    except OSError:
        return False
    return any(ours.get(name, version) != version and name != "pip" for name, version in theirs.items())


def versions(directory):
    """The versions of the packages in a directory, by their names in the form of PEP 503 (without re, whose import
    takes 5 ms). Installers write INSTALLER last.
    """
    found = {}
    for entry in os.listdir(directory):
        name, dash, version = entry.removesuffix(".dist-info").partition("-")
        if dash and entry.endswith(".dist-info") and os.path.exists(f"{directory}/{entry}/INSTALLER"):
            name = name.lower().replace("_", "-").replace(".", "-")
            while "--" in name:
                name = name.replace("--", "-")
            found[name] = version
    return found


class PackageLoader(SourceFileLoader):
    """Keeps the bytecode of what is imported. pip would compile all of a package when it is installed."""

    def get_code(self, fullname):
        before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
        try:
            return super().get_code(fullname)
        finally:
            sys.dont_write_bytecode = before


def package_finder(path):
    """Finds modules in the session's packages."""
    if not path.startswith(packages() or "\0"):
        raise ImportError
    return FileFinder(
        path, (ExtensionFileLoader, extension_suffixes()), (PackageLoader, SOURCE_SUFFIXES), (SourcelessFileLoader, BYTECODE_SUFFIXES)
    )


def without_packages(name):
    """The spec of a module that no package may bring."""
    spec = PathFinder.find_spec(name, [path for path in sys.path if path != packages()])
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return spec


class Packages:
    """Finds a package that was installed since the import system last looked: it remembers what was not there."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        directory = packages()
        if path is not None or not directory or directory not in sys.path:
            return None
        sys.path_importer_cache.pop(directory, None)
        return PathFinder.find_spec(name, [directory])


def excepthook(kind, error, trace, standard=sys.excepthook):
    if not isinstance(error, Exception):
        return standard(kind, error, trace)  # imports could change the exit code of an interrupt
    try:
        sys.stdout.flush()  # what was printed comes before the error
    except Exception:
        pass
    import sandbox_errors

    sandbox_errors.report(kind, error, trace, standard)


def read_line(*prompt, read=builtins.input):
    try:
        return read(*prompt)
    except EOFError:
        raise EOFError(
            "there is no keyboard: nobody can answer input(). Assign the value in the code, or read it from a file in /data or from os.environ"
        ) from None


sys.meta_path.insert(0, Finder)
sys.meta_path.append(Packages)
use_packages(is_start=True)
sys.excepthook = excepthook
read_line.__name__ = read_line.__qualname__ = "input"
read_line.__doc__ = builtins.input.__doc__
builtins.input = read_line
if "SANDBOX_NOTEBOOK" in os.environ:
    import sandbox_errors

    sandbox_errors.import_programs()
