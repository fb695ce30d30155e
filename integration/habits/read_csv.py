# A file is written, read and looked at.
# %%
%%writefile sales.csv
date,item,amount
2024-01-05,tea,3.5
2024-01-06,coffee,4.25
2024-02-01,tea,2
# %%
import pandas as pd

df = pd.read_csv("sales.csv", parse_dates=["date"])
df
# %%
df.set_index("date").resample("MS")["amount"].sum()
# %%
df.to_json("sales.json", orient="records")
!cat sales.json
# %%
!head -2 sales.csv
# %%
pd.read_csv("missing.csv")
