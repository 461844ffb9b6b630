"""inference: sample and score products of models, or of one model under several conditions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jointenergy.buffers import Buffer
from jointenergy.errors import InputError
from jointenergy.inference.chains import NONE, Aids, Frames, given_log_prob, why_no_log_prob
from jointenergy.inference.sample import sample
from jointenergy.kernels import Kernel
from jointenergy.labels import MISSING, Given, LabelSpace
from jointenergy.models import JointModel, LabelLogits, Product
from jointenergy.starts import Start, XStart

Factor = JointModel | tuple[JointModel, Given]
"""A model with free labels, or a model under a condition: log p(x | given), other labels summed out."""


class UnderConditions(JointModel):
    """f(x) = sum over i of log p(x, condition i), which is the sum of log p(x | condition i) up to a constant.

    A density of x alone. A condition is any subset of the labels, by name or as one row of a tensor. Conditions may
    contradict each other: the product favors x that is likely under all of them.
    """

    factorized = True
    conditions: Tensor

    def __init__(self, model: JointModel, conditions: Sequence[Given]) -> None:
        if not isinstance(model, JointModel):
            raise InputError(f"conditions need a JointModel, got {type(model).__name__}")
        if len(conditions) == 0:
            raise InputError("a model under conditions needs at least one condition")
        rows = torch.cat([model.labels.given(c, 1, torch.device("cpu")) for c in conditions])
        model.check_summable(rows)
        domains = [model.domain] * len(rows)
        super().__init__(
            LabelSpace.none(),
            domain=functools.reduce(lambda a, b: a.intersect(b), domains),
            event_shape=model.event_shape,
        )
        self.model = model
        weight = next(model.parameters(), None)
        self.register_buffer("conditions", rows if weight is None else rows.to(weight.device))

    def parts(self, x: Tensor) -> Tensor:
        """log p(x, condition i) up to one constant, `[conditions, n]`."""
        rows = self.conditions.to(x.device)
        if not self.model.factorized or len(self.model.labels) == 0:
            return torch.stack([self.model.log_density_unchecked(x, r.expand(len(x), -1)) for r in rows])
        # One pass of the network serves all conditions.
        closed, labels = self.model.label_logits(x), self.model.labels
        logits = closed.logits[None].masked_fill(~labels.allowed(rows)[:, None], -torch.inf)
        sums = [b.logsumexp(2) for b in logits.split(labels.cardinalities, dim=2)]
        return closed.bias[None] + torch.stack(sums).sum(0)

    def label_logits(self, x: Tensor) -> LabelLogits:
        return LabelLogits(self.parts(x).sum(0), x.new_empty(len(x), 0))


@dataclass(frozen=True, eq=False)
class Composed:
    """Samples of a product, with the log-density of each factor."""

    x: Tensor
    y: Tensor
    log_density: Tensor
    """The product's log-density up to a constant, all labels missing, `[n]`."""
    parts: Tensor
    """Each factor's log-density, `[factors, n]`; comparable between samples, not between factors."""
    log_prob: tuple[Tensor | None, ...]
    """log p(condition | x) of each factor, `[n]`; None if it has no condition or it is unknown."""
    temperature: float | None
    notes: tuple[str, ...]


def compose(factors: Sequence[Factor]) -> JointModel:
    """Build the product of models and models under conditions; free labels are joined by name."""
    if isinstance(factors, str | JointModel) or len(factors) == 0:
        raise InputError("a composition needs a sequence of at least one factor")
    parts = [_part(f) for f in factors]
    return parts[0] if len(parts) == 1 else Product(parts)


def sample_composed(
    factors: Sequence[Factor],
    n: int,
    *,
    x_kernel: Kernel,
    y_kernel: Kernel | None = None,
    steps: int,
    start: XStart | Start | Buffer,
    aids: Aids = NONE,
    batch_size: int | None = None,
    frames: Frames | None = None,
    generator: torch.Generator,
) -> Composed:
    """Draw `n` samples of the product, with free labels drawn at the end, and the scores of each factor."""
    product = compose(factors)
    drawn = sample(
        product,
        n,
        method="marginalize",
        x_kernel=x_kernel,
        y_kernel=y_kernel,
        steps=steps,
        start=start,
        aids=aids,
        batch_size=batch_size,
        frames=frames,
        generator=generator,
    )
    scored = score_composed(factors, drawn.x)
    return Composed(drawn.x, drawn.y, *scored, drawn.temperature, drawn.notes)


@torch.no_grad()
def score_composed(factors: Sequence[Factor], x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Return the product's log-density `[n]`, each factor's `[factors, n]`, and log p(condition | x) of each factor."""
    total = compose(factors).log_density(x)
    parts = torch.stack([_part(f).log_density(x) for f in factors])
    return total, parts, tuple(_condition_log_prob(f, x) for f in factors)


def _part(factor: Factor) -> JointModel:
    if isinstance(factor, nn.Module):
        return factor
    if not isinstance(factor, tuple) or len(factor) != 2:
        raise InputError(f"a factor is a JointModel or a pair (model, given), got {type(factor).__name__}")
    return UnderConditions(factor[0], [factor[1]])


def _condition_log_prob(factor: Factor, x: Tensor) -> Tensor | None:
    if isinstance(factor, nn.Module):
        return None
    model, condition = factor
    given = model.labels.given(condition, 1, x.device).expand(len(x), -1)
    if not bool((given != MISSING).any()) or why_no_log_prob(model, given) is not None:
        return None
    return given_log_prob(model, x, given)
