"""benchmarks: the tables of `tabular` and how each is divided: what is learned from, tested on, hidden and strange.

Everything here depends on a set's name and a seed alone, so that all methods see the same rows.
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
TEST_SHARE = 0.3  # of the sets that scikit-learn ships
N_TEST = 1000  # rows of the others, whose rows cost nothing
HIDDEN_SHARE = 0.3  # of the entries of test rows, each by itself
ALL_IN_TURN = 3  # classes at most for which one seed leaves out each of them

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
    """Rows to learn from and rows to test on; which columns are categories; the law itself where it is known."""

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
        """The columns that are no categories."""
        return np.setdiff1d(np.arange(self.x.shape[1]), self.categorical)

    def rng(self, purpose: int) -> np.random.Generator:
        """One stream for each thing that is drawn: a change of one leaves the others as they are."""
        return np.random.default_rng([self.seed, purpose])


def split_of(name: str, seed: int) -> Split:
    """70 and 30 of 100 rows of a real set, each class alike; new rows of a law whose truth is known."""
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
    """As many rows as there are to test, uniform between the smallest and the largest value of each column."""
    rng = split.rng(0)
    x = rng.uniform(split.x.min(0), split.x.max(0), split.x_test.shape)
    for k in split.categorical:
        x[:, k] = rng.choice(np.unique(split.x[:, k]), len(x))
    return x


def hidden(split: Split) -> NDArray[np.bool_]:
    """The entries of the test rows that are hidden."""
    return split.rng(1).random(split.x_test.shape) < HIDDEN_SHARE


def few_labels(split: Split, n: int) -> Split:
    """The same rows with n labels of each class, or all where it has fewer; the other rows are UNLABELED."""
    rng, y = split.rng(2), np.full_like(split.y, UNLABELED)
    for k in range(split.n_classes):
        rows = rng.permutation(np.flatnonzero(split.y == k))[:n]
        y[rows] = k
    return replace(split, y=y)


def left_out(split: Split) -> list[tuple[int, ...]]:
    """The classes that this seed leaves out, one fit each: of few classes each in turn, of many a fifth at once.

    The fifths of five seeds in a row are all classes.
    """
    n = split.n_classes
    if n <= ALL_IN_TURN:
        return [(k,) for k in range(n)]
    size = -(-n // 5)
    return [tuple(sorted({(split.seed * size + i) % n for i in range(size)}))]


def without(split: Split, classes: tuple[int, ...]) -> tuple[Split, Floats]:
    """What is left of a set without some classes, counted 0, 1, ... again; and the test rows of those left out."""
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
