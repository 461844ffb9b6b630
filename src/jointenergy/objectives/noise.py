"""objectives: noise for terms without chains: Gaussian steps that stay in the domain, and a density fitted to data."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Self, final

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING, LabelSpace
from jointenergy.models import Box, Domain, JointModel
from jointenergy.objectives.base import Batch, DrawName, Draws
from jointenergy.objectives.objective import Term
from jointenergy.objectives.values import Values

WIDEST = 0.25
"""The largest standard deviation of noise in a box, in widths of it: images beyond the next walls have no weight."""
LEAST_SCALE = 1e-2
"""The least standard deviation of an entry in the fitted noise, in parts of the mean over all entries."""
LABEL_COUNT = 1.0
"""What is added to the count of each value of a label, so that none has the probability 0."""


def step(x: Tensor, scale: float, domain: Domain, generator: torch.Generator) -> Tensor:
    """x with Gaussian noise added, in a box reflected at the walls: noised rows stay in the domain."""
    noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=x.dtype).to(x.device)
    moved = x + scale * noise
    return domain.reflected(moved) if isinstance(domain, Box) else moved


def log_step(to: Tensor, center: Tensor, scale: Tensor | float, domain: Domain) -> Tensor:
    """The log-density of each entry after such a step from a center; in a box, summed over the images of the center."""
    deviations = torch.as_tensor(scale, dtype=to.dtype, device=to.device)
    constant = deviations.log() + math.log(2 * math.pi) / 2
    if not isinstance(domain, Box):
        return -(((to - center) / deviations) ** 2) / 2 - constant
    exponents = [-(((to - image) / deviations) ** 2) / 2 for image in _images(center, domain)]
    return torch.stack(exponents).logsumexp(0) - constant


def step_score(to: Tensor, center: Tensor, scale: float, domain: Domain) -> Tensor:
    """The gradient of `log_step` by `to`."""
    if not isinstance(domain, Box):
        return (center - to) / scale**2
    images = torch.stack(_images(center, domain))
    weights = (-(((to - images) / scale) ** 2) / 2).softmax(0)
    return ((weights * images).sum(0) - to) / scale**2


def _images(center: Tensor, box: Box) -> list[Tensor]:
    width = box.high - box.low
    return [center, 2 * box.low - center, 2 * box.high - center, center - 2 * width, center + 2 * width]


@final
@dataclass(frozen=True, eq=False)
class FittedNoise:
    """A noise density q(x, y) that is fitted to data, for `NoiseContrastiveEstimation`.

    With one label it has a Gaussian for each class. With none or several, x is Gaussian and independent of the labels,
    which have their frequencies. On R^D a Gaussian has a full covariance; in a box its entries are independent and
    reflected at the walls. Create it with `FittedNoise.fit`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels, x, y = je.LabelSpace({"class": 2}), torch.randn(100, 3), torch.randint(2, (100, 1))
    >>> noise = je.objectives.FittedNoise.fit(x, y, labels, je.Reals())
    >>> noise.log_density(x, y).shape
    torch.Size([100])
    """

    log_shares: Tensor  # [C]
    means: Tensor  # [C, D]
    factors: Tensor  # [C, D, D], lower Cholesky factors; in a box [C, D], standard deviations
    log_labels: Tensor  # [C, L, largest cardinality], log-probabilities of each label's values
    domain: Domain

    @classmethod
    def fit(cls, x: Tensor, y: Tensor, labels: LabelSpace, domain: Domain) -> FittedNoise:
        """From rows of data; those without a label have no part in its class or frequency."""
        flat = x.detach().flatten(1)
        sizes = labels.cardinalities
        if len(sizes) == 1:
            groups = [flat[y[:, 0] == c] for c in range(sizes[0])]
            groups = [g if len(g) > 1 else flat for g in groups]  # a class of one row has no spread of its own
            counts = torch.stack([(y[:, 0] == c).sum() for c in range(sizes[0])]).to(flat) + LABEL_COUNT
            log_labels = torch.eye(sizes[0], dtype=flat.dtype, device=flat.device).log()[:, None, :]
        else:
            groups, counts = [flat], flat.new_ones(1)
            log_labels = flat.new_full((1, len(sizes), max(sizes, default=0)), -torch.inf)
            for k, size in enumerate(sizes):
                seen = torch.stack([(y[:, k] == v).sum() for v in range(size)]).to(flat) + LABEL_COUNT
                log_labels[0, k, :size] = (seen / seen.sum()).log()
        least = LEAST_SCALE * float(flat.std(0, correction=0).mean())
        if least <= 0:
            raise InputError("noise cannot be fitted to data without spread: all rows are equal")
        means = torch.stack([g.mean(0) for g in groups])
        factors = torch.stack([_factor(g, least, domain) for g in groups])
        return cls((counts / counts.sum()).log(), means, factors, log_labels, domain)

    def draw(self, y: Tensor, event_shape: tuple[int, ...], *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One state for each row of labels `[m, L]`: x, and labels that are MISSING where those of the row are."""
        device, m = generator.device, len(y)

        def chosen(probabilities: Tensor) -> Tensor:
            return torch.multinomial(probabilities.to(device), 1, generator=generator)[:, 0].to(y.device)

        component = chosen(self.log_shares.exp().expand(m, -1))
        columns = [chosen(self.log_labels[component, k].exp()) for k in range(y.shape[1])]
        drawn = torch.stack(columns, dim=1) if columns else y
        unit = torch.randn(m, self.means.shape[1], generator=generator, device=device, dtype=self.means.dtype)
        x, unit = self.means[component], unit.to(self.means.device)
        for c in range(len(self.means)):
            rows = (component == c)[:, None]
            away = unit * self.factors[c] if isinstance(self.domain, Box) else unit @ self.factors[c].mT
            x = torch.where(rows, x + away, x)
        if isinstance(self.domain, Box):
            x = self.domain.reflected(x)
        return x.view(m, *event_shape), torch.where(y == MISSING, MISSING, drawn)

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """log q of x and the labels that are not MISSING, `[m]`."""
        flat, parts = x.flatten(1), []
        known = y != MISSING
        for c in range(len(self.means)):
            if isinstance(self.domain, Box):
                of_x = log_step(flat, self.means[c], self.factors[c], self.domain).sum(1)
            else:
                away = torch.linalg.solve_triangular(self.factors[c], (flat - self.means[c]).mT, upper=False)
                logs = self.factors[c].diagonal().log().sum() + flat.shape[1] / 2 * math.log(2 * math.pi)
                of_x = -away.square().sum(0) / 2 - logs
            of_labels = self.log_labels[c].expand(len(y), -1, -1).gather(2, y.clamp(min=0)[:, :, None])[:, :, 0]
            parts.append(self.log_shares[c] + of_x + of_labels.masked_fill(~known, 0.0).sum(1))
        return torch.stack(parts).logsumexp(0)


