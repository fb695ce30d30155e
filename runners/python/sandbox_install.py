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

# pip names itself with what it finds out about the system. It remembers that.
with contextlib.suppress(Exception):
    from pip._internal.network.session import user_agent

    user_agent()

# After an installation, pip reads the metadata of all libraries. The runner's never changes.
with contextlib.suppress(Exception):
    from pip._internal.metadata.importlib import Distribution
    from pip._internal.operations.check import create_package_set_from_installed

    read, known = Distribution._metadata_impl, {}

    def remember(distribution):
        known[distribution.info_location] = metadata = read(distribution)
        return metadata

    Distribution._metadata_impl = remember
    try:
        create_package_set_from_installed()
    finally:
        Distribution._metadata_impl = lambda distribution: known.get(distribution.info_location) or read(distribution)
