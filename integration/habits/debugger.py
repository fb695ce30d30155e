# pdb: nobody can answer.
# %%
#: because Jupyter has its own debugger
breakpoint()
# %%
%debug
