# pprint, textwrap, f-strings, tabulate
# %%
from pprint import pprint

pprint({"key": list(range(40)), "other": {"nested": "value" * 10}})
# %%
value = 1234.5678
f"{value:,.2f} {value!r:>12} {value=}"
# %%
print(f"{'name':<10}|{'n':>5}")
print("-" * 16)
# %%
from tabulate import tabulate

print(tabulate([["a", 1], ["b", 22]], headers=["key", "n"]))
# %%
print("""several
  lines""")
