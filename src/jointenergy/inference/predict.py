"""inference: predict labels: exactly by energy, by sampling, or by annealed search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from jointenergy.errors import EnumerationError, InputError
from jointenergy.inference.rows import LabelChains, label_chains, observed, pieces, row_keys
from jointenergy.inputs import check_count, check_positive
from jointenergy.kernels import GibbsWithGradients, Kernel, SingleSiteGibbs, State, Target, last, run
from jointenergy.labels import Given
from jointenergy.models import JointModel
from jointenergy.starts import XStart


@torch.no_grad()
def predict_proba(model: JointModel, x: Tensor, given: Given = None) -> dict[str, Tensor]:
    """Compute p(y_k | x, given) of each variable k, `[n, cardinality]`, exactly: in closed form or by enumeration."""
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    found = [model.label_probs(x[piece], y[piece]) for piece in pieces(model, y)]
    probs = {name: torch.cat([f[name] for f in found]) for name in model.labels}
    for p in probs.values():
        check_numbers(p.sum(1))
    return probs


def predict(model: JointModel, x: Tensor, given: Given = None) -> Tensor:
    """Predict the most probable value of each variable separately, `[n, L]`. Exact; the lowest value among ties.

    With several variables the values may be jointly improbable: `predict_joint` predicts all at once.
    """
    probs = predict_proba(model, x, given)
    if not probs:
        return torch.zeros(len(x), 0, dtype=torch.int64, device=x.device)
    return torch.stack([p.argmax(1) for p in probs.values()], dim=1)


@dataclass(frozen=True)
class JointPrediction:
    """The jointly most probable labels `[n, L]`, and log p(these labels | x, given), `[n]`. Exact."""

    labels: Tensor
    log_prob: Tensor


@torch.no_grad()
def predict_joint(model: JointModel, x: Tensor, given: Given = None) -> JointPrediction:
    """The labels with the largest p(y | x, given). Exact: by closed form or enumeration, refused where neither goes."""
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    model.check_summable(y)
    try:
        found = [_best(model, x[piece], y[piece]) for piece in pieces(model, y)]
    except EnumerationError as error:
        raise EnumerationError(
            f"{error}; inference.search looks for the best labels without enumerating them"
        ) from None
    labels, log_prob = (torch.cat(parts) for parts in zip(*found, strict=True))
    check_numbers(log_prob)
    return JointPrediction(labels, log_prob)


def _best(model: JointModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The best completions of y and their log-probabilities; blocks are independent, so each has a best of its own."""
    if model.factorized:
        logits = model.label_logits(x).logits.masked_fill(~model.labels.allowed(y), -torch.inf)
        blocks = logits.split(model.labels.cardinalities, dim=1) if len(model.labels) else ()
        log_probs = [b.log_softmax(1).max(1).values for b in blocks]
        return model.labels.from_one_hot(logits), sum(log_probs, x.new_zeros(len(x)))
    labels, log_prob = y.clone(), x.new_zeros(len(x))
    if len(model.labels) == 0:
        return labels, log_prob
    parts = model.blocks()
    if len(parts) > 1:
        for block, columns in parts:
            labels[:, columns], value = _best(block, x, y[:, columns])
            log_prob = log_prob + value
        return labels, log_prob
    for part in model.completions(x, y):
        value, place = part.log_density.log_softmax(1).max(1)
        labels[part.rows] = part.states[torch.arange(len(place), device=y.device), place]
        log_prob[part.rows] = value
    return labels, log_prob


def check_numbers(values: Tensor) -> None:
    """One sentence where a model's values are no numbers: the largest of them would be no prediction."""
    wrong = values.isnan().nonzero()[:, 0]
    if len(wrong):
        raise InputError(
            f"the model gives values that are no numbers for {len(wrong)} row(s), the first of them {int(wrong[0])}: "
            "its weights are damaged or too large, or x has the wrong scale"
        )


@dataclass(frozen=True)
class SampledPrediction:
    """A prediction by sampling: votes of the final states of `n_chains` chains a row, `steps` steps each.

    `labels` is the mode of the votes of each variable, `[n, L]`, the lowest value among equals. `shares` are the votes
    as fractions: sampled estimates of p(y_k | x, given), `[n, cardinality]`. `one_sample` is the final state of the
    first chain of each row: a draw from p(y | x, given), all variables together.
    """

    labels: Tensor
    shares: dict[str, Tensor]
    one_sample: Tensor
    n_chains: int
    steps: int


