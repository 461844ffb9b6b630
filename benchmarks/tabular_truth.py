"""benchmarks: known distributions of tables: mixtures of Gaussians with a class and categories each.

Two moons, blobs with rare classes, and a table of numbers and categories are all one `Mixture`, so that one computation
gives p(class | known), p(known) and the distribution of missing entries exactly, for any pattern.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

HALVINGS = 60  # bisections of a quantile's interval
FAR = 12.0  # standard deviations from every mean: no quantile lies there


@dataclass(frozen=True, eq=False)
class Mixture:
    """Hold components with a weight, a class, a value of every category, and a Gaussian of the numbers.

    A row has its numbers first, `means.shape[1]` of them, then its categories as 0, 1, ...; NaN is missing.
    """

    weights: Floats
    classes: Ints
    categories: Ints
    means: Floats
    covariances: Floats

    @property
    def n_numbers(self) -> int:
        return int(self.means.shape[1])

    @property
    def n_classes(self) -> int:
        return int(self.classes.max()) + 1

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        """Draw rows and their classes."""
        which = rng.choice(len(self.weights), n, p=self.weights)
        roots = np.linalg.cholesky(self.covariances)
        noise = rng.standard_normal((n, self.n_numbers))
        numbers = self.means[which] + np.einsum("nij,nj->ni", roots[which], noise)
        return np.hstack([numbers, self.categories[which]]), self.classes[which]

    def without(self, classes: Collection[int]) -> Mixture:
        """Return the distribution of the other classes, which keep their numbers."""
        kept = ~np.isin(self.classes, list(classes))
        return Mixture(
            self.weights[kept] / self.weights[kept].sum(),
            self.classes[kept],
            self.categories[kept],
            self.means[kept],
            self.covariances[kept],
        )

    def log_density(self, x: Floats) -> Floats:
        """Return log p of the known entries of each row, `[n]`."""
        return np.asarray(logsumexp(self._log_joint(x), axis=1))

    def label_probs(self, x: Floats) -> Floats:
        """Return p(class | known entries), `[n, n_classes]`."""
        joint = np.exp(self._posterior(x))
        return np.stack([joint[:, self.classes == k].sum(1) for k in range(self.n_classes)], axis=1)

    def interval(self, x: Floats, level: float) -> tuple[Floats, Floats]:
        """Return the ends of central intervals of probability `level` for each missing number.

        Both are `[n, n_numbers]`; a known number is its own interval.
        """
        low, high = x[:, : self.n_numbers].copy(), x[:, : self.n_numbers].copy()
        posterior = np.exp(self._posterior(x))
        for rows, seen in self._patterns(x):
            hidden = np.flatnonzero(~seen)
            if len(hidden):
                means, spreads = self._given(x[rows], seen)
                for end, share in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
                    end[np.ix_(rows, hidden)] = _quantile(posterior[rows], means, spreads, share)
        return low, high

    def completed(self, x: Floats, n: int, rng: np.random.Generator) -> Floats:
        """Return n draws of each missing number by itself, given what is known of its row: `[n, rows, n_numbers]`."""
        draws = np.tile(x[:, : self.n_numbers], (n, 1, 1))
        reached = np.exp(self._posterior(x)).cumsum(1)
        for rows, seen in self._patterns(x):
            hidden = np.flatnonzero(~seen)
            if len(hidden):
                means, spreads = self._given(x[rows], seen)
                which = (rng.random((n, len(rows), 1)) > reached[rows, :-1]).sum(-1)
                noise = rng.standard_normal((n, len(rows), len(hidden)))
                draws[np.ix_(range(n), rows, hidden)] = means[range(len(rows)), which] + spreads[which] * noise
        return draws

    def _patterns(self, x: Floats) -> Iterator[tuple[Ints, NDArray[np.bool_]]]:
        """The rows in which the same numbers are known, and which those are."""
        seen = ~np.isnan(x[:, : self.n_numbers])
        patterns, which = np.unique(seen, axis=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            yield np.flatnonzero(which.reshape(-1) == i), pattern

    def _log_joint(self, x: Floats) -> Floats:
        """Return log p(known entries, component), `[n, components]`."""
        joint = np.tile(np.log(self.weights), (len(x), 1))
        for k, column in enumerate(x[:, self.n_numbers :].T):
            unlike = column[:, None] != self.categories[None, :, k]
            joint[unlike & ~np.isnan(column)[:, None]] = -np.inf
        for rows, seen in self._patterns(x):
            numbers = x[np.ix_(rows, np.flatnonzero(seen))]
            for c, (mean, covariance) in enumerate(zip(self.means, self.covariances, strict=True)):
                root = np.linalg.cholesky(covariance[np.ix_(seen, seen)])
                away = np.linalg.solve(root, (numbers - mean[seen]).T)
                constant = np.log(np.diag(root)).sum() + 0.5 * seen.sum() * np.log(2 * np.pi)
                joint[rows, c] -= 0.5 * (away**2).sum(0) + constant
        return joint

    def _posterior(self, x: Floats) -> Floats:
        joint = self._log_joint(x)
        return np.asarray(joint - logsumexp(joint, axis=1, keepdims=True))

    def _given(self, x: Floats, seen: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Mean, `[n, components, hidden]`, and spread, `[components, hidden]`, of each unknown number by itself.

        Given the known numbers, in each component.
        """
        means, spreads = [], []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            across = covariance[np.ix_(~seen, seen)]
            gain = np.linalg.solve(covariance[np.ix_(seen, seen)], across.T).T
            means.append(mean[~seen] + (x[:, : self.n_numbers][:, seen] - mean[seen]) @ gain.T)
            spreads.append(np.sqrt(np.diag(covariance[np.ix_(~seen, ~seen)] - gain @ across.T)))
        return np.stack(means, axis=1), np.stack(spreads)


