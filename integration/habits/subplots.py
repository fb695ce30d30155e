# Figures with several axes.
# %%
import matplotlib.pyplot as plt
import numpy as np

fig, axes = plt.subplots(1, 2, figsize=(8, 3))
axes[0].plot(np.sin(np.linspace(0, 6)))
axes[1].hist(np.arange(10) % 4)
fig.suptitle("Two")
plt.tight_layout()
# %%
fig, ax = plt.subplots()
ax.scatter([1, 2], [3, 4])
ax.set_xlabel("x")
plt.close()
# %%
fig
