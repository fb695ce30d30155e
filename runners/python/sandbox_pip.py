"""Changes pip for the sandbox: sandbox_runner imports it when pip starts. Where the session may have packages,
pip installs into their directory. Elsewhere, without network, pip would try for ten seconds: this module
answers instead. Whatever else pip is asked for, it does itself.
"""

import contextlib
import csv
import fcntl
import glob
import importlib.util
import logging
import os
import shutil
import socket
import sys
import tempfile

VALUED = {  # options that take a value
    "-c", "--constraint", "-t", "--target", "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--root", "--prefix", "--only-binary", "--no-binary",
    "--python-version", "--platform", "--abi", "--implementation", "--upgrade-strategy", "--trusted-host", "--proxy", "--timeout", "--retries", "--log",
    "--python", "--cache-dir", "--cert", "--client-cert", "--exists-action", "--keyring-provider", "--use-feature", "--use-deprecated", "--resume-retries",
}


def find_spec(name):
    """The spec of pip's main module, with our answer to install. pip itself is imported if it is needed."""
    spec = importlib.util.find_spec(name)
    execute = spec.loader.exec_module

    def load(module):
        from pip._internal.utils import _log

        _log.init_logging()  # again, if sandbox_install has imported pip
        execute(module)

    def exec_module(module):
        def main(args=None):
            given = sys.argv[1:] if args is None else args
            prefix = os.environ.get("SANDBOX_PYTHON_PACKAGES")
            if prefix:
                if is_editable(given):
                    print(EDITABLE, file=sys.stderr)
                    return 1
                load(module)
                manage(prefix)
                if split(given)[1] == "install":
                    allow_imports()
                with temporary(prefix):
                    return module.main(into(prefix, given))
            wanted = requirements(given)
            if wanted and is_offline() and not any(map(os.path.exists, wanted)):
                return answer(wanted)
            load(module)
            return module.main(args)

        module.main = module.cli = main  # newer ones start with cli

    spec.loader.exec_module = exec_module
    return spec


PLACES = ("-t", "--target", "--prefix", "--root", "--python", "--path", "--dry-run", "-h", "--help")


def into(prefix, args):
    """The arguments of pip with the session's directory as the place to install into, unless they name one."""
    before, command, after = split(args)
    if command != "install" or any(arg.split("=")[0] in PLACES for arg in args):
        return list(args)
    return [*before, command, "--prefix", prefix, *(arg for arg in after if arg != "--user")]


EDITABLE = (
    "ERROR: -e does not work here, because Python ignores .pth files in the session's packages. Install without it "
    '("pip install ."), put the directory on sys.path or PYTHONPATH, or use a virtual environment.'
)


def is_editable(args):
    """Whether pip is asked to refer to a directory from the session's packages, by a .pth file."""
    places = {arg.split("=")[0] for arg in args}
    return split(args)[1] == "install" and bool(places & {"-e", "--editable"}) and not places & set(PLACES)


def allow_imports():
    """Stops pip from warning of every later import in this process, which may be an interpreter of a notebook."""
    from pip._internal.commands import install

    if hasattr(install, "_warn_unsafe_import"):
        install._warn_unsafe_import = lambda module: None


def manage(prefix):
    """Makes pip see the runner's libraries and the session's packages, and change only the latter."""
    from pip._internal.metadata import base, select_backend
    from pip._internal.req import req_uninstall
    from pip._internal.utils.misc import normalize_path

    import sandbox_runner

    environment = select_backend().Environment
    first = sandbox_runner.packages()  # another version there hides the runner's
    environment.default = classmethod(lambda cls: cls.from_paths([first, *(path for path in sys.path if path != first)]))
    is_own = base.is_local = lambda path: normalize_path(path).startswith(prefix + os.sep)
    req_uninstall.UninstallPathSet._permitted = lambda self, path: is_own(path)
    make = logging.getLogRecordFactory()
    logging.setLogRecordFactory(lambda *args, **named: shorten(make(*args, **named)))


