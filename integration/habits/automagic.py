# Magics without "%"
# %%
pwd = 3
pwd
# %%
del pwd
who
# %%
%automagic
