# %who, %whos, %who_ls, %reset, %xdel
# %%
a, b = 1, "two"
def f(x): return x
%who
# %%
%whos
# %%
%who_ls
# %%
%who int
# %%
%xdel a
%reset_selective -f b
%who
# %%
%reset -f
%who
