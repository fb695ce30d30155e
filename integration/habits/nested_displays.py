# Nested displays in functions and with statements
# %%
import pandas as pd

def report(df):
    print("rows:", len(df))
    display(df)
    return df["n"].sum()

report(pd.DataFrame({"n": [1, 2]}))
# %%
with open("log.txt", "w") as f:
    print("to a file", file=f)
!cat log.txt
# %%
try:
    report(None)
except TypeError as e:
    print("error:", e)
finally:
    print("done")
