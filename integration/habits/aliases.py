# %alias, %cat, %ls and macros
# %%
%alias greet echo hello
%greet you
# %%
%%writefile poem.txt
roses
# %%
%cat poem.txt
# %%
%ls -1 poem.txt
# %%
greet there
