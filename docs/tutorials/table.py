# %% [markdown]
# # A table with missing values
#
# You have a table with gaps: features that were not measured, rows without a label. This tutorial fits a scikit-learn
# estimator to it as it is, predicts rows with gaps, fills them in with an interval, and finds outliers.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from jointenergy import JointEnergyClassifier, JointEnergyDetector

# %% [markdown]
# ## A table with gaps
#
# The wine data of scikit-learn have 178 rows and 13 columns. We remove a fifth of the entries and half of the labels.

# %%
random = np.random.default_rng(0)
whole, y = load_wine(return_X_y=True)
X = np.where(random.random(whole.shape) < 0.2, np.nan, whole)
X, X_test, whole, whole_test, y, y_test = train_test_split(X, whole, y, test_size=0.3, stratify=y, random_state=0)
y_known = np.where(random.random(len(y)) < 0.5, -1, y)  # -1 is a missing label
print(f"{np.isnan(X).mean():.0%} of the entries and {(y_known < 0).mean():.0%} of the labels are missing")

# %% [markdown]
# ## Fit it as it is
#
# NaN and -1 need no preparation. The usual way, for comparison: fill in the mean, leave out the rows without a label.

# %%
model = JointEnergyClassifier(random_state=0).fit(X, y_known)
usual = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(
    X[y_known >= 0], y_known[y_known >= 0]
)
print(
    f"accuracy {model.score(X_test, y_test):.3f}; mean imputation and logistic regression {usual.score(X_test, y_test):.3f}"
)

# %% [markdown]
# ## Is the model healthy?
#
# Probabilities can be good when the density is not. Look here before you use densities, samples or imputations. With
# many entries missing and few rows, a fit can end as not healthy.

# %%
health = model.health_
print("healthy" if health.healthy else f"not healthy: {'; '.join(health.complaints)}")

# %% [markdown]
# ## Fill in the gaps, with an interval
#
# `impute` draws what is missing given what is known. The interval covers the truth with a probability of 90 %, if the
# model is right. We know the truth here, so we can count.

# %%
filled = model.impute(X_test, n_draws=50)
gaps = np.isnan(X_test)
inside = (filled.low <= whole_test) & (whole_test <= filled.high)
scale = whole.std(axis=0)
means = np.broadcast_to(np.nanmean(X, axis=0), X_test.shape)


def error(table: np.ndarray) -> float:
    """The root of the mean squared error at the gaps, in standard deviations of the columns."""
    return float(np.sqrt((((table - whole_test) / scale)[gaps] ** 2).mean()))


print(f"error {error(filled.X):.2f} standard deviations; column means {error(means):.2f}")
print(f"{inside[gaps].mean():.0%} of the true values lie in their interval")

# %%
column = 6  # flavanoids
rows = np.flatnonzero(gaps[:, column])[:20]
figure, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
axes.vlines(
    range(len(rows)), filled.low[rows, column], filled.high[rows, column], lw=3, color="#9db8d6", label="90 % interval"
)
axes.plot(filled.X[rows, column], "o", color="#1f4e8c", label="imputed")
axes.plot(whole_test[rows, column], "x", color="#c0392b", label="truth")
axes.set(xlabel="rows with this value missing", ylabel="flavanoids", xticks=[])
axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
plt.show()

# %% [markdown]
# ## Find outliers
#
# The detector shares the fitted density. We swap columns in ten rows: each value is usual by itself, the row is not.

# %%
detector = JointEnergyDetector.of(model)
strange = X_test[:10].copy()
strange[:, [0, 6, 9]] = X_test[random.permutation(len(X_test))[:10]][:, [9, 0, 6]]
print(f"called outliers: {(detector.predict(X_test) == -1).mean():.0%} of the test rows,", end=" ")
print(f"{(detector.predict(strange) == -1).mean():.0%} of the swapped rows")

# %% [markdown]
# ## Next
#
# - [The guide for tables](../scikit-learn.md) explains what the numbers mean, and what to do when a fit is not healthy.
# - [The benchmark](../tabular.md) shows where the estimators are ahead of scikit-learn's own, and where they are behind.
