"""Answers "pip install" in a sandbox without network, where pip would try for ten seconds: sandbox_runner
imports it when pip starts. Whatever else pip is asked for, it does itself.
"""

import importlib.util
import os
import socket
import sys

VALUED = {  # options that take a value
    "-c", "--constraint", "-t", "--target", "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--root", "--prefix", "--only-binary", "--no-binary",
    "--python-version", "--platform", "--abi", "--implementation", "--upgrade-strategy", "--trusted-host", "--proxy", "--timeout", "--retries", "--log",
}


def find_spec(name):
    """The spec of pip's main module, with our answer to install. pip itself is imported if it is needed."""
    spec = importlib.util.find_spec(name)
    execute = spec.loader.exec_module

    def exec_module(module):
        def main(args=None):
            given = sys.argv[1:] if args is None else args
            wanted = requirements(given)
            if wanted and is_offline() and not any(map(os.path.exists, wanted)):
                return answer(wanted)
            execute(module)
            return module.main(args)

        module.main = main

    spec.loader.exec_module = exec_module
    return spec


def is_offline():
    return len(socket.if_nameindex()) <= 1  # the loopback interface


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
            "or ask the operator of the server to add a library (docs/environments.md).",
            file=sys.stderr,
        )
    return int(missing)


def requirements(args):
    """What pip is asked to install, if it is. Errors are left to pip."""
    if [arg for arg in args if not arg.startswith("-")][:1] != ["install"]:
        return []
    found, rest = [], iter(args[args.index("install") + 1 :])
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
