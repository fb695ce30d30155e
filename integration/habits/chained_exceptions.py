# raise … from …
# %%
#: jupyter error: in cell 1, line 4
#: jupyter error: in cell 1, line 4
#: here error: in cell 1, line 2
#: here error: in cell 1, line 4
#: because IPython names the line that handled the first error
try:
    {}["a"]
except KeyError as e:
    raise RuntimeError("no setting") from e
# %%
#: jupyter error: in cell 2, line 4
#: jupyter error: in cell 2, line 4
#: here error: in cell 2, line 2
#: here error: in cell 2, line 4
#: because IPython names the line that handled the first error
try:
    1 / 0
except ZeroDivisionError:
    int("x")
# %%
import traceback

try:
    1 / 0
except ZeroDivisionError as e:
    print(type(e).__name__, e, traceback.format_exc().splitlines()[-1])
