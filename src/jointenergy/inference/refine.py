"""inference: a few chain steps from the input before it is classified (JEM-1, JEM-10), with a gradient on request."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_memory
from jointenergy.kernels import Langevin, State, Target, last
from jointenergy.kernels.base import Evaluation, gradient_of, known_of, log_density_at
from jointenergy.labels import MISSING, Given
from jointenergy.models import JointModel


@dataclass(frozen=True, eq=False)
class Refined:
    """Refined inputs of each noise draw, and label probabilities in expectation over the draws."""

    x: Tensor  # [n_draws, n, *event]
    log_probs: dict[str, Tensor]
    """log of the mean over draws of p(y_k | refined x), `[n, cardinality]` for each label."""

    @property
    def probs(self) -> dict[str, Tensor]:
        return {name: value.exp() for name, value in self.log_probs.items()}


def refine(
    model: JointModel,
    x: Tensor,
    *,
    kernel: Langevin,
    steps: int,
    given: Given = None,
    n_draws: int = 1,
    differentiable: bool = False,
    keys: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Refined:
    """`steps` Langevin steps on log p(x, given) from each input, then p(y | x) where they lead.

    The noise comes from a generator, or from `keys` (int64 `[n]`): the same keys give the same noise, with and without
    `differentiable`, and whatever rows stand beside. `differentiable` leaves a graph from the result to x and to the
    weights, through every step: what an attack that knows the defense needs. Memory then grows with the steps.
    """
    if not isinstance(kernel, Langevin):
        raise InputError(f"refinement takes Langevin steps, got {type(kernel).__name__}")
    check_count("the number of steps", steps, least=0)
    check_count("n_draws", n_draws)
    if differentiable and torch.is_inference_mode_enabled():
        raise InputError("a differentiable refinement cannot run in inference mode")
    model.check_x(x)
    n = len(x)
    check_memory(n * n_draws, tuple(x.shape[1:]))
    labels = model.labels.given(given, n, x.device)
    model.check_summable(labels)
    chain_keys = torch.cat(streams.split(_keys(n, keys, generator).to(x.device), n_draws))
    rows = x.repeat(n_draws, *(1,) * (x.ndim - 1))
    y = labels.repeat(n_draws, 1)
    target = Target(model, given_y=y)
    state = State(rows, y, chain_keys, known=known_of(y))
    if differentiable:
        with torch.enable_grad():
            end = _differentiable(kernel, target, state, steps)
            log_probs = _log_probs(model, end, y, n_draws)
    else:
        with torch.no_grad():
            end = last(kernel, target, replace(state, x=rows.detach()), steps).x
            log_probs = _log_probs(model, end, y, n_draws)
    return Refined(end.view(n_draws, *x.shape), log_probs)


def _differentiable(kernel: Langevin, target: Target, state: State, steps: int) -> Tensor:
    """The kernel's own steps, each handed a gradient that has a graph: `Langevin.recompute` would cut it at x."""
    for _ in range(steps):
        x = state.x if state.x.requires_grad else state.x.clone().requires_grad_()
        value = log_density_at(target, x, state.y, state.known)
        gradient = target.moving(gradient_of(value, x, create_graph=True))
        state, _ = kernel.step(target, replace(state, x=x, evaluation=Evaluation("x", value, gradient)))
    return state.x


def _keys(n: int, keys: Tensor | None, generator: torch.Generator | None) -> Tensor:
    if (keys is None) == (generator is None):
        raise InputError("refinement needs either keys or a generator, not both and not none")
    if generator is not None:
        return streams.chain_keys(n, generator=generator)
    assert keys is not None
    if not isinstance(keys, Tensor) or keys.shape != (n,) or keys.dtype != torch.int64:
        raise InputError(f"keys must be an int64 tensor of shape ({n},), one for each row of x")
    return keys


def _log_probs(model: JointModel, x: Tensor, y: Tensor, n_draws: int) -> dict[str, Tensor]:
    """In logarithms throughout: a probability that has rounded to 0 would have no gradient."""
    labels, found = model.labels, {}
    if model.factorized:
        logits = model.label_logits(x).logits.masked_fill(~labels.allowed(y), -torch.inf)
        blocks = [b.log_softmax(1) for b in logits.split(labels.cardinalities, dim=1)] if len(labels) else []
    else:
        total = model.log_density_unchecked(x, y)
        blocks = [torch.stack([_at(model, x, y, k, v, total) for v in range(c)], 1) for k, c in _sizes(model)]
    for name, block in zip(labels, blocks, strict=True):
        found[name] = block.view(n_draws, -1, block.shape[1]).logsumexp(0) - math.log(n_draws)
    return found


def _sizes(model: JointModel) -> list[tuple[int, int]]:
    return list(enumerate(model.labels.cardinalities))


def _at(model: JointModel, x: Tensor, y: Tensor, variable: int, value: int, total: Tensor) -> Tensor:
    """log p(variable = value | x, y), minus infinity where y gives it another value."""
    own = y[:, variable]
    asked = y.clone()
    asked[:, variable] = torch.where(own == MISSING, value, own)
    log_prob = model.log_density_unchecked(x, asked) - total
    return log_prob.masked_fill((own != MISSING) & (own != value), -torch.inf)
