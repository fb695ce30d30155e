# numpy, fractions, decimals, dates
# %%
import numpy as np

np.array([[1.5, 2], [3, 4]])
# %%
np.float64(0.1), np.int64(3), np.arange(3) > 1
# %%
np.set_printoptions(precision=2, suppress=True)
np.array([1e-10, 3.14159])
# %%
np.random.seed(0)
np.random.rand(2, 2)
# %%
import datetime, decimal, fractions

datetime.date(2024, 2, 29), decimal.Decimal("0.1"), fractions.Fraction(1, 3)
# %%
1e100, 10**30, 0.1 + 0.2, 1j, float("nan")
