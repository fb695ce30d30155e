# Sizes, resolution and styles.
# %%
import matplotlib.pyplot as plt

plt.rcParams["figure.figsize"] = (3, 2)
plt.rcParams["figure.dpi"] = 120
plt.plot([1, 2])
plt.show()
# %%
plt.style.use("ggplot")
plt.figure(figsize=(5, 1))
plt.plot([2, 1]);
