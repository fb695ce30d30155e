# %store
# %%
#: here stderr: UsageError: Line magic function `%store` not found.
#: because a session's files last, its values do not
kept = [1, 2]
%store kept
# %%
#: here stderr: UsageError: Line magic function `%store` not found.
#: because a session's files last, its values do not
%store
# %%
#: here stderr: UsageError: Line magic function `%store` not found.
#: because a session's files last, its values do not
del kept
%store -r kept
kept