@contextlib.contextmanager
def temporary(prefix):
    """Lets pip keep its temporary files beside the packages: they may be larger than /tmp. It removes those of
    a pip that was killed, which no longer holds its lock.
    """
    os.makedirs(prefix, exist_ok=True)
    before = tempfile.tempdir
    with contextlib.ExitStack() as stack:
        with locked(prefix, wait=True):  # another pip must not see the new directory before it is locked
            is_alone = True
            for entry in os.scandir(prefix):
                if entry.name.startswith(".tmp-") and entry.is_dir(follow_symlinks=False):
                    try:
                        with locked(entry.path):
                            shutil.rmtree(entry.path, ignore_errors=True)
                    except OSError:
                        is_alone = False
            if is_alone:
                remove_unfinished()
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix=".tmp-", dir=prefix))
            stack.enter_context(locked(directory))
        tempfile.tempdir = directory
        try:
            yield
        finally:
            tempfile.tempdir = before


def remove_unfinished():
    """Removes packages of which a pip that was killed has installed a part: they have no INSTALLER yet, and pip
    would take them for installed.
    """
    import sandbox_runner

    site = os.path.realpath(sandbox_runner.packages())
    prefix = os.path.dirname(os.path.dirname(os.path.dirname(site)))  # scripts are in its bin
    for info in glob.glob(glob.escape(site) + "/*.dist-info"):
        if os.path.exists(info + "/INSTALLER"):
            continue
        with contextlib.suppress(OSError, ValueError), open(info + "/RECORD", encoding="utf-8") as record:
            for name, *_ in csv.reader(record):
                with contextlib.suppress(OSError, ValueError):
                    parent, name = os.path.split(os.path.join(site, name))
                    if os.path.realpath(parent).startswith(prefix + os.sep):  # a package may list anything
                        os.unlink(os.path.join(parent, name))
        shutil.rmtree(info, ignore_errors=True)


@contextlib.contextmanager
def locked(directory, wait=False):
    """Holds the lock of a directory. Unless it may wait, it raises BlockingIOError if another process does."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def shorten(record):
    """Cuts the list of all versions that pip prints when none fits, to the newest."""
    if "(from versions: %s)" in str(record.msg) and record.args:
        *rest, versions = record.args
        newest = str(versions).split(", ")[-10:]
        record.args = (*rest, ", ".join(newest) if len(newest) < 10 else "…, " + ", ".join(newest))
    return record


def is_offline():
    return len(socket.if_nameindex()) <= 1 and "HTTPS_PROXY" not in os.environ  # the loopback interface, and no hosts


def answer(wanted):
    """Says which requirements are installed and that no other can be, and returns pip's exit status."""
    missing = False
    for text in wanted:
        version, is_enough = installed(text)
        if is_enough:
            print(f"Requirement already satisfied: {text} ({version})")
            continue
        missing = True
        found = f"version {version} is installed" if version else "it is not installed"
        print(f"ERROR: No matching distribution found for {text}: {found}", file=sys.stderr)
    if missing:
        print(
            'No package index can be reached from this sandbox, so nothing can be installed. Use what "pip list" shows, '
            "or ask the operator of the server to turn packages on (SANDBOX_PACKAGES=pypi) or to add a library "
            "(docs/environments.md).",
            file=sys.stderr,
        )
    return int(missing)


def split(args):
    """The options before pip's command, the command or None, and what follows it."""
    at = 0
    while at < len(args) and args[at].startswith("-"):
        at += 2 if args[at] in VALUED else 1
    return args[:at], args[at] if at < len(args) else None, args[at + 1 :]


def requirements(args):
    """What pip is asked to install, if it is. Errors are left to pip."""
    _, command, after = split(args)
    if command != "install":
        return []
    found, rest = [], iter(after)
    for arg in rest:
        if arg in ("-r", "--requirement"):
            try:
                found += lines(next(rest, ""))
            except (OSError, ValueError):
                return []
        elif arg in VALUED:
            next(rest, None)
        elif not arg.startswith("-"):
            found.append(arg)
    return found


def lines(path):
    with open(path, encoding="utf-8") as f:
        texts = [line.partition("#")[0].strip() for line in f]
    return [text for text in texts if text and not text.startswith("-")]


def installed(text):
    """The installed version of a requirement, or None, and whether it is enough."""
    from importlib import metadata

    from pip._vendor.packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(text)
        version = metadata.version(wanted.name)
    except (InvalidRequirement, metadata.PackageNotFoundError):
        return None, False
    return version, not wanted.url and wanted.specifier.contains(version, prereleases=True)
