# seaborn draws on matplotlib.
# %%
import pandas as pd
import seaborn as sns

df = pd.DataFrame({"a": [1, 2, 3, 4], "b": [2, 1, 4, 3]})
sns.heatmap(df.corr(), annot=True);
# %%
sns.set_theme()
sns.scatterplot(data=df, x="a", y="b")
