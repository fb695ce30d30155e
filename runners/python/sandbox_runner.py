"""Imported at every start of the environment's interpreter, by sandbox_runner.pth: keep it tiny.

matplotlib scans all fonts when its cache directory is empty, which in a sandbox it always is, and warns when the directory
is not writable. So the cache made at installation is copied into MPLCONFIGDIR when matplotlib is imported, not earlier.
"""
import sys


class _FontCache:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "matplotlib":
            sys.meta_path.remove(_FontCache)
            try:
                _copy()
            except OSError:
                pass  # matplotlib then makes its own
        return None


def _copy():
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


sys.meta_path.insert(0, _FontCache)
