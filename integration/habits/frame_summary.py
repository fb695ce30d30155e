# describe, info, value_counts, missing values.
# %%
import pandas as pd

df = pd.DataFrame({"name": ["Ada", "Bo", "Cy", None], "age": [36, 41, None, 29], "team": list("xyxx")})
df.info()
# %%
df.describe()
# %%
df.describe(include="all")
# %%
df.isnull().sum()
# %%
df["team"].value_counts()
# %%
df.groupby("team")["age"].agg(["mean", "count"])
# %%
df.query("age > 30").sort_values("age", ascending=False)
