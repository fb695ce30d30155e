# A module is written and imported.
# %%
%%writefile helper.py
def double(x):
    return 2 * x
# %%
from helper import double

double(21)
# %%
%%writefile -a helper.py

def triple(x):
    return 3 * x
# %%
import helper, importlib

importlib.reload(helper).triple(2)
