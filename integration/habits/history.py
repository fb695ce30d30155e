# %history, %recall, %save, %macro
# %%
x = 1
# %%
y = x + 1
y
# %%
%history
# %%
%history -n 1-2
# %%
%macro again 2
again
# %%
%save kept.py 1-2
!cat kept.py
