# The first cell of many notebooks
# %%
%matplotlib inline
%load_ext autoreload
%autoreload 2
%config InlineBackend.figure_format = "png"

import os
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

warnings.filterwarnings("ignore")
pd.set_option("display.max_columns", 50)
np.random.seed(42)
plt.style.use("seaborn-v0_8-whitegrid")
print(np.random.randint(0, 100, 3))
# %%
sys.path.append("..")
os.makedirs("figures", exist_ok=True)
