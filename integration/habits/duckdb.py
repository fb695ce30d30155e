# SQL over a table of pandas
# %%
import duckdb
import pandas as pd

sales = pd.DataFrame({"city": ["Oslo", "Rome", "Oslo"], "n": [1, 2, 3]})
duckdb.sql("select city, sum(n) as n from sales group by city order by city").df()
# %%
duckdb.sql("select 42 as answer")
# %%
duckdb.sql("select max(n) from sales").fetchone()
