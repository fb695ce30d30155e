# %xmode and %tb
# %%
%xmode Minimal
# %%
#: jupyter error: ZeroDivisionError: division by zero
#: here error: ZeroDivisionError: division by zero
#: here error: in cell 2, line 1
#: because %xmode changes nothing: a traceback is short anyway
1 / 0
# %%
%xmode Plain
# %%
%tb
