# clear_output in a loop
# %%
from IPython.display import clear_output

for i in range(3):
    clear_output(wait=True)
    print("step", i)
# %%
print("gone")
clear_output()
print("stays")
# %%
import matplotlib.pyplot as plt

for i in range(3):
    clear_output(wait=True)
    plt.plot([i, 2])
    plt.show()
    print("epoch", i)
# %%
print("stays")
clear_output(wait=True)
