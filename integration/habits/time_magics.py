# %time, %%time: the times are masked.
#: mask \d+(\.\d+)?(e\+\d+)? ([nμµm]?s|min)( \d+(\.\d+)?(e\+\d+)? m?s)*
# %%
%%time
total = sum(range(1000))
print(total)
# %%
%time sum(range(10))
# %%
%%time
total
