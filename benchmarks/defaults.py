"""benchmarks: `fit(net, (x, y))` with default settings, on sets and networks that these were not chosen on.

python benchmarks/defaults.py [--seeds 0] [--only cancer] [--write] prints a table; --write publishes
results/fit-defaults-SET.json from a clean tree. Images are read from JOINTENERGY_DATA; 2,000 rows train, 1,000 test.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits, make_classification, make_gaussian_quantiles, make_s_curve
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import nn
from torchmetrics.functional.classification import multiclass_calibration_error

import jointenergy as je
from jointenergy.data import idx_files
from jointenergy.report import results
from jointenergy.training.health import PROTOCOL

TRAIN, TEST = 2000, 1000
NOTE = "The baseline is a logistic regression on the same rows. Test rows are touched once a seed."
Rows = tuple[np.ndarray, np.ndarray]


def leaky_mlp(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    (n,) = shape
    return nn.Sequential(
        *(nn.Linear(n, 96), nn.LeakyReLU(0.1), nn.Linear(96, 96), nn.LeakyReLU(0.1)),
        *(nn.Linear(96, 96), nn.LeakyReLU(0.1), nn.Linear(96, n_classes)),
    )


class GeluResidual(nn.Module):
    """MLP with two residual blocks and layer norm."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(shape[0], 64), nn.Linear(64, n_classes)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def wide_softplus(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 256), nn.Softplus(), nn.Linear(256, n_classes))


def lenet(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    channels = shape[0] if len(shape) == 3 else 1
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 5, padding=2), nn.SiLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.LazyLinear(128), nn.SiLU(), nn.Linear(128, n_classes)),
    )


class GroupNormResNet(nn.Module):
    """ResNet of three blocks with group norm."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        channels = shape[0] if len(shape) == 3 else 1
        self.stem = nn.Conv2d(channels, 16, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1)) for _ in range(3)
        )
        self.head = nn.Linear(16 * 4 * 4, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        logits: torch.Tensor = self.head(nn.functional.adaptive_avg_pool2d(x, 4).flatten(1))
        return logits


def quantiles() -> Rows:
    x, y = make_gaussian_quantiles(n_samples=1500, n_features=3, n_classes=3, random_state=5)
    return x.astype(np.float32), y


def classification() -> Rows:
    """Return twelve columns, four of them linear combinations of others, on scales from 0.1 to 100."""
    x, y = make_classification(2000, 12, n_informative=5, n_redundant=4, n_classes=3, random_state=5)
    return (x * np.logspace(-1, 2, 12)).astype(np.float32), y


def spirals() -> Rows:
    random = np.random.default_rng(5)
    y = random.integers(0, 3, 1500)
    t = np.sqrt(random.uniform(0.05, 1.0, 1500))
    angle = 4.0 * t + 2 * np.pi * y / 3
    x = np.stack((t * np.cos(angle), t * np.sin(angle)), axis=1) + 0.03 * random.normal(size=(1500, 2))
    return x.astype(np.float32), y


def s_curve() -> Rows:
    x, t = make_s_curve(1200, noise=0.1, random_state=5)
    return x.astype(np.float32), np.digitize(t, np.quantile(t, [1 / 3, 2 / 3]))


def digits_pca() -> Rows:
    x, y = load_digits(return_X_y=True)
    return PCA(10, random_state=5).fit_transform(x).astype(np.float32), y


def grey(name: str, prefix: str, first_label: int = 0) -> Callable[[], Rows]:
    def read() -> Rows:
        folder = Path(os.environ["JOINTENERGY_DATA"]) / name
        images, labels = (folder / f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        found = idx_files(images, labels, first_label=first_label)
        return found.x.numpy(), found.y[:, 0].numpy()

    return read


SETS: dict[str, tuple[Callable[[], Rows], Callable[[tuple[int, ...], int], nn.Module]]] = {
    "quantiles-leaky": (quantiles, leaky_mlp),
    "classification-residual": (classification, GeluResidual),
    "spirals-softplus": (spirals, wide_softplus),
    "s-curve-leaky": (s_curve, leaky_mlp),
    "digits-pca-residual": (digits_pca, GeluResidual),
    "fashion-lenet": (grey("fashion-mnist", "t10k"), lenet),
    "kmnist-resnet": (grey("ood-grey", "kmnist-t10k"), GroupNormResNet),
    "emnist-lenet": (grey("ood-grey", "emnist-letters-test", 1), lenet),
}


def measure(name: str, seed: int) -> dict[str, float]:
    """Evaluate one call of `fit` with the data and the network alone."""
    read, make = SETS[name]
    x, y = read()
    small = len(x) < TRAIN + TEST
    sizes = {"test_size": 0.3} if small else {"train_size": TRAIN, "test_size": TEST}
    x, x_test, y, y_test = train_test_split(x, y, **sizes, random_state=seed, stratify=y)
    n_classes = int(y.max()) + 1
    torch.manual_seed(seed)
    net = make(x.shape[1:], n_classes)
    if any(isinstance(m, nn.LazyLinear) for m in net.modules()):
        net(torch.zeros(1, 1, *x.shape[-2:]))
    began = time.process_time()
    run = je.fit(net, (x, y), seed=seed, device="cpu")
    minutes = (time.process_time() - began) / 60
    probs = run.predict_proba(x_test)["class"]
    truth = torch.from_numpy(y_test.astype(np.int64))
    health = run.health()
    for complaint in health.complaints:
        print(f"{name}: {complaint}")
    line = LogisticRegression(max_iter=500).fit(x.reshape(len(x), -1) / 1.0, y)
    return {
        "accuracy": float((probs.argmax(1) == truth).double().mean()),
        "baseline.accuracy": float(line.score(x_test.reshape(len(x_test), -1) / 1.0, y_test)),
        "ece": float(multiclass_calibration_error(probs, truth, n_classes, n_bins=15)),
        "healthy": float(health.healthy),
        "training_cpu_minutes": minutes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    seeds = [int(s) for s in arguments.seeds.split(",")]
    for name in [n for n in SETS if arguments.only in n]:
        began, found = time.monotonic(), {}
        for seed in seeds:
            for key, value in measure(name, seed).items():
                found.setdefault(key, []).append(value)
                print(f"{name}  {key}  seed {seed}  {value:.4f}", flush=True)
        if arguments.write:
            command = f"python benchmarks/defaults.py --seeds {arguments.seeds} --only {name} --write"
            minutes = (time.monotonic() - began) / 60
            measured = results.measured(
                f"fit-defaults-{name}",
                found,
                seeds=seeds,
                minutes=minutes,
                command=command.split(),
                notes=NOTE,
                protocols={"healthy": PROTOCOL},
            )
            results.write(measured)


if __name__ == "__main__":
    main()
