# df.plot and df.hist
# %%
import pandas as pd

df = pd.DataFrame({"x": [1, 2, 3], "y": [2, 4, 1]})
df.plot(x="x", y="y")
# %%
df.hist();
# %%
ax = df["y"].plot.bar()
ax.set_title("bars");
