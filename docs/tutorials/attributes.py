# %% [markdown]
# # Attributes and conditional samples
#
# Your images have several labels, and some are missing. This tutorial trains one model of images and all their labels,
# predicts them, and draws images with any of the labels given.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import jointenergy as je

# %% [markdown]
# ## Images with three attributes
#
# The digits of scikit-learn, with three attributes in place of the digit: is it even, does it have a loop, is it 5 or more?
# We hide a third of the labels.

# %%
labels = je.LabelSpace({"parity": ["odd", "even"], "loop": ["no loop", "loop"], "size": ["small", "large"]})
x, digit = map(torch.as_tensor, load_digits(return_X_y=True))
x = (x / 8 - 1).float()  # pixels between -1 and 1
y = torch.stack((digit % 2 == 0, torch.isin(digit, torch.tensor([0, 6, 8, 9])), digit >= 5), dim=1).long()

random = torch.Generator().manual_seed(0)
order = torch.randperm(len(x), generator=random)
train, test = order[:1400], order[1400:]
known = torch.where(torch.rand(y.shape, generator=random) < 1 / 3, je.MISSING, y)
print(f"{(known == je.MISSING).float().mean():.0%} of the labels are missing")

# %% [markdown]
# ## Train log p(x, y)
#
# The network gives the logits of all attributes side by side. The chains move the images by Langevin and the labels by
# exact Gibbs draws, as in Gibbs-JEM (Kelly, Zemel and Grathwohl 2021). Missing labels are summed out. These are the settings
# of the recipe `digits-gibbs`; `jointenergy recipes digits-gibbs --python` prints them as a program.

# %%
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 6))
run = je.fit(
    net,
    (x[train], known[train]),
    labels=labels,
    objective=je.objectives.LogPXY() + je.objectives.KLTerm(weight=0.3) + je.objectives.LogPYGivenX(),
    kernel=je.kernels.BlockGibbs(
        y_kernel=je.kernels.ExactGibbs(), x_kernel=je.kernels.Langevin(step_size=0.5, noise_scale=0.1), x_steps=2
    ),
    steps=10,
    start=je.starts.Uniform(),
    optimizer=je.OptimizerSettings("adamw", 1e-3, weight_decay=0.05, clip_norm=0.5, decay="cosine", ema=0.99),
    iterations=1_000,
    verbose=False,
)
health = run.health()
print("healthy" if health.healthy else f"not healthy: {'; '.join(health.complaints)}")

# %% [markdown]
# ## Predict labels

# %%
predicted = run.predict(x[test])
for k, name in enumerate(labels.names):
    print(f"{name}: accuracy {(predicted[:, k] == y[test][:, k]).float().mean():.3f}")

# %% [markdown]
# ## Sample with some labels given
#
# What is given is held fixed; the other labels are drawn together with the image. The last row asks for an even digit with
# a loop below 5: only 0 is one.

# %%
asked: list[dict[str, str]] = [
    {},
    {"loop": "loop"},
    {"parity": "odd", "loop": "no loop"},
    {"parity": "even", "loop": "loop", "size": "small"},
]
figure, grid = plt.subplots(len(asked), 10, figsize=(7.5, 3.2))
for row, given in zip(grid, asked, strict=True):
    for axes, image in zip(row, run.sample(10, given=given, seed=0).x, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray", vmin=-1, vmax=1)
        axes.set(xticks=[], yticks=[])
    row[0].set_ylabel(", ".join(given.values()) or "nothing given", rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# ## Which label fits better?
#
# `rank` compares two labelings of the same image; a positive value favors the first.

# %%
odds = run.rank(x[test], {"loop": "loop"}, {"loop": "no loop"}).log_odds
for k in (8, 0, 7, 1):
    print(f"digit {k}: mean log-odds of a loop {odds[digit[test] == k].mean():+.1f}")

# %% [markdown]
# ## Next
#
# - [Use a trained run](../tasks.md) has more: conversion to other labels, products of conditions, films of chains.
# - Images with a table of labels are read by `jointenergy init`: [Data](../data.md).
# - [Results](../results.md) has faces and shoes with many attributes.
