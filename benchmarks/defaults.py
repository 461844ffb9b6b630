"""benchmarks: `fit(net, (x, y))` with nothing else said, on sets and networks its defaults were not chosen on.

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
from sklearn.datasets import load_breast_cancer, make_circles
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import nn
from torchmetrics.functional.classification import multiclass_calibration_error

import jointenergy as je
from jointenergy.data import idx_files
from jointenergy.report import results

TRAIN, TEST = 2000, 1000
NOTE = "The baseline is a logistic regression on the same rows. Test rows are touched once a seed."
Rows = tuple[np.ndarray, np.ndarray]


def tanh_mlp(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    n = int(np.prod(shape))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(n, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_classes)
    )


def lenet(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    channels = shape[0] if len(shape) == 3 else 1
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 5, padding=2), nn.SiLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten()),
        *(nn.LazyLinear(128), nn.SiLU(), nn.Linear(128, n_classes)),
    )


class GroupNormResNet(nn.Module):
    """Three residual blocks with group norm."""

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


def circles() -> Rows:
    x, y = make_circles(TRAIN + TEST, noise=0.1, factor=0.4, random_state=1)
    return 3.0 * x.astype(np.float32), y


def cancer() -> Rows:
    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32), y


def grey(name: str, prefix: str, first_label: int = 0) -> Callable[[], Rows]:
    def read() -> Rows:
        folder = Path(os.environ["JOINTENERGY_DATA"]) / name
        images, labels = (folder / f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        found = idx_files(images, labels, first_label=first_label)
        return found.x.numpy(), found.y[:, 0].numpy()

    return read


SETS: dict[str, tuple[Callable[[], Rows], Callable[[tuple[int, ...], int], nn.Module]]] = {
    "circles-mlp": (circles, tanh_mlp),
    "cancer-mlp": (cancer, tanh_mlp),
    "fashion-lenet": (grey("fashion-mnist", "t10k"), lenet),
    "kmnist-resnet": (grey("ood-grey", "kmnist-t10k"), GroupNormResNet),
    "emnist-lenet": (grey("ood-grey", "emnist-letters-test", 1), lenet),
}


def measure(name: str, seed: int) -> dict[str, float]:
    """One call of fit with nothing but the data and the network."""
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
                f"fit-defaults-{name}", found, seeds=seeds, minutes=minutes, command=command.split(), notes=NOTE
            )
            results.write(measured)


if __name__ == "__main__":
    main()
