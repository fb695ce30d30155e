# print with end and flush, carriage returns, no newline at the end
# %%
for i in range(3):
    print(i, end=" ", flush=True)
# %%
print("no newline", end="")
"value"
# %%
for i in range(3):
    print(f"\r{i * 50}%", end="")
print()
# %%
print("a", "b", sep="\t")
print()
print("", "x")
# %%
import sys

sys.stdout.write("written\n")
# %%
print("\x1b[31mred\x1b[0m")
