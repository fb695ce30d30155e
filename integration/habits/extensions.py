# Extensions and magics that are not there
# %%
%load_ext nothing_like_this
# %%
%nothing_like_this
# %%
%%nothing_like_this
text
# %%
%reload_ext autoreload
# %%
%unload_ext nothing_like_this
