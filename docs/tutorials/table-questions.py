# %% [markdown]
# # Ask a table for anything given anything
#
# A joint density answers questions in any direction: which class given these columns, which column given that class, which
# two columns given a third. This example asks some. It needs pandas.

# %%
import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_iris

from jointenergy import JointEnergyClassifier

# %% [markdown]
# ## One fit

# %%
iris = load_iris(as_frame=True)
X = iris.data.rename(columns=lambda name: name.removesuffix(" (cm)"))
y = pd.Series(iris.target_names[iris.target], name="species")
model = JointEnergyClassifier(random_state=0).fit(X, y)
print("healthy" if model.health_.healthy else f"not healthy: {'; '.join(model.health_.complaints)}")

# %% [markdown]
# ## A column given others
#
# `conditional` gives a distribution to draw from and to evaluate. How wide are the petals of flowers whose petals are 5 cm
# long, and of flowers of unknown length?

# %%
known = model.conditional("petal width", given={"petal length": 5.0})
print(known.sample(5, random_state=0).round(1).to_string(index=False))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
model.plot_density("petal width", given={"petal length": 5.0}, ax=left, label="petals 5 cm long")
model.plot_density("petal width", ax=left, label="any petals")
left.legend(frameon=False)
model.plot_density(["petal length", "petal width"], ax=right)
plt.show()

# %% [markdown]
# ## A class given one column, the others left open
#
# The usual partial dependence replaces a column in all rows and so asks about flowers that do not exist. Here the other
# columns follow the one that is given.

# %%
model.partial_dependence("petal length").plot()
plt.show()

# %% [markdown]
# ## Next
#
# - [Which entry makes a row unusual?](table-outliers.md) explains single rows. [The guide](../scikit-learn.md) has all
#   methods.
