"""kernels: Gibbs sampling of groups of labels, for labels that exclude each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.kernels.base import Info, Kernel, State, Target
from jointenergy.labels import ENUMERATION_LIMIT, MISSING, LabelSpace


@dataclass(frozen=True)
class GroupGibbs(Kernel):
    """Draw one group of labels of each chain, chosen uniformly, from its conditional distribution.

    All states of the group are evaluated. Use it for labels that exclude each other, such as colors with one binary
    label each: single flips would have to pass through states of low probability.

    Parameters
    ----------
    groups
        Groups of label names. A label in no group is a group of its own.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace.binary(["red", "green", "round"])
    >>> model = je.PairModel(je.Concat(torch.nn.Linear(8, 1)), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.GroupGibbs(groups=(("red", "green"),))
    >>> state = kernel.init(target, torch.zeros(64, 2), generator=torch.Generator().manual_seed(0))
    >>> je.kernels.last(kernel, target, state, 20).y.shape
    torch.Size([64, 3])
    """

    groups: tuple[tuple[str, ...], ...] = ()

    moves_y: ClassVar[bool] = True

    def __post_init__(self) -> None:
        groups: Any = self.groups
        if not isinstance(groups, Sequence) or any(isinstance(g, str) or not isinstance(g, Sequence) for g in groups):
            raise InputError(f'groups must be groups of label names such as (("red", "green"),), got {groups!r}')
        object.__setattr__(self, "groups", tuple(tuple(g) for g in groups))
        names = [name for g in self.groups for name in g]
        if len(set(names)) < len(names) or not all(self.groups):
            raise InputError(f"each label belongs to one group, and no group is empty, got {self.groups}")

    def columns(self, labels: LabelSpace) -> list[list[int]]:
        """Return the columns of y of each group."""
        groups = [[labels.index(name) for name in g] for g in self.groups]
        grouped = {k for g in groups for k in g}
        return groups + [[k] for k in range(len(labels)) if k not in grouped]

    def check_start(self, target: Target, x: Tensor) -> None:
        labels = target.model.labels
        for columns in self.columns(labels):
            n_states = 1
            for k in columns:
                n_states *= labels.cardinalities[k]
            if n_states > ENUMERATION_LIMIT:
                names = ", ".join(labels.names[k] for k in columns)
                raise InputError(
                    f"the group {names} has {n_states:,} states, more than the {ENUMERATION_LIMIT:,} that are "
                    "enumerated: split it into smaller groups"
                )

    def group_logits(self, target: Target, state: State, columns: list[int]) -> tuple[Tensor, Tensor]:
        """Return all states of y that differ in the group, `[n, S, L]`, and their log-densities, -inf if forbidden."""
        values = target.model.labels.enumerate(columns, state.y.device)
        states = state.y[:, None, :].repeat(1, len(values), 1)
        states[:, :, columns] = values
        logits = target.model.log_density_of_states(state.x, states)
        given = target.open_labels(state.y)[:, None, columns]
        return states, logits.masked_fill(((given != MISSING) & (given != values)).any(2), -torch.inf)

    @torch.no_grad()
    def step(self, target: Target, state: State) -> tuple[State, Info]:
        keys, group_key, value_key = streams.split(state.keys, 3)
        groups = self.columns(target.model.labels)
        chosen = streams.categorical(group_key, state.x.new_zeros(len(state.x), len(groups)))
        y = state.y.clone()
        for g, columns in enumerate(groups):
            rows = (chosen == g).nonzero()[:, 0]
            if len(rows) == 0:
                continue
            part = state.rows(rows)
            here = target if target.given_y is None else Target(target.model, given_y=target.open_labels(state.y)[rows])
            states, logits = self.group_logits(here, part, columns)
            value = streams.categorical(value_key[rows], logits)
            y[rows] = states[torch.arange(len(rows), device=y.device), value]
        return replace(state, y=y, keys=keys, step=state.step + 1, evaluation=None), Info()
