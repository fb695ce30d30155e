# tqdm: the speed and the times are masked.
#: mask \[\d\d:\d\d<.*?\]
# %%
from tqdm import tqdm

total = 0
for n in tqdm(range(5)):
    total += n
total
# %%
#: because Jupyter asks for its widgets
from tqdm.auto import trange

for n in trange(3, desc="steps"):
    pass
