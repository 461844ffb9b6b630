"""tables: Gaussian classes with a shared covariance, the reference density that training of a table starts from.

Features are standardized, in float64. Discrete features have frequencies in each class. The joint density of class,
features and discrete features is normalized, and can be sampled and conditioned on any part.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.semi_supervised import LabelSpreading
from torch import Tensor

from jointenergy.data.covariances import shrinkage
from jointenergy.labels import MISSING, LabelSpace

NEIGHBORS = 7  # nearest neighbors per row, for label spreading
ROUNDS = 10  # EM iterations where features are missing
CLASS_ROUNDS = 2  # EM iterations where classes are missing: more move non-Gaussian classes away from their labels


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Hold classes k with weights, means, one covariance, and log p(value of a discrete feature | k)."""

    log_weights: Tensor  # [K]
    means: Tensor  # [K, D]
    covariance: Tensor  # [D, D]
    log_values: Tensor  # [K, n_codes of the discrete features]

    @property
    def precision(self) -> Tensor:
        found: Tensor = torch.linalg.inv(self.covariance)
        return found

    @property
    def whitening(self) -> Tensor:
        """Return the matrix that gives classes unit covariance: z = x @ whitening."""
        found: Tensor = torch.linalg.cholesky(self.precision)
        return found

    def log_joint(self, x: Tensor, code: Tensor) -> Tensor:
        """Return log p(k, x, discrete features), `[n, K]`, up to a constant; features with zero code are summed out."""
        z, m = x @ self.whitening, self.means @ self.whitening
        return self.log_weights - 0.5 * torch.cdist(z, m).square() + code @ self.log_values.mT

    def filled(self, x: Tensor) -> Tensor:
        """Replace NaN by its mean under the mixture of classes: where chains that complete rows start."""
        mask = ~x.isnan()
        if bool(mask.all()):
            return x
        mean = self.log_weights.exp() @ self.means
        away = torch.where(mask, x.nan_to_num(0.0) - mean, 0.0)
        return torch.where(mask, x, mean + ConditionalGaussian.of(self.precision, mask).mean(away))


def fit(
    x: Tensor, mask: Tensor, classes: Tensor, values: Tensor, weight: Tensor, *, n_classes: int, space: LabelSpace
) -> Gaussians:
    """Fit by maximum likelihood with shrinkage; by EM where `mask` is False.

    Rows whose class is MISSING start with the classes of their neighbors; a few EM iterations follow. Entries of `x`
    with `mask` False are ignored. `values` are the discrete features as labels of `space`.
    """
    x, loss = _filled_by_em(x, mask, weight)
    known = classes != MISSING
    own = torch.nn.functional.one_hot(classes.clamp(min=0), n_classes).to(x.dtype) * known[:, None]
    code = known_code(values, space, x.dtype)
    if bool(known.all()):
        return _maximize(x, own * weight[:, None], loss, code, space)
    share = spread(torch.cat((x, code), dim=1), classes, n_classes)
    for _ in range(1 + CLASS_ROUNDS):
        found = _maximize(x, torch.where(known[:, None], own, share) * weight[:, None], loss, code, space)
        share = found.log_joint(x, code).softmax(1)
    return found


def known_code(values: Tensor, space: LabelSpace, dtype: torch.dtype) -> Tensor:
    """Return the one-hot code of discrete features, zero in the blocks of missing ones."""
    return (values[:, list(space.variable_of_code)] == torch.tensor(space.value_of_code)).to(dtype)


def spread(x: Tensor, classes: Tensor, n_classes: int) -> Tensor:
    """Return class shares of each row, `[n, K]`, by label spreading along nearest neighbors; zero where none reach."""
    if not bool((classes >= 0).any()):  # the first call of partial_fit may have no label
        return x.new_full((len(x), n_classes), 1 / n_classes)
    spreading = LabelSpreading(kernel="knn", n_neighbors=min(NEIGHBORS, len(x)))
    with warnings.catch_warnings():
        # Shares only initialize EM: they need not have converged.
        warnings.simplefilter("ignore", ConvergenceWarning)
        spreading.fit(x.numpy(), classes.numpy())
    shares = x.new_zeros(len(x), n_classes)
    shares[:, torch.from_numpy(spreading.classes_)] = torch.from_numpy(spreading.label_distributions_).to(x.dtype)
    return shares


