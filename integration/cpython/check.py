"""Runs one module of CPython's own tests in the process that it finds itself in, and prints as JSON what did not pass.

The caller sets MODULE, the module's name, LEFT_OUT, patterns of tests not to run, and ONLY, names of the tests to run (all if empty)."""

import sys

FORKED = "pandas" in sys.modules  # nothing but the zygote has imported it

import faulthandler
import fnmatch
import json
import os
import time
import types
import unittest

MOST = 30  # failures are reported with their text


class Result(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.count, self.failed, self.times = 0, {}, {}

    def startTest(self, test):
        super().startTest(test)
        self.count += 1
        self.began = time.monotonic()

    def stopTest(self, test):
        self.times[test.id()] = time.monotonic() - self.began
        super().stopTest(test)

    def note(self, test, error):
        text = self._exc_info_to_string(error, test)[-1000:] if len(self.failed) < MOST else ""
        self.failed.setdefault(test.id(), text)

    def addError(self, test, error):
        self.note(test, error)

    def addFailure(self, test, error):
        self.note(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note(test, error)

    def addUnexpectedSuccess(self, test):
        self.failed.setdefault(test.id(), "unexpected success")


def chosen(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from chosen(each)
        elif not any(fnmatch.fnmatchcase(each.id(), pattern) for pattern in LEFT_OUT) and (not ONLY or each.id() in ONLY):
            yield each


def load(name):
    """The tests of a module. Those that choose a start method of multiprocessing are made here: some installations of CPython lack them."""
    method = name.removeprefix("test_multiprocessing_")
    if method == name:
        return unittest.defaultTestLoader.loadTestsFromName("test." + name)
    from test import _test_multiprocessing

    module = sys.modules["test." + name] = types.ModuleType("test." + name)
    _test_multiprocessing.install_tests_in_module_dict(vars(module), method)
    return unittest.defaultTestLoader.loadTestsFromModule(module)


def main():
    from test import support

    support.use_resources = []  # neither the internet nor minutes of CPU
    support.verbose = 0
    os.chdir(os.environ["TMPDIR"])
    out = os.dup(1)
    faulthandler.enable()  # as CPython's own runner does
    result = Result()
    unittest.TestSuite(chosen(load(MODULE))).run(result)
    slow = sorted(((round(took, 1), name) for name, took in result.times.items()), reverse=True)[:5]
    report = {"forked": FORKED, "run": result.count, "skipped": len(result.skipped), "failed": result.failed, "slow": slow}
    os.write(out, b"\nREPORT " + json.dumps(report).encode() + b"\n")


if __name__ == "__main__":
    main()
