# Text and figures in order.
# %%
import matplotlib.pyplot as plt

print("before")
plt.plot([1, 2, 4])
plt.title("First")
plt.show()
print("between")
plt.bar(["a", "b"], [3, 5])
plt.show()
print("after")
# %%
for n in range(3):
    plt.figure(figsize=(2 + n, 2))
    plt.plot(range(n + 2))
# %%
plt.show()
