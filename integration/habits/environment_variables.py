# %env and %set_env
# %%
%env COLOR=blue
# %%
%env COLOR
# %%
%set_env SIZE 3
# %%
import os

os.environ["COLOR"] + os.environ["SIZE"]
# %%
!echo $COLOR
# %%
%env NOT_SET_ANYWHERE
