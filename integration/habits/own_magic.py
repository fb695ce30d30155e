# A magic of one's own
# %%
from IPython.core.magic import register_cell_magic, register_line_magic

@register_line_magic
def twice(line):
    return line * 2

@register_cell_magic
def upper(line, cell):
    print(cell.upper())
# %%
%twice ab
# %%
%%upper
text
# %%
value = %twice x
value
