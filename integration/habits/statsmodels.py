# A summary of statsmodels: date and time are masked.
# %%
import numpy as np
import statsmodels.api as sm

x = sm.add_constant(np.arange(10.0))
result = sm.OLS(np.arange(10.0) * 2 + np.sin(np.arange(10)), x).fit()
result.params.round(3)
# %%
#: because a model reads the text, not the name of a class
result.summary().tables[1]
