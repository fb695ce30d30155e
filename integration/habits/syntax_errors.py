# Code that does not compile
# %%
print("never"
# %%
def f()
    pass
# %%
  x = 1
 y = 2
# %%
if True:
print("x")
# %%
x = = 1
# %%
return 3
# %%
"unterminated
