# sys.stderr, and both streams
# %%
import sys

print("problem", file=sys.stderr)
# %%
print("out")
print("err", file=sys.stderr)
sys.stderr.write("no newline")
