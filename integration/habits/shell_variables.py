# Variables of Python in a command.
# %%
import os

name, n = "report", 3
os.environ["PLACE"] = "here"
!echo {name}-{n + 1} $name $PLACE
# %%
command = "echo dynamic"
!{command}
# %%
text = !echo {name.upper()}
text[0]
