"""benchmarks: the good runs of the clinic, trained once into a folder; `clinic.py` breaks copies and judges all.

python benchmarks/clinic_runs.py FOLDER [--half tune|report] [--only digits] trains the missing ones, on one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_blobs, make_circles, make_moons
from torch import nn

import jointenergy as je
from jointenergy.data import idx_files

Rows = tuple[np.ndarray, np.ndarray | None]
IMAGES = 2000
FINISHED = "finished"


def tanh_mlp(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    n = int(np.prod(shape))
    layers = (nn.Linear(n, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_classes))
    return nn.Sequential(nn.Flatten(), *layers)


def small_mlp(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    n = int(np.prod(shape))
    layers = (nn.Linear(n, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, n_classes))
    return nn.Sequential(nn.Flatten(), *layers)


def wide_mlp(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    n = int(np.prod(shape))
    layers = (nn.Linear(n, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, n_classes))
    return nn.Sequential(nn.Flatten(), *layers)


def lenet(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    size = shape[-1] // 4
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.SiLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.Linear(32 * size * size, 128), nn.SiLU(), nn.Linear(128, n_classes)),
    )


def circles(seed: int) -> Rows:
    x, y = make_circles(2000, noise=0.1, factor=0.4, random_state=seed)
    return 3.0 * x.astype(np.float32), y


def moons(seed: int) -> Rows:
    x, y = make_moons(2000, noise=0.15, random_state=seed)
    return x.astype(np.float32), y


def blobs(seed: int) -> Rows:
    x, y = make_blobs(2000, 4, centers=5, random_state=seed)
    return (x / x.std(0)).astype(np.float32), y


def table(load: Callable[..., Rows]) -> Callable[[int], Rows]:
    def read(seed: int) -> Rows:
        x, y = load(return_X_y=True)
        return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y

    return read


def digits(seed: int) -> Rows:
    x, y = load_digits(return_X_y=True)
    return (x / 8 - 1).astype(np.float32), y


def square_digits(seed: int) -> Rows:
    x, y = digits(seed)
    return x.reshape(-1, 1, 8, 8), y


def grey(name: str, prefix: str, size: int = 28, first_label: int = 0, *, labels: bool = True) -> Callable[[int], Rows]:
    """Draw rows of an idx file by seed; smaller images are means over squares."""

    def read(seed: int) -> Rows:
        folder = Path(os.environ["JOINTENERGY_DATA"]) / name
        files = (folder / f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        found = idx_files(*files, first_label=first_label)
        rows = torch.randperm(len(found.x), generator=torch.Generator().manual_seed(seed))[:IMAGES]
        x = found.x[rows].float()
        if size != x.shape[-1]:
            x = nn.functional.interpolate(x, size=(size, size), mode="area")
        return x.round().byte().numpy(), found.y[rows, 0].numpy() if labels else None

    return read


@dataclass(frozen=True)
class Good:
    """Describe a run trained as by a user: a recipe, or `fit` with its defaults."""

    name: str
    half: str
    seed: int
    recipe: str | None = None
    read: Callable[[int], Rows] | None = None
    network: Callable[[tuple[int, ...], int], nn.Module] = wide_mlp
    settings: tuple[str, ...] = ()
    iterations: int | None = None

    def folder(self, place: Path) -> Path:
        return place / f"{self.name}-{self.seed}"

    def data(self) -> tuple[Rows, nn.Module]:
        assert self.read is not None
        x, y = self.read(self.seed)
        torch.manual_seed(self.seed)
        shape = tuple(x.shape[1:])
        return (x, y), self.network(shape, 1 if y is None else int(y.max()) + 1)

    def train(self, place: Path) -> None:
        """Train into a folder below `place`, without the guard, which acts on the verdict; a finished run is kept."""
        folder = self.folder(place)
        if (folder / FINISHED).exists():
            return
        if self.recipe is None:
            (x, y), network = self.data()
            rows = x if y is None else (x, y)
            settings = {"folder": folder, "iterations": self.iterations, "seed": self.seed, "device": "cpu"}
            je.fit(network, rows, verbose=False, guard=False, **settings)  # type: ignore[arg-type]
        else:
            command = [sys.executable, "-m", "jointenergy", "train", self.recipe, "--out", str(folder)]
            command += [word for setting in self.settings for word in ("--set", setting)]
            command += ["--seed", str(self.seed), "--device", "cpu", "--no-guard"]
            subprocess.run(command, capture_output=True, check=False)
        (folder / FINISHED).touch()

    def run(self, place: Path) -> je.Run:
        """Return the trained run."""
        if self.recipe is not None:
            return je.load(self.folder(place))
        (x, y), network = self.data()
        return je.load(self.folder(place), network=network, data=x if y is None else (x, y))


MNIST = ("mnist", "train")
FASHION, KMNIST = ("fashion-mnist", "t10k"), ("ood-grey", "kmnist-t10k")
EMNIST = ("ood-grey", "emnist-letters-test")


def _fit(name: str, half: str, read: Callable[[int], Rows], network: object, *seeds: int) -> list[Good]:
    short = 1000 if network is tanh_mlp else None
    return [Good(name, half, s, read=read, network=network, iterations=short) for s in seeds]  # type: ignore[arg-type]


SMALLER = ("iterations=1000", "model.network.hidden=[256,256]")


def _recipe(name: str, half: str, recipe: str, *seeds: int) -> list[Good]:
    return [Good(name, half, s, recipe=recipe, settings=SMALLER) for s in seeds]


GOOD: list[Good] = [
    *_fit("circles", "tune", circles, tanh_mlp, 0),
    *_fit("wine", "tune", table(load_wine), small_mlp, 0),
    *_fit("digits-fit", "tune", digits, wide_mlp, 0),
    *_fit("digits-image", "tune", square_digits, lenet, 0),
    *_fit("mnist-8", "tune", grey(*MNIST, 8), wide_mlp, 0),
    *_recipe("digits-gibbs", "tune", "digits-gibbs", 0),
    *_fit("moons", "tune", moons, tanh_mlp, 0),
    *_fit("iris", "tune", table(load_iris), small_mlp, 0),
    *_fit("blobs", "tune", blobs, small_mlp, 0),
    *_fit("fashion-8", "tune", grey(*FASHION, 8), wide_mlp, 0),
    *_fit("kmnist-8-unlabeled", "tune", grey(*KMNIST, 8, labels=False), wide_mlp, 0),
    *_fit("circles", "report", circles, tanh_mlp, 1),
    *_fit("moons", "report", moons, tanh_mlp, 1),
    *_fit("wine", "report", table(load_wine), small_mlp, 1),
    *_fit("iris", "report", table(load_iris), small_mlp, 1),
    *_fit("blobs", "report", blobs, small_mlp, 1, 2),
    *_fit("digits-fit", "report", digits, wide_mlp, 1, 2),
    *_fit("digits-image", "report", square_digits, wide_mlp, 1),
    *_fit("digits-lenet", "report", square_digits, lenet, 2),
    *_fit("mnist-8", "report", grey(*MNIST, 8), wide_mlp, 1, 2),
    *_fit("kmnist-8", "report", grey(*KMNIST, 8), wide_mlp, 1, 2),
    *_fit("fashion-8", "report", grey(*FASHION, 8), wide_mlp, 1),
    *_fit("emnist-8", "report", grey(*EMNIST, 8, first_label=1), wide_mlp, 1),
    *_recipe("digits-gibbs", "report", "digits-gibbs", 1, 2),
    *_recipe("digits-mixed", "report", "digits-mixed", 1),
    *_fit("fashion-8-unlabeled", "report", grey(*FASHION, 8, labels=False), wide_mlp, 1),
    *_recipe("digits-gibbs-factored", "report", "digits-gibbs:factored", 1),
    *_fit("fashion-8", "report", grey(*FASHION, 8), wide_mlp, 2),
    *_fit("wine", "report", table(load_wine), small_mlp, 2),
    *_fit("iris", "report", table(load_iris), small_mlp, 2),
    *_fit("breast-cancer", "report", table(load_breast_cancer), small_mlp, 1),
    *_fit("circles", "report", circles, tanh_mlp, 2, 3),
    *_fit("moons", "report", moons, tanh_mlp, 2, 3),
    *_fit("blobs", "report", blobs, small_mlp, 3, 4),
    *_fit("wine", "report", table(load_wine), small_mlp, 3),
    *_fit("iris", "report", table(load_iris), small_mlp, 3),
    *_fit("digits-fit", "report", digits, wide_mlp, 3),
    *_fit("digits-image", "report", square_digits, wide_mlp, 2),
    *_fit("mnist-8", "report", grey(*MNIST, 8), wide_mlp, 3),
    *_fit("mnist-8-unlabeled", "report", grey(*MNIST, 8, labels=False), wide_mlp, 1),
    *_recipe("digits-jem", "report", "digits-jem", 1, 2),
    *_recipe("digits-mixed", "report", "digits-mixed", 2),
    *_recipe("digits-gibbs-factored", "report", "digits-gibbs:factored", 2),
]
"""The limits were set on the half "tune"; the half "report" was not used for that. New runs come last, for the ways of
breaking go by place."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=("tune", "report"), default=None)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for good in GOOD:
        if good.half == (arguments.half or good.half) and arguments.only in good.name:
            began = time.process_time()
            good.train(arguments.folder)
            print(f"{good.name}-{good.seed}: {time.process_time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
