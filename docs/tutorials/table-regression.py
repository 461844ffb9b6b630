# %% [markdown]
# # A number with its whole distribution
#
# Most regressors predict one number. This example predicts the distribution of the target for each row, checks its
# intervals, and predicts from rows with gaps.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split

from jointenergy import JointEnergyRegressor

# %% [markdown]
# ## Fit, predict, compare
#
# The diabetes data of scikit-learn: ten columns, and the progression of the disease after a year.

# %%
X, y = load_diabetes(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
X_held, X_test, y_held, y_test = train_test_split(X_test, y_test, test_size=0.6, random_state=0)
model = JointEnergyRegressor(random_state=0).fit(X, y)
print("healthy" if model.health_.healthy else f"not healthy: {'; '.join(model.health_.complaints)}")
boosting = HistGradientBoostingRegressor(random_state=0).fit(X, y)
print(f"R2 {model.score(X_test, y_test):.3f}; gradient boosting {boosting.score(X_test, y_test):.3f}")

# %% [markdown]
# ## Are the intervals right?
#
# 90 % of the truths should lie between the 5 % and the 95 % quantile. `conform` corrects the intervals on rows that the fit
# has not seen, so that their coverage is guaranteed on average.

# %%
low, middle, high = model.predict_quantiles(X_test, [0.05, 0.5, 0.95]).T
print(f"{np.mean((low <= y_test) & (y_test <= high)):.0%} of the truths lie in their 90 % interval")
low, high = model.conform(X_held, y_held, coverage=0.9).predict_interval(X_test, coverage=0.9).T
print(f"{np.mean((low <= y_test) & (y_test <= high)):.0%} after conform, on {len(y_test)} rows")

# %%
order = np.argsort(middle)[::4]
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
axes.vlines(range(len(order)), low[order], high[order], lw=3, color="#9db8d6", label="90 % interval")
axes.plot(middle[order], "o", ms=4, color="#1f4e8c", label="median")
axes.plot(y_test[order], "x", ms=5, color="#c0392b", label="truth")
axes.set(xlabel="test rows, by their median", ylabel="progression", xticks=[])
axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
plt.show()

# %% [markdown]
# ## Rows with gaps
#
# Missing features are averaged over what the rest of the row makes probable.

# %%
gaps = np.where(np.random.default_rng(0).random(X_test.shape) < 0.3, np.nan, X_test)
print(f"R2 with 30 % of the features missing: {model.score(gaps, y_test):.3f}")

# %% [markdown]
# ## Next
#
# - [Ask a table for anything given anything](table-questions.md): `conditional` works with the target too.
# - [The guide](../scikit-learn.md) says what to do where the fit is not healthy.
