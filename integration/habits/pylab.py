# %pylab, as in old notebooks
# %%
%pylab inline
# %%
plot(linspace(0, 1, 5))
