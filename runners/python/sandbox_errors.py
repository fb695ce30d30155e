"""What happens when an exception ends a program or a cell: sandbox_runner and the driver import it then.
It prints a hint where one saves a turn, and runs a program that is written for a notebook.
"""

import builtins
import difflib
import importlib.util
import os
import re
import sys

IMPORTS = {
    "np": "import numpy as np", "pd": "import pandas as pd", "plt": "import matplotlib.pyplot as plt", "sns": "import seaborn as sns",
    "pl": "import polars as pl", "px": "import plotly.express as px", "go": "import plotly.graph_objects as go", "nx": "import networkx as nx",
    "sm": "import statsmodels.api as sm", "smf": "import statsmodels.formula.api as smf", "sp": "import scipy as sp", "stats": "from scipy import stats",
    "mpl": "import matplotlib as mpl", "pa": "import pyarrow as pa", "pq": "import pyarrow.parquet as pq", "dt": "import datetime as dt",
    "tqdm": "from tqdm import tqdm", "Path": "from pathlib import Path", "Counter": "from collections import Counter",
    "defaultdict": "from collections import defaultdict", "partial": "from functools import partial", "reduce": "from functools import reduce",
    "timedelta": "from datetime import timedelta", "BeautifulSoup": "from bs4 import BeautifulSoup", "Image": "from PIL import Image",
    "display": "from IPython.display import display", "HTML": "from IPython.display import HTML", "Markdown": "from IPython.display import Markdown",
}
MODULES = {"numpy", "pandas", "matplotlib", "seaborn", "scipy", "sklearn", "statsmodels", "sympy", "networkx", "polars", "duckdb", "plotly", "requests"}
CHILDREN = "SANDBOX_NOTEBOOK"  # in the environment of processes that such a program starts; see sandbox_runner
NESTED_LOOP = ("cannot be called from a running event loop", "event loop is already running", "while another loop is running")
MAX_NAMES = 12  # in a hint
MAX_LISTED = 2000  # of a directory


def report(kind, error, trace, standard):
    """Replaces sys.excepthook."""
    if isinstance(error, SyntaxError) and trace is None and is_main_program(error):
        code = notebook_code(error.filename)
        if code is not None:
            raise SystemExit(run_notebook_code(code))
    drop_own_frames(error)
    standard(kind, error, error.__traceback__)
    try:
        print_hint(error)
    except Exception:
        pass


def drop_own_frames(error):
    """Ends a traceback at the user's call of input()."""
    own = getattr(sys.modules.get("sandbox_runner"), "__file__", None)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code.co_filename == own:
            trace.tb_next = None
        trace = trace.tb_next


# ---- Hints ----


def print_hint(error):
    hint = hint_for(error)
    if hint:
        print(f"Hint: {hint}", file=sys.stderr)


def hint_for(error):
    """A sentence about a well-known mistake. A hint that may mislead is worse than none."""
    if isinstance(error, EOFError) and not error.args and frame_files(error)[-1:] == ["getpass.py"]:
        return "there is no keyboard: nobody can type a password. Read it from os.environ or from a file in /data"
    if type(error).__name__ == "UndefinedVariableError":  # of DataFrame.query
        return missing_column(error, [error.args[0].split("'")[1]])
    if isinstance(error, ModuleNotFoundError):
        return missing_module(error)
    if isinstance(error, NameError):
        return missing_import(error) or similar_name(error)
    if type(error).__name__ == "ColumnNotFoundError":  # of polars, which makes a suggestion itself in most cases
        return None if "valid columns" in str(error) else missing_column(error, re.findall('"([^"]*)" not found', str(error)))
    if isinstance(error, KeyError) and error.args:
        return missing_column(error, missing_labels(error.args[0]))
    if isinstance(error, AttributeError):
        return missing_attribute(error) or similar_attribute(error)
    if isinstance(error, FileNotFoundError):
        return missing_file(error)
    if isinstance(error, UnicodeDecodeError):
        return wrong_encoding(error)
    if isinstance(error, RuntimeError) and str(error).endswith(NESTED_LOOP):
        return "this code runs in an event loop already: await the coroutine, as in `await main()`"
    return wrong_value(error) if isinstance(error, (ValueError, RuntimeError)) else None


