# %config InlineBackend
# %%
import matplotlib.pyplot as plt

%config InlineBackend.figure_format = "retina"
# %%
#: jupyter image: image/png 597x395
#: here image: image/png 298x197
#: because a model pays for pixels
plt.figure(figsize=(3, 2))
plt.plot([1, 2]);
