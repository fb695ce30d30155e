# %timeit, %%timeit: the times are masked.
#: mask \d+(\.\d+)?(e\+\d+)? ([nμµm]?s|min)( \d+(\.\d+)?(e\+\d+)? m?s)*
# %%
import time

%timeit -n 1 -r 2 time.sleep(0.05)
# %%
%%timeit -n 2 -r 2
time.sleep(0.02)
time.sleep(0.02)
# %%
result = %timeit -o -q -n 2 -r 2 1 + 1
len(result.all_runs)
