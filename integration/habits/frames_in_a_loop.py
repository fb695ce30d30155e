# Tables between lines of text, in order.
# %%
import pandas as pd
from IPython.display import display

df = pd.DataFrame({"shop": ["a", "a", "b"], "sum": [3, 4, 5]})
for shop, part in df.groupby("shop"):
    print("shop", shop)
    display(part)
print("end")
# %%
display(df.head(1), "text", 42)
# %%
print(df)
# %%
df.T
