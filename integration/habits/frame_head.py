# The first look at a table.
# %%
import numpy as np
import pandas as pd

rng = np.random.default_rng(1)
df = pd.DataFrame({
    "city": rng.choice(["Oslo", "Rome", "Lima"], 100),
    "day": pd.date_range("2024-01-01", periods=100),
    "sold": rng.integers(0, 50, 100),
    "price": rng.normal(9.5, 2, 100).round(2),
})
df.head()
# %%
df.tail(3)
# %%
df.shape
# %%
df.columns
# %%
df.dtypes
# %%
df["city"].unique()
# %%
df.sample(3, random_state=7)
# %%
df
