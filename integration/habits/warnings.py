# warnings.warn
# %%
import warnings

warnings.warn("be careful")
# %%
def old():
    warnings.warn("old is deprecated", DeprecationWarning, stacklevel=2)

old()
# %%
warnings.filterwarnings("ignore")
warnings.warn("not shown")
# %%
import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("always")
    np.log(np.array([0.0]))
