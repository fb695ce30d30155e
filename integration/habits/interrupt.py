# KeyboardInterrupt
# %%
raise KeyboardInterrupt
# %%
try:
    raise KeyboardInterrupt
except KeyboardInterrupt:
    print("stopped")
# %%
"alive"
