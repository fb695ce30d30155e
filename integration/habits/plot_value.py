# The value of plt.plot is shown with the figure.
# %%
%matplotlib inline
import matplotlib.pyplot as plt
# %%
plt.plot([1, 3, 2])
# %%
plt.plot([1, 3, 2]);
# %%
plt.title("A title")
