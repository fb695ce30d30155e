# Values of earlier cells: _, __, _1, Out and In.
# %%
6 * 7
# %%
_ + 1
# %%
_, __
# %%
_1 + Out[2]
# %%
sorted(Out)
# %%
In[1]
# %%
Out[99]
