# %%script
# %%
%%script bash -c cat
passed through
# %%
%%script false --no-raise-error
never shown
# %%
%%python3
print("another Python")
