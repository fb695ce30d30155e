# An estimator, its fit and its report
# %%
import numpy as np
from sklearn.linear_model import LinearRegression

x = np.arange(6).reshape(-1, 1)
model = LinearRegression()
model.fit(x, 2 * x.ravel() + 1)
# %%
model.coef_.round(3), round(model.score(x, 2 * x.ravel() + 1), 3)
# %%
from sklearn.metrics import classification_report

print(classification_report([0, 1, 1, 0], [0, 1, 0, 0]))
# %%
model.predict([[1, 2]])