def frame_files(error):
    """The names of the files of a traceback's frames, the outermost first."""
    names, trace = [], error.__traceback__
    while trace is not None:
        names.append(os.path.basename(trace.tb_frame.f_code.co_filename))
        trace = trace.tb_next
    return names


def missing_import(error):
    name = getattr(error, "name", None) or str(error).partition("'")[2].partition("'")[0]
    statement = IMPORTS.get(name)
    if name == "datetime" and "datetime.datetime" not in source_line(error) and re.search(r"datetime(\.\w*now|\.today|\.str|\.from|\()", source_line(error)):
        statement = "from datetime import datetime"
    if statement is None and (name in MODULES or name in sys.stdlib_module_names and sys.version_info < (3, 12)):  # 3.12 says so itself
        statement = f"import {name}"
    if statement is None or importlib.util.find_spec(statement.split()[1].partition(".")[0]) is None:
        return None
    return f'did you forget "{statement}"?'


def source_line(error):
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].line or "" if frames else ""


SUGGESTS = sys.version_info < (3, 12)  # later ones say it themselves, also in cells


def similar_name(error):
    """A name that is like an undefined one, which the traceback of a cell does not show."""
    name, trace = getattr(error, "name", None), error.__traceback__
    if not SUGGESTS or not in_cell(error) or not isinstance(name, str):
        return None
    while trace.tb_next is not None:
        trace = trace.tb_next
    known = [*trace.tb_frame.f_locals, *trace.tb_frame.f_globals, *dir(builtins)]
    return did_you_mean(nearest(name, [each for each in known if not each.startswith("_")], 0.75, 1))


def similar_attribute(error):
    """An attribute that is like one that does not exist."""
    name = getattr(error, "name", None)
    if not SUGGESTS or not in_cell(error) or not isinstance(name, str):
        return None
    return did_you_mean(nearest(name, [each for each in dir(error.obj) if not each.startswith("_")], 0.75, 1))


def did_you_mean(names):
    return f"did you mean {names}?" if names else None


def in_cell(error):
    """Whether a cell raised the error. A program's traceback has Python's own suggestions."""
    trace = error.__traceback__
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith("<cell ")


def missing_module(error):
    """The module that is like one that does not exist."""
    import pkgutil

    package, _, name = (error.name or "").rpartition(".")
    if not package:
        known = MODULES | set(sys.stdlib_module_names)
    elif getattr(sys.modules.get(package), "__path__", None) is not None:
        known = [each.name for each in pkgutil.iter_modules(sys.modules[package].__path__)]
    else:
        return None
    near = nearest(name, sorted(each for each in known if not each.startswith("_")), 0.75, 1)
    if near:
        return did_you_mean(near)
    return f"{package} is there, but has no module {name!r}" if package else None


def wrong_value(error):
    """A hint about an error that lacks what is needed to correct it."""
    text = str(error)
    if "kaleido" in text.lower():
        return 'a plotly figure needs a browser to be drawn. Save it for the user with fig.write_html("/data/figure.html", include_plotlyjs="cdn"), or draw it with matplotlib'
    sheet = re.match("Worksheet named '(.*)' not found", text)
    if sheet:
        return next((listing("the sheets are", [str(name) for name in each.sheet_names]) for each in selves(error) if hasattr(each, "sheet_names")), None)
    value = re.match("Could not interpret value `(.*)` for `", text)  # of seaborn
    frames = [each for each in locals_of(error, "data") if hasattr(each, "columns")]
    if value and frames:
        names = [str(name) for name in frames[-1].columns[:MAX_LISTED]]
        return about_column(value[1], names, "column")
    return None


def selves(error):
    return locals_of(error, "self")


