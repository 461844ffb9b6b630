"""benchmarks: the tables of `tabular` and their splits: training and test rows, hidden entries, outliers.

Everything here depends only on a set's name and a seed, so that all methods see the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split
from tabular_truth import Floats, Ints, Mixture, mixed_table, rare_blobs, two_moons

UNLABELED = -1
TEST_SHARE = 0.3  # of scikit-learn's sets
N_TEST = 1000  # test rows of drawn sets
HIDDEN_SHARE = 0.3  # of the entries of test rows, independently
ALL_IN_TURN = 3  # up to this many classes, one seed leaves out each in turn

SHIPPED: dict[str, Callable[..., tuple[Floats, Ints]]] = {
    "digits": datasets.load_digits,
    "breast-cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}
DRAWN: dict[str, tuple[Callable[[], Mixture], int]] = {
    "two-moons": (two_moons, 400),
    "rare-blobs": (rare_blobs, 800),
    "mixed": (mixed_table, 800),
}
SETS = (*SHIPPED, *DRAWN)


@dataclass(frozen=True, eq=False)
class Split:
    """Hold training and test rows, the categorical columns, and the distribution if it is known."""

    name: str
    seed: int
    x: Floats
    y: Ints
    x_test: Floats
    y_test: Ints
    categorical: tuple[int, ...] = ()
    truth: Mixture | None = None

    @property
    def n_classes(self) -> int:
        return int(max(self.y.max(), self.y_test.max())) + 1

    @property
    def numbers(self) -> Ints:
        """Return the columns that are not categories."""
        return np.setdiff1d(np.arange(self.x.shape[1]), self.categorical)

    def rng(self, purpose: int) -> np.random.Generator:
        """Return one generator per purpose, so that changing one leaves the others unchanged."""
        return np.random.default_rng([self.seed, purpose])


def split_of(name: str, seed: int) -> Split:
    """Split a real set 70 to 30, stratified; draw new rows of a known distribution."""
    if name in SHIPPED:
        x, y = SHIPPED[name](return_X_y=True)
        parts = train_test_split(x, y, test_size=TEST_SHARE, stratify=y, random_state=seed)
        x, x_test, y, y_test = (np.asarray(p) for p in parts)
        return Split(name, seed, x, y.astype(np.int64), x_test, y_test.astype(np.int64))
    make, n_train = DRAWN[name]
    truth, rng = make(), np.random.default_rng(seed)
    x, y = truth.draw(n_train, rng)
    x_test, y_test = truth.draw(N_TEST, rng)
    categorical = tuple(range(truth.n_numbers, x.shape[1]))
    return Split(name, seed, x, y, x_test, y_test, categorical, truth)


def noise(split: Split) -> Floats:
    """Draw as many rows as test rows, uniform over the range of each column."""
    rng = split.rng(0)
    x = rng.uniform(split.x.min(0), split.x.max(0), split.x_test.shape)
    for k in split.categorical:
        x[:, k] = rng.choice(np.unique(split.x[:, k]), len(x))
    return x


def hidden(split: Split) -> NDArray[np.bool_]:
    """Return which entries of the test rows are hidden."""
    return split.rng(1).random(split.x_test.shape) < HIDDEN_SHARE


def few_labels(split: Split, n: int) -> Split:
    """Keep n labels of each class, or all if it has fewer; the other rows are UNLABELED."""
    rng, y = split.rng(2), np.full_like(split.y, UNLABELED)
    for k in range(split.n_classes):
        rows = rng.permutation(np.flatnonzero(split.y == k))[:n]
        y[rows] = k
    return replace(split, y=y)


def left_out(split: Split) -> list[tuple[int, ...]]:
    """Return the classes that this seed leaves out, one fit each: few classes in turn, of many a fifth at once.

    Five consecutive seeds leave out all classes.
    """
    n = split.n_classes
    if n <= ALL_IN_TURN:
        return [(k,) for k in range(n)]
    size = -(-n // 5)
    return [tuple(sorted({(split.seed * size + i) % n for i in range(size)}))]


def without(split: Split, classes: tuple[int, ...]) -> tuple[Split, Floats]:
    """Return a set without some classes, renumbered from 0, and the test rows of those left out."""
    here, there = ~np.isin(split.y, classes), ~np.isin(split.y_test, classes)
    kept = np.setdiff1d(np.arange(split.n_classes), classes)
    truth = None if split.truth is None else split.truth.without(classes)
    rest = replace(
        split,
        x=split.x[here],
        y=np.searchsorted(kept, split.y[here]),
        x_test=split.x_test[there],
        y_test=np.searchsorted(kept, split.y_test[there]),
        truth=truth,
    )
    return rest, split.x_test[~there]
