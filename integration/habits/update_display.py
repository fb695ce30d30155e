# A display that changes
# %%
#: here 'first'
#: here between
#: here 'second'
#: because what was shown stays, and the new value follows
from IPython.display import display, update_display

handle = display("first", display_id="status")
print("between")
handle.update("second")
# %%
#: here 'third'
#: because what was shown stays, and the new value follows
update_display("third", display_id="status")
# %%
other = display("a", display_id=True)
type(other).__name__
