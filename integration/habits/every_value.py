# ast_node_interactivity = "all"
# %%
from IPython.core.interactiveshell import InteractiveShell

InteractiveShell.ast_node_interactivity = "all"
# %%
1
"two"
x = 3
x
# %%
%config InteractiveShell.ast_node_interactivity = "last_expr_or_assign"
# %%
y = 5
