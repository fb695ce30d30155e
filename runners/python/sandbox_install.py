"""Imported by a zygote where code may install packages: importing pip takes a third of an installation."""

import contextlib
import importlib
import logging

# What "pip install" imports, as far as this pip has it.
for name in ["cli.autocompletion", "commands.install", "metadata.importlib", "network.session", "operations.install.wheel", "resolution.resolvelib.resolver"]:
    with contextlib.suppress(ImportError):
        importlib.import_module("pip._internal." + name)
with contextlib.suppress(ImportError):
    import pip._vendor.truststore

logging.setLoggerClass(logging.Logger)  # until sandbox_pip runs pip, which has its own

# pip reads the requirements of all libraries after an installation, and remembers what it has parsed.
with contextlib.suppress(Exception):
    from pip._internal.operations.check import create_package_set_from_installed

    create_package_set_from_installed()