def predict_by_sampling(
    model: JointModel,
    x: Tensor,
    kernel: Kernel,
    *,
    n_chains: int = 10,
    steps: int = 200,
    generator: torch.Generator,
    given: Given = None,
    mask: Tensor | None = None,
    x_start: XStart | None = None,
) -> SampledPrediction:
    """Labels from a uniform start by a label kernel with x fixed; sampled, and no energies are compared.

    With a `mask`, True where x is observed, the kernel must be a BlockGibbs: what is not observed moves too, whatever x
    holds there is not looked at, and it starts by `x_start` (by default uniformly in the model's box, or from its
    Gaussian reference). Its x kernel should have temperature 1; another belongs to no common density.
    """
    x, mask = observed(x, mask)
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    check_count("the number of steps", steps, least=0)
    # Counts do not fit into half precision.
    dtype = torch.promote_types(x.dtype, torch.float32)
    votes = torch.zeros(len(x), model.labels.n_codes, device=x.device, dtype=dtype)
    one_sample = torch.empty_like(y)
    keys = row_keys(x, generator=generator)
    for chains in label_chains(model, x, kernel, n_chains=n_chains, keys=keys, given=y, mask=mask, x_start=x_start):
        final = last(kernel, chains.target, chains.state, steps).y
        votes.index_add_(0, chains.rows, model.labels.code_of(final, dtype))
        first = chains.numbers == 0
        one_sample[chains.rows[first]] = final[first]
    shares = (votes / n_chains).split(model.labels.cardinalities, dim=1)
    by_name = dict(zip(model.labels, shares, strict=True))
    return SampledPrediction(model.labels.from_one_hot(votes), by_name, one_sample, n_chains, steps)


@dataclass(frozen=True)
class Cooling:
    """Temperatures from `hot` to `cold` in `levels` equal ratios; they are in nats of the log-density."""

    hot: float = 10.0
    cold: float = 0.01
    levels: int = 20

    def __post_init__(self) -> None:
        check_positive(self, "hot", self.hot)
        check_positive(self, "cold", self.cold)
        check_count("levels", self.levels, least=2)
        if self.cold > self.hot:
            raise InputError(f"Cooling needs cold <= hot, got hot={self.hot}, cold={self.cold}")

    def temperatures(self) -> list[float]:
        ratio = self.cold / self.hot
        return [self.hot * ratio ** (i / (self.levels - 1)) for i in range(self.levels)]


@dataclass(frozen=True)
class Found:
    """The best labels that a search saw, `[n, L]`, and log p(x, labels) up to the model's constant, `[n]`."""

    labels: Tensor
    log_density: Tensor


def search(
    model: JointModel,
    x: Tensor,
    *,
    steps: int = 1000,
    restarts: int = 4,
    generator: torch.Generator,
    given: Given = None,
    schedule: Cooling | None = None,
    kernel: Kernel | None = None,
) -> Found:
    """Simulated annealing over y at fixed x, for labels too many to enumerate: the best state seen by any restart.

    Sampled: nothing says that no better labels exist. `steps` steps are spread over the temperatures of `schedule`.
    The kernel is GibbsWithGradients, or SingleSiteGibbs for a model without a value at real-valued codes.
    """
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    check_count("the number of steps", steps)
    check_count("the number of restarts", restarts)
    kernel = _search_kernel(model, x) if kernel is None else kernel
    keys = row_keys(x, generator=generator)
    found = [
        _annealed(model, kernel, chains, steps, Cooling() if schedule is None else schedule)
        for chains in label_chains(model, x, kernel, n_chains=restarts, keys=keys, given=y)
    ]
    labels, values = (torch.cat(parts) for parts in zip(*found, strict=True))
    value, which = values.view(len(x), restarts).max(1)
    return Found(labels.view(len(x), restarts, -1)[torch.arange(len(x), device=x.device), which], value)


def _annealed(
    model: JointModel, kernel: Kernel, chains: LabelChains, steps: int, schedule: Cooling
) -> tuple[Tensor, Tensor]:
    """The best labels that each chain saw on its way down, its start among them, and their log-densities."""
    state = chains.state
    best, best_value = state.y, _values(model, state)
    levels = schedule.temperatures()
    ends = [steps * i // len(levels) for i in range(len(levels) + 1)]
    for temperature, (begin, end) in zip(levels, pairwise(ends), strict=True):
        target = Target(model.tempered(1.0 / temperature), given_y=chains.target.given_y)
        for later, _ in run(kernel, target, state, end - begin):
            state = later
            value = _values(model, state)
            better = value > best_value
            best = torch.where(better[:, None], state.y, best)
            best_value = torch.where(better, value, best_value)
        # What the state knew of the density held for this temperature.
        state = replace(state, evaluation=None)
    return best, best_value


@torch.no_grad()
def _values(model: JointModel, state: State) -> Tensor:
    # A value that is no number is no better than any.
    return model.log_density_of_complete(state.x, state.y).nan_to_num(-torch.inf, torch.inf, -torch.inf)


def _search_kernel(model: JointModel, x: Tensor) -> Kernel:
    try:
        GibbsWithGradients().check_start(Target(model), x[:1])
    except InputError:
        return SingleSiteGibbs()
    return GibbsWithGradients()
