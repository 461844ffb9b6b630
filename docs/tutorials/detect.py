# %% [markdown]
# # Detect what is unlike your data
#
# A classifier answers for every input, also for one that is nothing like its data. This tutorial trains a joint model of
# digits, sets a threshold on log p(x), and compares it with the confidence of the same network trained by cross-entropy.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits, load_sample_images
from sklearn.metrics import roc_auc_score
from torch import nn

import jointenergy as je

x, y = map(torch.as_tensor, load_digits(return_X_y=True))
x = (x / 8 - 1).float()  # pixels between -1 and 1
random = torch.Generator().manual_seed(0)
order = torch.randperm(len(x), generator=random)
train, test = order[:1400], order[1400:]

# %% [markdown]
# ## Inputs unlike the data
#
# Three kinds, from easy to hard: patches of photographs, digits with the left half of another digit, and averages of two
# digits.

# %%
photo = torch.as_tensor(np.mean(load_sample_images().images[0], axis=2)).float() / 127.5 - 1
patches = photo.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 64)
others = x[test][torch.randperm(len(test), generator=random)]
unlike = {
    "photographs": patches[torch.randperm(len(patches), generator=random)[:400]],
    "two halves": torch.where(torch.arange(64) % 8 < 4, others, x[test]),
    "averages": (x[test] + others) / 2,
}

# %% [markdown]
# ## Two models of one network
#
# The joint model learns log p(x) and log p(y | x); the baseline learns log p(y | x) alone, by `CrossEntropy`.

# %%
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 10))
data = (x[train], y[train])
run = je.fit(net, data, iterations=1_200, verbose=False)
baseline = je.fit(net, data, objective=je.objectives.CrossEntropy(), iterations=600, verbose=False)

health = run.health()
print("healthy" if health.healthy else f"not healthy: {'; '.join(health.complaints)}")
for name, model in (("joint model", run), ("baseline", baseline)):
    print(f"{name}: accuracy {(model.predict(x[test])[:, 0] == y[test]).float().mean():.3f}")

# %% [markdown]
# ## How well are they detected?
#
# AUROC is the probability that a digit scores above an input unlike the digits: 1 is perfect, 0.5 is chance. The joint
# model is asked for log p(x), the baseline for the probability of its most probable class.


# %%
def auroc(model: je.Run, x_unlike: torch.Tensor, score: str) -> float:
    scores = torch.cat((model.score(x[test], score), model.score(x_unlike, score)))
    return float(roc_auc_score([1] * len(test) + [0] * len(x_unlike), scores))


print("               log p(x)   baseline's confidence")
for name, inputs in unlike.items():
    print(f"{name:14} {auroc(run, inputs, 'log_density'):.3f}      {auroc(baseline, inputs, 'max_probability'):.3f}")

# %% [markdown]
# ## Set a threshold
#
# `detect` places the threshold so that 5 % of the rows that training held out lie below it.

# %%
found = run.detect(x[test], quantile=0.05)
print(f"digits called unlike the data: {(~found.inside).float().mean():.1%}")
for name, inputs in unlike.items():
    print(f"{name} found: {(~run.detect(inputs, quantile=0.05).inside).float().mean():.1%}")

# %%
figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
shown = {"test digits": x[test], "two halves": unlike["two halves"], "averages": unlike["averages"]}
low, high = float(np.quantile(run.score(unlike["averages"]), 0.02)), float(run.score(x[test]).max())
edges = np.linspace(low, high, 40)
for name, inputs in shown.items():
    scores = run.score(inputs).numpy()
    axes.stairs(np.histogram(scores, edges)[0] / len(scores), edges, fill=True, alpha=0.5, label=name)
axes.axvline(found.threshold.value, color="black", lw=1, ls="--")
axes.set(xlabel="log p(x), up to a constant; photographs lie far to the left", yticks=[])
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Next
#
# - [Out-of-distribution detection](../evaluation/ood.md) has more scores and what `jointenergy evaluate --ood` reports.
# - In the shell: `jointenergy score RUN INPUT` prints log p(x) and whether each input is in distribution.
# - A threshold holds for data like those that it was set on. Set it again when your data change.
