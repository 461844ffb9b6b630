"""kernels: Gibbs sampling of labels, exact over all free labels at once or one label at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.inputs import graphs, ordinary
from jointenergy.kernels.base import Evaluation, Info, Kernel, State, Target, categorical_by_label, gradient_of
from jointenergy.labels import constant
from jointenergy.models import JointModel


@dataclass(frozen=True)
class ExactGibbs(Kernel):
    """Draw all free labels from p(y | x, given labels).

    Uses the closed form where labels are independent given x, and enumeration up to 4096 states otherwise.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"class": 3})
    >>> model = je.LogitModel(torch.nn.Linear(2, 3), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.ExactGibbs()
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> state, info = kernel.step(target, state)
    >>> state.y.shape
    torch.Size([64, 1])
    """

    moves_y: ClassVar[bool] = True

    def open_logits(self, target: Target, state: State) -> Tensor:
        """Return the logits of a factorized model, minus infinity where the given labels forbid a value."""
        return _open(target, state, target.model.label_logits(state.x).logits)

    @torch.no_grad()
    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, key = streams.split(state.keys, 2)
        model, seen = target.model, None
        if model.factorized and state.both and not target.offers:
            y, seen = self._with_x(target, state, key)
        elif model.factorized:
            y = categorical_by_label(model, key, self.open_logits(target, state))
        else:
            y, open_labels = state.y.clone(), target.open_labels(state.y)
            # Blocks are independent given x; each has its own key.
            blocks = model.blocks()
            for (block, columns), block_key in zip(blocks, streams.split(key, len(blocks)), strict=True):
                if len(columns) == 0:
                    continue
                y[:, columns] = _draw(block, state.x, open_labels[:, columns], block_key)
        return replace(state, y=y, keys=keys, step=state.step + 1, evaluation=seen), Info()

    def _with_x(self, target: Target, state: State, key: Tensor) -> tuple[Tensor, Evaluation]:
        """Draw labels and compute the gradient with respect to x in the same pass, for the kernel on x that follows."""
        model = target.model
        with graphs():
            x = ordinary(state.x).requires_grad_()
            closed = model.label_logits(x)
            logits = closed.logits.detach()
            y = categorical_by_label(model, key, _open(target, state, logits))
            value = closed.bias + (model.labels.code_of(y, x.dtype) * closed.logits).sum(1)
            by_x = target.moving(gradient_of(value, x))
        return y, Evaluation("code", value.detach(), logits, by_x)


@dataclass(frozen=True)
class SingleSiteGibbs(Kernel):
    """Draw one free label of each chain, chosen uniformly, from its conditional distribution.

    All values of that label are evaluated, so any model works.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace.binary(["smiling", "hat"])
    >>> model = je.PairModel(je.Concat(torch.nn.Linear(6, 1)), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.SingleSiteGibbs()
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).y.shape
    torch.Size([64, 2])
    """

    moves_y: ClassVar[bool] = True

    def site_logits(self, target: Target, state: State) -> Tensor:
        """Return logits of which label to redraw: uniform over the free ones, `[n, L]`."""
        free = target.free_labels(state.y).expand_as(state.y)
        return torch.zeros_like(free, dtype=state.x.dtype).masked_fill(~free, -torch.inf)

    def value_logits(self, target: Target, state: State, site: Tensor) -> Tensor:
        """Return the log-density at every value of each chain's chosen label, `[n, largest cardinality]`."""
        cardinality = constant(target.model.labels.cardinalities, state.y.device)[site]
        values = torch.arange(max(target.model.labels.cardinalities), device=state.y.device)
        states = state.y[:, None, :].repeat(1, len(values), 1)
        # Indices past the last value of a smaller label are evaluated at its last value, then masked.
        filled = torch.minimum(values[None, :], cardinality[:, None] - 1)
        states.scatter_(2, site[:, None, None].expand(-1, len(values), 1), filled[:, :, None])
        logits = target.model.log_density_of_states(state.x, states)
        return logits.masked_fill(values[None, :] >= cardinality[:, None], -torch.inf)

    @torch.no_grad()
    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, site_key, value_key = streams.split(state.keys, 3)
        site = streams.categorical(site_key, self.site_logits(target, state))
        value = streams.categorical(value_key, self.value_logits(target, state, site))
        y = target.hold_y(state.y.scatter(1, site[:, None], value[:, None]))
        return replace(state, y=y, keys=keys, step=state.step + 1, evaluation=None), Info()


def _open(target: Target, state: State, logits: Tensor) -> Tensor:
    """Mask logits with minus infinity where the given labels forbid a value."""
    if target.given_y is None:
        return logits
    return logits.masked_fill(~target.model.labels.allowed(target.open_labels(state.y)), -torch.inf)


def _draw(block: JointModel, x: Tensor, open_labels: Tensor, keys: Tensor) -> Tensor:
    """Draw the labels of one block given x, by closed form or enumeration."""
    if block.factorized:
        logits = block.label_logits(x).logits.masked_fill(~block.labels.allowed(open_labels), -torch.inf)
        return categorical_by_label(block, keys, logits)
    y = torch.empty_like(open_labels)
    for part in block.completions(x, open_labels):
        chosen = streams.categorical(keys[part.rows], part.log_density)
        y[part.rows] = part.states[torch.arange(len(chosen), device=y.device), chosen]
    return y