def _maximize(x: Tensor, share: Tensor, loss: Tensor, code: Tensor, space: LabelSpace) -> Gaussians:
    """Return the Gaussians of rows with class shares `[n, K]`; `loss` is the covariance lost by filling in means."""
    total = share.sum(0)
    means = (share.mT @ x) / total.clamp(min=1e-9)[:, None]
    away = x[:, None, :] - means
    scatter = torch.einsum("nk,nki,nkj->ij", share, away, away) / total.sum()
    belongs = share.sum(1)
    rows = (share[:, :, None] * away).sum(1) / belongs.clamp(min=1e-9)[:, None]
    share_round = shrinkage(rows, belongs)
    covariance = scatter + loss
    level = covariance.diagonal().mean().clamp(min=1e-3)
    covariance = (1 - share_round) * covariance + share_round * level * torch.eye(x.shape[1], dtype=x.dtype)
    # Add one row of each value: values unseen in a class are rare, not impossible.
    counts = share.mT @ code + 1.0 / max(space.n_codes, 1)
    logs = [(b / b.sum(1, keepdim=True)).log() for b in counts.split(space.cardinalities, dim=1)] if len(space) else []
    log_values = torch.cat(logs, dim=1) if logs else counts[:, :0]
    smoothed = total + 1e-3 * total.sum() / len(total)
    return Gaussians((smoothed / smoothed.sum()).log(), means, covariance, log_values)


def _filled_by_em(x: Tensor, mask: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Fill masked entries with their conditional means by EM; return the covariance that this loses, too."""
    n_features = x.shape[1]
    nothing = x.new_zeros(n_features, n_features)
    if bool(mask.all()):
        return x, nothing
    count = (mask * weight[:, None]).sum(0).clamp(min=1e-9)
    mean = (torch.where(mask, x, 0.0) * weight[:, None]).sum(0) / count
    filled = torch.where(mask, x, mean)
    lost, share = nothing, weight / weight.sum()
    for _ in range(ROUNDS):
        mean = share @ filled
        away = filled - mean
        covariance = (away * share[:, None]).mT @ away + lost
        level = covariance.diagonal().mean().clamp(min=1e-3)
        covariance = 0.98 * covariance + 0.02 * level * torch.eye(n_features, dtype=x.dtype)
        condition = ConditionalGaussian.of(torch.linalg.inv(covariance), mask)
        filled = torch.where(mask, x, mean + condition.mean(torch.where(mask, x - mean, 0.0)))
        lost = torch.einsum("n,nij->ij", share, condition.covariance())
    return filled, lost


@dataclass(frozen=True, eq=False)
class ConditionalGaussian:
    """Condition each row's free entries on its held ones under a zero-mean Gaussian: matrices `[n, D, D]`.

    Rows with the same mask share the work.
    """

    precision: Tensor  # [D, D]
    pattern: Tensor  # [n], which of the masks a row has
    roots: Tensor  # [P, D, D], the inverse of the transposed factor of the free entries' precision, zero elsewhere

    @classmethod
    def of(cls, precision: Tensor, mask: Tensor) -> ConditionalGaussian:
        masks, pattern = mask.unique(dim=0, return_inverse=True)
        free = (~masks).to(precision.dtype)
        inner = precision * free[:, :, None] * free[:, None, :] + torch.diag_embed(1 - free)
        root = torch.linalg.cholesky(inner)
        one = torch.eye(len(precision), dtype=precision.dtype).expand_as(root)
        inverse = torch.linalg.solve_triangular(root, one, upper=False).mT
        return cls(precision, pattern, inverse * free[:, :, None] * free[:, None, :])

    def covariance(self) -> Tensor:
        return (self.roots @ self.roots.mT)[self.pattern]

    def mean(self, held: Tensor) -> Tensor:
        """Return the conditional means of the free entries, zero elsewhere; `held` is zero where x is free."""
        pull = -(held @ self.precision)[:, :, None]
        roots = self.roots[self.pattern]
        return (roots @ (roots.mT @ pull))[:, :, 0]

    def spread(self, noise: Tensor) -> Tensor:
        """Turn standard noise `[m, n, D]` into noise with the conditional covariance."""
        return (noise.transpose(0, 1) @ self.roots[self.pattern].mT).transpose(0, 1)
