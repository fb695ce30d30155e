# %prun and cProfile: times are masked.
# %%
def slow():
    return sum(range(10))

%prun -q -T profile.txt slow()
# %%
import cProfile

profile = cProfile.Profile()
profile.runcall(slow)