def _factor(rows: Tensor, least: float, domain: Domain) -> Tensor:
    if isinstance(domain, Box):
        return rows.std(0, correction=0).clamp(least, WIDEST * (domain.high - domain.low))
    away = rows.double() - rows.double().mean(0)
    covariance = away.mT @ away / len(rows)
    covariance.diagonal().add_(least**2)
    factor: Tensor = torch.linalg.cholesky(covariance)
    return factor.to(rows.dtype)


@final
@dataclass(frozen=True, eq=False)
class NoiseSource:
    """Where the noise of terms without chains comes from: domain, random generator, and fitted density.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> source = je.objectives.NoiseSource(je.Box(-1.0, 1.0), torch.Generator().manual_seed(0))
    >>> batch = je.objectives.Batch(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.int64))
    >>> draws = je.objectives.DenoisingScoreMatching().draw(je.objectives.Draws(), batch, source)
    >>> draws.noised.x.shape
    torch.Size([4, 3])
    """

    domain: Domain
    generator: torch.Generator
    fitted: FittedNoise | None = None


@dataclass(frozen=True)
class NoiseTerm(Term):
    """Base of the terms that compare rows with noise instead of chains, for the density of f / temperature.

    Without a temperature, `fit` sets that of its kernel, so that chains sample what was trained. The value is
    multiplied by the temperature, so that weights compare with those of likelihood terms. Missing labels are summed
    out before f is divided, as in chains on log p(x). A conditional model has no such sum: it skips rows with
    missing labels.

    Examples
    --------
    >>> import jointenergy as je
    >>> isinstance(je.objectives.EnergyDiscrepancy(), je.objectives.NoiseTerm)
    True
    """

    temperature: float | None = None

    needs_complete_x = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature is not None:
            check_above_zero(self, "temperature", self.temperature)

    @abstractmethod
    def draw(self, draws: Draws, batch: Batch, source: NoiseSource) -> Draws:
        """The draws with this term's noise for a batch."""

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        if missing_labels and model.normalizer == "joint" and not model.can_sum():
            raise InputError(
                f"the term {self.name!r} sums missing labels out, and those of this model are too many: give all "
                "labels, or train log p(x, y) with chains"
            )
        return frozenset(self.draws)

    def at(self, temperature: float) -> Self:
        """The term at this temperature, unless it has one of its own."""
        return self if self.temperature is not None else replace(self, temperature=temperature)

    @property
    def inverse_temperature(self) -> float:
        return 1.0 if self.temperature is None else 1.0 / self.temperature

    def mean(self, values: Values, of_rows: Tensor) -> Tensor:
        """The mean over the rows that the term applies to, as likelihood terms have it, times the temperature."""
        if values.model.normalizer == "conditional":
            of_rows = torch.where((values.y != MISSING).all(1), of_rows, 0.0)
        return values.total(of_rows) / values.n / self.inverse_temperature


def check_above_zero(term: Term, name: str, value: float) -> None:
    """One sentence for a number that must be finite and positive."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(f"{type(term).__name__} needs a finite positive {name}, got {value}")


def check_noise_scale(term: Term, scale: float, domain: Domain) -> None:
    """Refuse noise that is wider than the walls of a box allow."""
    if isinstance(domain, Box) and scale > (most := WIDEST * (domain.high - domain.low)):
        raise InputError(
            f"{type(term).__name__} has noise_scale={scale} in a box from {domain.low:g} to {domain.high:g}: use at "
            f"most {most:g}, a quarter of its width"
        )


def check_aligned(term: Term, n_states: int, values: Values, each: int) -> None:
    """Refuse draws that are not `each` states for every row of the batch."""
    if n_states != each * values.n:
        raise InputError(
            f"draws.{term.draws[0]} has {n_states} states where the batch has {values.n} rows: give {each} for each, "
            f"as {type(term).__name__}.draw does"
        )