def locals_of(error, name):
    """The values of a local variable in the frames of a traceback."""
    found, trace = [], error.__traceback__
    while trace is not None:
        if name in trace.tb_frame.f_locals:
            found.append(trace.tb_frame.f_locals[name])
        trace = trace.tb_next
    return found


def missing_labels(key):
    """The labels that a KeyError of pandas is about: its key, or those that its message lists."""
    if isinstance(key, (list, tuple)):
        return [each for each in key if isinstance(each, str)]
    if not isinstance(key, str):
        return []
    listed = re.search(r"\[('.*')\].*( not in index| not found in axis|are in the|do not exist)", key)
    return re.findall(r"'([^']*)'", listed[1]) if listed else [key]


def missing_column(error, wanted):
    """A hint about the data frame, or the row of one, whose method has raised the error."""
    names, kind = labels_of(error)
    wanted = [name for name in wanted if name not in names]
    return about_column(wanted[0], names, kind) if names and wanted else None


def about_column(wanted, names, kind):
    near = nearest(wanted, names)
    if near:
        return f"there is no {kind} {wanted!r}. Did you mean {near}?"
    return f"there is no {kind} {wanted!r}. {listing('The columns are', names)}" if kind == "column" else None


def labels_of(error):
    """The labels among which the library looked, if its innermost frames tell, and what they are."""
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    groups = pandas.api.typing.DataFrameGroupBy if pandas else ()
    found = index = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if not frame.f_globals.get("__name__", "").startswith(("pandas.", "polars.")):
            found = index = None  # the user's code has been called, by DataFrame.apply for example
        value = frame.f_locals.get("self")
        if pandas and isinstance(value, groups):
            value = vars(value).get("obj")  # none while it is being made
        if pandas and isinstance(value, pandas.Index):
            index = value
        elif pandas and isinstance(value, (pandas.DataFrame, pandas.Series)) or polars and isinstance(value, (polars.DataFrame, polars.LazyFrame)):
            found = value
        trace = trace.tb_next
    if found is None:
        return [], ""
    is_series = bool(pandas) and isinstance(found, pandas.Series)
    labels = found.index if is_series else found.columns
    if index is not None and index is not labels:
        return [], ""  # rows
    names = list(labels[:MAX_LISTED])
    return ([], "") if is_series and not all(isinstance(name, str) for name in names) else ([str(name) for name in names], "label" if is_series else "column")


def missing_attribute(error):
    """A hint about a column that was used as an attribute."""
    pandas, frame, name = sys.modules.get("pandas"), getattr(error, "obj", None), getattr(error, "name", None)
    if pandas and isinstance(frame, pandas.api.typing.DataFrameGroupBy):
        frame = frame.obj
    if not pandas or not isinstance(frame, pandas.DataFrame) or not isinstance(name, str):
        return None
    near = nearest(name, [str(each) for each in frame.columns[:MAX_LISTED]], cutoff=0.75)
    return f"did you mean the column {near}?" if near else None


def missing_file(error):
    """A hint about the files that are there."""
    path = error.filename
    if path is None:  # of polars
        path = str(error).partition("(os error 2): ")[2].partition("\n")[0]
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str) or not path or error.filename2 is not None:
        return None
    directory, name = os.path.split(os.path.abspath(path))
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry, _ in zip(entries, range(MAX_LISTED)) if not entry.name.startswith("."))
    except FileNotFoundError:
        return f"there is no directory {directory}" + ("" if directory.startswith("/data") else ". Files of the session are in /data")
    if os.path.lexists(path) or "/" not in path and any(file in ("subprocess.py", "os.py") for file in frame_files(error)[-1:]):
        return None  # a program, or a broken link
    if not names:
        return f"{directory} is empty"
    near = nearest(name, names, 0.7)
    return f"did you mean {near}?" if near else listing(f"{directory} has", names)


