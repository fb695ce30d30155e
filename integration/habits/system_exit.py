# sys.exit in a cell
# %%
#: here leaving
#: here stderr: not again
#: because sys.exit ends the cell with that exit code
import sys

x = 5
print("leaving")
sys.exit("not again")
# %%
#: jupyter error: SystemExit: 3
#: because sys.exit ends the cell with that exit code
sys.exit(3)
# %%
#: jupyter error: SystemExit
#: because sys.exit ends the cell with that exit code
sys.exit()
# %%
x