def _quantile(weights: Floats, means: Floats, spreads: Floats, share: float) -> Floats:
    """Where the mixtures' distribution functions reach `share`, by halving, `[n, hidden]`."""
    low = (means - FAR * spreads).min(1)
    high = (means + FAR * spreads).max(1)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = np.einsum("nc,nch->nh", weights, ndtr((middle[:, None] - means) / spreads)) < share
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)


def two_moons(n_nodes: int = 100, noise: float = 0.2) -> Mixture:
    """Return two interleaved half circles, each a row of round Gaussians."""
    angle = np.linspace(0, np.pi, n_nodes)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    n = 2 * n_nodes
    return Mixture(
        np.full(n, 1 / n),
        np.repeat([0, 1], n_nodes),
        np.zeros((n, 0), dtype=np.int64),
        np.concatenate([upper, lower]),
        np.tile(noise**2 * np.eye(2), (n, 1, 1)),
    )


def _covariance(rng: np.random.Generator, n: int) -> Floats:
    """Return a random covariance with standard deviations from about 0.5 to 1.5."""
    factors = rng.standard_normal((n, n)) / np.sqrt(n)
    return np.asarray(0.2 * np.eye(n) + 0.8 * factors @ factors.T)


def rare_blobs() -> Mixture:
    """Return five Gaussian classes of different shape in five numbers; the rarest has 3 % of the rows."""
    rng = np.random.default_rng(17)
    weights = np.array([0.5, 0.27, 0.15, 0.05, 0.03])
    return Mixture(
        weights,
        np.arange(5),
        np.zeros((5, 0), dtype=np.int64),
        1.1 * rng.standard_normal((5, 5)),
        np.stack([_covariance(rng, 5) for _ in range(5)]),
    )


def mixed_table() -> Mixture:
    """Return three classes in four numbers and three categories that depend on the class and on each other.

    The class and the first category move the means of the numbers, the last one changes their variances.
    """
    rng = np.random.default_rng(5)
    cardinalities = (3, 4, 2)
    of_class = np.array([0.45, 0.35, 0.2])
    first = rng.dirichlet(np.full(3, 1.5), size=3)
    second = rng.dirichlet(np.full(4, 1.5), size=(3, 3))
    third = rng.dirichlet(np.full(2, 3.0), size=(3, 4))
    class_means, first_means = 0.9 * rng.standard_normal((3, 4)), 0.9 * rng.standard_normal((3, 4))
    covariances = [_covariance(rng, 4), 0.5 * _covariance(rng, 4)]
    states = [(k, a, b, c) for k in range(3) for a, b, c in np.ndindex(*cardinalities)]
    return Mixture(
        np.array([of_class[k] * first[k, a] * second[k, a, b] * third[k, b, c] for k, a, b, c in states]),
        np.array([k for k, *_ in states]),
        np.array([others for _, *others in states]),
        np.stack([class_means[k] + first_means[a] for k, a, _, _ in states]),
        np.stack([covariances[c] for *_, c in states]),
    )
