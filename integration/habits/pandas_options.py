# Options of pandas last for the session.
# %%
import pandas as pd

pd.set_option("display.max_rows", 4)
pd.set_option("display.precision", 2)
pd.set_option("display.max_columns", None)
df = pd.DataFrame({f"c{i}": [i / 3] * 10 for i in range(25)})
# %%
df
# %%
with pd.option_context("display.max_rows", None):
    display(df[["c1"]])
# %%
pd.options.display.float_format = "{:,.1f}".format
df[["c1", "c2"]]
