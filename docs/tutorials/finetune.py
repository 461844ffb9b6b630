# %% [markdown]
# # Fine-tune your classifier
#
# You have a classifier, and you want it to say when an input is unlike its training data. This tutorial starts from a
# trained network with batch norm, trains log p(x) beside log p(y | x) for a minute, and compares before and after.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import nn

import jointenergy as je

# %% [markdown]
# ## The classifier you have
#
# Any network that returns logits will do. Ours is a small one for the 8 x 8 digits of scikit-learn.

# %%
x, y = map(torch.as_tensor, load_digits(return_X_y=True))
x = (x / 8 - 1).float()  # pixels between -1 and 1
random = torch.Generator().manual_seed(0)
order = torch.randperm(len(x), generator=random)
train, test = order[:1400], order[1400:]

torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(64, 256),
    nn.BatchNorm1d(256),
    nn.SiLU(),
    nn.Linear(256, 256),
    nn.BatchNorm1d(256),
    nn.SiLU(),
    nn.Linear(256, 10),
)
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
for _ in range(20):
    for rows in train[torch.randperm(len(train), generator=random)].split(64):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
        optimizer.step()
net.eval()
print(f"accuracy {(net(x[test]).argmax(1) == y[test]).float().mean():.3f}")

# %% [markdown]
# ## Fix batch norm
#
# The density of a row must not depend on the rows beside it, and with batch norm it does. `fold_batch_norm` returns a copy
# in which each batch norm is a scale and a shift. It gives what the network gives in eval mode, and can be trained further.

# %%
folded = je.networks.fold_batch_norm(net)
print(torch.allclose(folded(x[test]), net(x[test]), atol=1e-4))

# %% [markdown]
# ## Train log p(x) beside the labels
#
# The logits already are a joint density: log p(x, y) is the logit of y, up to a constant. `fit` starts from your weights.
# A larger weight of log p(y | x) keeps more of the accuracy. The warmup protects the weights while the first chains still
# find inputs that score far above the data.

# %%
run = je.fit(
    folded,
    (x[train], y[train]),
    objective=je.objectives.LogPX() + je.objectives.LogPYGivenX(3.0) + je.objectives.EnergyL2(0.1),
    optimizer=je.OptimizerSettings("adamw", 1e-3, warmup=100, decay="cosine", ema=0.99, clip_norm=1.0),
    iterations=1_000,
    verbose=False,
)
health = run.health()
print("healthy" if health.healthy else f"not healthy: {'; '.join(health.complaints)}")

# %% [markdown]
# ## Before and after
#
# `wrap` gives the old classifier the same methods, so that both answer the same questions. The inputs unlike the data are
# digits upside down, and digits with their pixels shuffled.

# %%
before = je.wrap(net, [str(k) for k in range(10)], bounds=(-1, 1), event_shape=(64,))
shuffled = x[test][:, torch.randperm(64, generator=random)]
flipped = x[test].flip(1)
print("                     before  after")
for name, model in (("accuracy", None), ("AUROC, shuffled", shuffled), ("AUROC, upside down", flipped)):
    row = []
    for asked in (before, run):
        if model is None:
            row.append((asked.predict(x[test])[:, 0] == y[test]).float().mean().item())
        else:
            scores = torch.cat((asked.score(x[test]), asked.score(model)))
            row.append(roc_auc_score([1] * len(test) + [0] * len(model), scores))
    print(f"{name:20} {row[0]:.3f}   {row[1]:.3f}")

# %% [markdown]
# The same network now draws digits too, which the classifier could not:

# %%
drawn = run.sample(40, given=torch.arange(10).repeat(4)[:, None], seed=0).x
figure, grid = plt.subplots(4, 10, figsize=(6, 2.5))
for axes, image in zip(grid.flat, drawn, strict=True):
    axes.imshow(-image.reshape(8, 8), cmap="gray", vmin=-1, vmax=1)
    axes.axis("off")
plt.show()

# %% [markdown]
# ## Next
#
# - Probabilities change while log p(x) is trained. Fit a temperature with
#   [`run.calibrate`](../tasks.md#calibrate-and-predict-sets) where they matter.
# - [Detect what is unlike your data](detect.md) sets a threshold.
# - [The fit guide](../fit.md#fine-tune-a-classifier-you-already-have) has the same for a convolutional network on MNIST,
#   with figures.
