# A magic that only Jupyter's own page has
# %%
#: here stderr: UsageError: Line magic function `%autosave` not found.
#: because there is no page to save
%autosave 60
