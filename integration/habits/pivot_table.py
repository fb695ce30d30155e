# Pivot tables and tables with several levels.
# %%
import pandas as pd

df = pd.DataFrame({"year": [2023, 2023, 2024, 2024], "kind": ["x", "y", "x", "y"], "n": [1, 2, 3, 4]})
df.pivot_table(index="year", columns="kind", values="n", aggfunc="sum", margins=True)
# %%
df.set_index(["year", "kind"]).unstack()
# %%
pd.crosstab(df.year, df.kind)
# %%
df.melt(id_vars="year").head(3)
