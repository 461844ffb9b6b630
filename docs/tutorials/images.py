# %% [markdown]
# # Train on your images
#
# You have a folder of images, one folder for each class. This tutorial writes a recipe for it, trains it, and uses the
# trained run in the shell and in Python.

# %% [markdown]
# ## A folder of images
#
# Yours may look like `photos/cat/*.jpg`, `photos/dog/*.jpg`. We write a small one, so that this page runs anywhere: four
# digits of scikit-learn, 8 x 8 pixels.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits = load_digits()
names = {0: "zero", 1: "one", 4: "four", 7: "seven"}
for i, (image, digit) in enumerate(zip(digits.images, digits.target, strict=True)):
    if digit in names:
        folder = Path("photos") / names[digit]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image / 16 * 255).astype(np.uint8)).save(folder / f"{i}.png")
print({folder.name: len(list(folder.iterdir())) for folder in sorted(Path("photos").iterdir())})

# %% [markdown]
# ## Write a recipe
#
# `init` looks at the images and writes a recipe that fits them and the machine. The file has comments; read it, and change
# what you like. It also measures how many iterations fit into the time that you give.

# %%
# !jointenergy init photos --out my.toml --minutes 1

# %% [markdown]
# ## Train it
#
# We set the number of iterations, so that this page shows the same everywhere. The last lines say whether the samples are
# healthy, and where the run is. After Ctrl-C, `jointenergy resume runs/mine` continues.

# %%
# !jointenergy train my.toml --data photos --out runs/mine --set iterations=1000

# %% [markdown]
# ## Use it in the shell
#
# Predict the label of an image, and score how much it is like the data:

# %%
# !jointenergy predict runs/mine photos/seven/7.png
# !jointenergy score runs/mine photos/seven/7.png

# %% [markdown]
# ## Use it in Python

# %%
import jointenergy as je

run = je.load("runs/mine")
label = run.labels.names[0]
drawn = {name: run.sample(8, given={label: name}, seed=0).x for name in sorted(names.values())}

# %%
low, high = run.bounds
figure, grid = plt.subplots(4, 8, figsize=(6, 3.2))
for row, (name, images) in zip(grid, drawn.items(), strict=True):
    for axes, image in zip(row, images, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray", vmin=low, vmax=high)
        axes.set(xticks=[], yticks=[])
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()

# %% [markdown]
# These are samples of each class, not selected.
#
# ## Next
#
# - A report with calibration, detection and samples: `jointenergy evaluate runs/mine`.
# - Larger images want a GPU: `jointenergy init` chooses a larger network there. [Data](../data.md) lists what it reads.
# - If the run ends as *not healthy*, [read what to change](../how-to/health.md).
