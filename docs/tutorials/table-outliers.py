# %% [markdown]
# # Which entry makes a row unusual?
#
# A row of a table can be wrong although each of its entries is usual by itself. This example finds such rows and names the
# entry to look at. It needs pandas.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from jointenergy import JointEnergyDetector

# %% [markdown]
# ## New rows with ten wrong entries
#
# 118 wines were checked, 60 are new. In ten of the new ones we replace one measurement by that of another wine. No value
# leaves the range of its column.

# %%
table = load_wine(as_frame=True).data
random = np.random.default_rng(0)
places = random.permutation(len(table))
checked, new = table.iloc[places[:118]], table.iloc[places[118:]].reset_index(drop=True)
rows, columns = np.arange(10), random.choice(table.columns, 10)
for row, column in zip(rows, columns, strict=True):
    far = (table[column] - new.loc[row, column]).abs().nlargest(20).index
    new.loc[row, column] = table.loc[random.choice(far), column]

# %% [markdown]
# ## Find them
#
# The detector learns the density of the checked wines, and calls 10 % of such wines outliers.

# %%
detector = JointEnergyDetector(contamination=0.1, random_state=0).fit(checked)
print("healthy" if detector.health_.healthy else f"not healthy: {'; '.join(detector.health_.complaints)}")
called = detector.predict(new) == -1
wrong, others = called[rows].sum(), called[10:].sum()
print(f"called outliers: {wrong} of the 10 changed rows, {others} of the {len(new) - 10} others")

# %% [markdown]
# ## Name the entry
#
# `explain` compares each entry with what the rest of its row makes probable. The surprise is in nats: at 5, a usual entry
# would be about 150 times as probable.

# %%
found = detector.explain(new)
named = [found.top(row, 1)[0][0] == column for row, column in zip(rows, columns, strict=True)]
print(f"in {sum(named)} of the 10 the most surprising entry is the one that was changed")

# %%
shown = named.index(True)
axes = found.plot(rows[shown])
axes.set_title(f"changed: {columns[shown]}", fontsize=10)
plt.show()

# %% [markdown]
# ## Next
#
# - [A table with missing values](table.md) fits labels too. [The guide](../scikit-learn.md) has all methods.
