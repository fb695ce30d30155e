# %cd, %pwd, %mkdir and friends.
# %%
%pwd
# %%
%mkdir -p work/deep
%cd work
# %%
import os

os.path.basename(os.getcwd())
# %%
%cd -q deep
!basename $PWD
# %%
%cd -
# %%
%cd nowhere
# %%
%pushd deep
%popd
