# A module that changes is loaded again.
# %%
%load_ext autoreload
%autoreload 2
# %%
%%writefile settings_of_mine.py
LEVEL = 1
# %%
import settings_of_mine

settings_of_mine.LEVEL
# %%
import os, pathlib

path = pathlib.Path("settings_of_mine.py")
path.write_text("LEVEL = 22\n")
os.utime(path, (2e9, 2e9))
# %%
settings_of_mine.LEVEL
# %%
%load_ext autoreload
