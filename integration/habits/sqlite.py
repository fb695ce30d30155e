# sqlite3 and pandas
# %%
import sqlite3
import pandas as pd

db = sqlite3.connect("shop.db")
db.executescript("create table item (name text, price real); insert into item values ('tea', 2.5), ('jam', 4);")
pd.read_sql("select * from item order by price desc", db)
# %%
db.execute("select count(*) from item").fetchall()
# %%
db.execute("select * from nowhere")
