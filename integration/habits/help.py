# object?, object?? and help()
# %%
def area(width, height=1):
    """The area of a rectangle."""
    return width * height
# %%
#: here Signature: area(width, height=1)
#: here Docstring: The area of a rectangle.
#: here File:      <cell>
#: here Type:      function
#: because nbclient drops what Jupyter shows in its pager
?area
# %%
#: here Signature: area(width, height=1)
#: here Source:
#: here def area(width, height=1):
#: here     """The area of a rectangle."""
#: here     return width * height
#: here File:      <cell>
#: here Type:      function
#: because nbclient drops what Jupyter shows in its pager
area??
# %%
help(area)
# %%
%pinfo nothing_like_this
# %%
#: here Class docstring:
#: here     The area of a rectangle.
#: here Call docstring:
#: here     Call self as a function.
#: because nbclient drops what Jupyter shows in its pager
%pdoc area
# %%
#: here def area(width, height=1):
#: here     """The area of a rectangle."""
#: here     return width * height
#: here
#: because nbclient drops what Jupyter shows in its pager
%psource area
