# Errors end a cell, and the next one goes on.
# %%
def divide(a, b):
    print("dividing")
    return a / b

divide(1, 0)
# %%
{}["key"]
# %%
raise ValueError("wrong", 3)
# %%
class MyError(Exception):
    pass

raise MyError()
# %%
assert 1 == 2, "not equal"
# %%
print("still here")
# %%
undefined_name
# %%
int("x\ny")
