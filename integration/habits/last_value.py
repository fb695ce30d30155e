# The value of the last expression is shown, other values are not.
# %%
1 + 1
"not shown"
"shown"
# %%
x = 3
# %%
x
# %%
None
# %%
print("first")
x * 2
# %%
if x:
    "not an expression of the cell"
# %%
x, [x] * 3, {"x": x}
# %%
# only a comment
