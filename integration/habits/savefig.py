# A figure that is saved is shown once.
# %%
import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(4, 3))
ax.plot([1, 2])
fig.savefig("line.png", bbox_inches="tight")
# %%
import os

os.path.exists("line.png")
