# %run
# %%
%%writefile script.py
import sys

print("arguments", sys.argv[1:], __name__)
kept = 99
# %%
%run script.py one two
# %%
kept
# %%
%run -n script.py
# %%
%run missing.py
# %%
%%writefile failing.py
print("starting")
1 / 0
# %%
%run failing.py