def wrong_encoding(error):
    data = bytes(error.object[:4])
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "the data is UTF-16: use encoding='utf-16'"
    if data[:2] == b"\x1f\x8b":
        return "the data is compressed: use gzip.open, or compression='gzip' of pandas"
    if data[:4] == b"PK\3\4":
        return "the data is a ZIP archive or an Office file, not text: use zipfile, or pandas.read_excel"
    if error.encoding.lower().replace("-", "") == "utf8" and is_east_asian(error.object):
        return "the data is not UTF-8: try encoding='cp932' (Japanese), 'gb18030' (Chinese) or 'cp949' (Korean)"
    if error.encoding.lower().replace("-", "") == "utf8":
        return "the data is not UTF-8: try encoding='cp1252' (Windows), or encoding='latin-1', which accepts every byte"
    return None


def is_east_asian(data):
    """Whether letters beyond ASCII come in pairs of bytes, as in the encodings of East Asia."""
    sample = bytes(data[: 64 << 10])
    pairs = sum(len(run[0]) for run in re.finditer(rb"(?:[\x81-\xfe][\x40-\xfe]){2,}", sample))
    beyond = sum(byte >= 0x80 for byte in sample)
    return 0 < beyond <= pairs


def listing(title, names):
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{title}: {', '.join(names[:MAX_NAMES])}{more}"


def nearest(wanted, names, cutoff=0.6, most=3):
    """The names that are most like the wanted one, in quotes."""
    by_case = {}
    for name in names:
        by_case.setdefault(name.lower(), name)
    near = difflib.get_close_matches(wanted.lower(), by_case, n=most, cutoff=cutoff)
    return " or ".join(repr(by_case[name]) for name in near)


# ---- Programs written for a notebook ----


def is_main_program(error):
    return error.filename is not None and error.filename == getattr(sys.modules.get("__main__"), "__file__", None)


def notebook_code(path):
    """The program with its lines of ! and % transformed, or None if it is not valid even then."""
    try:
        import ast
        import linecache
        import tokenize

        from IPython.core.inputtransformer2 import TransformerManager

        with tokenize.open(path) as f:
            text = f.read()
        transformed = TransformerManager().transform_cell(text)
        code = compile(transformed, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except Exception:
        return None
    linecache.cache[path] = (len(text), None, [line + "\n" for line in text.split("\n")], path)  # for tracebacks
    return code


def run_notebook_code(code):
    """Runs a transformed program and returns its exit status, or raises what ends it."""
    main = sys.modules["__main__"]
    os.environ[CHILDREN] = "1"
    builtins.get_ipython = program_shell().get_ipython
    try:
        value = eval(code, vars(main))
        if code.co_flags & 0x80:  # a coroutine, because of an await at the top level
            sys.modules["sandbox_shell"].session_loop().run_until_complete(value)
    except SystemExit:
        raise
    except BaseException as e:
        e.__traceback__ = program_frames(e.__traceback__, code.co_filename)
        print_error(e)
        return 130 if isinstance(e, KeyboardInterrupt) else 1
    return 0


def program_frames(trace, path):
    """A traceback without the frames that lead to the program: ours, and those of an event loop."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace


def program_shell():
    """The shell that runs the magics of a program, in the program's own namespace."""
    import sandbox_figures
    import sandbox_shell

    shell, main = sandbox_shell.SHELL, sys.modules["__main__"]
    vars(main).update({name: value for name, value in shell.user_ns.items() if name not in vars(main)})
    shell.user_module, shell.user_ns = main, vars(main)
    return shell.activate(sandbox_figures.emit, lambda text, *_: print(text), print_error)


def import_programs():
    """Lets a process of multiprocessing import a main program that is written for a notebook."""
    import runpy

    original = runpy._get_code_from_file

    def get_code_from_file(*args):  # the path is the last of them
        try:
            return original(*args)
        except SyntaxError:
            code = notebook_code(args[-1])
            if code is None:
                raise
            return code if len(args) == 1 else (code, args[-1])  # before Python 3.12

    runpy._get_code_from_file = get_code_from_file
    builtins.get_ipython = lambda: program_shell()


def print_error(error):
    import traceback

    drop_own_frames(error)
    traceback.print_exception(type(error), error, error.__traceback__)
    print_hint(error)
