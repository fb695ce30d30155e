# clear_output in a loop
# %%
#: jupyter step 2
#: here step 0
#: here step 1
#: here step 2
#: because what was printed stays
from IPython.display import clear_output

for i in range(3):
    clear_output(wait=True)
    print("step", i)
# %%
#: jupyter stays
#: here gone
#: here stays
#: because what was printed stays
print("gone")
clear_output()
print("stays")
