# A table with too many rows and columns to be shown whole.
# %%
import numpy as np
import pandas as pd

pd.DataFrame(np.arange(3000).reshape(100, 30))
# %%
pd.Series(range(1000))
# %%
np.arange(2000)
