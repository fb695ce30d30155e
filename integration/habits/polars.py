# polars
# %%
import polars as pl

df = pl.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
df
# %%
df.filter(pl.col("a") > 1).select(pl.col("a").sum())
# %%
df["a"]
