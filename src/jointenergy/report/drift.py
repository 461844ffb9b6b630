"""report: what becomes of chains as they grow old: their energy, values at the bounds, and the class they show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.kernels import State
from jointenergy.labels import MISSING
from jointenergy.training.health import at_bounds

AGES = 25  # looks at the chains on their way
GROUPS = 4  # of persistent chains, from the youngest to the oldest


def ages_of(steps: int, also: tuple[int, ...] = (), n: int = AGES) -> tuple[int, ...]:
    """About n ages from 0 to `steps`, in equal ratios: most happens early; `also` are among them."""
    spread = {round(math.exp(math.log(max(steps, 1)) * i / (n - 2))) for i in range(n - 1)}
    return tuple(sorted({0, *(a for a in spread | set(also) if 0 <= a <= steps), steps}))


@dataclass(frozen=True, eq=False)
class Course:
    """Chains at some ages: energies `[ages, n]`, the share of values at the bounds, labels `[ages, n, L]`."""

    ages: tuple[int, ...]
    energy: Tensor
    at_bounds: tuple[float, ...]
    labels: Tensor | None


class Watch:
    """Looks at chains at some ages and keeps a few numbers of each: `run.sample(n, frames=watch)`."""

    def __init__(
        self,
        ages: tuple[int, ...],
        bounds: tuple[float, float],
        energy: Callable[[Tensor, Tensor], Tensor],
        labels: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.ages, self.bounds, self._energy, self._labels = ages, bounds, energy, labels
        self._seen: list[tuple[Tensor, float, Tensor | None]] = []

    def __call__(self, step: int, state: State) -> None:
        if step not in self.ages:
            return
        x = state.x.detach()
        labels = None if self._labels is None else self._labels(x).cpu()
        self._seen.append((self._energy(x, state.y).cpu(), float(at_bounds(x, self.bounds)), labels))

    def course(self) -> Course:
        """What was seen; all ages must have passed by."""
        if len(self._seen) != len(self.ages):
            raise InputError(f"the chains were seen at {len(self._seen)} of {len(self.ages)} ages: let them go on")
        labels = [seen[2] for seen in self._seen if seen[2] is not None]
        return Course(
            self.ages,
            torch.stack([seen[0] for seen in self._seen]),
            tuple(seen[1] for seen in self._seen),
            torch.stack(labels) if labels else None,
        )


def kept(labels: Tensor, since: int = 0) -> Tensor:
    """The share of chains' labels `[ages, n, L]` that are those of look number `since`, at it and all later looks."""
    return (labels[since:] == labels[since]).double().mean((1, 2))


def shares(labels: Tensor, n_values: int) -> Tensor:
    """How often each value occurs at each look, `[looks, n_values]`, of one label `[looks, n]`; MISSING is none."""
    counts = [torch.bincount(row[row != MISSING], minlength=n_values) / max(row.numel(), 1) for row in labels]
    return torch.stack(counts)


@dataclass(frozen=True, eq=False)
class AgeGroup:
    """Persistent chains of about one age, and how often each class is among them."""

    youngest: int
    oldest: int
    n: int
    shares: Tensor


def by_age(age: Tensor, labels: Tensor, n_values: int, n_groups: int = GROUPS) -> list[AgeGroup]:
    """Groups of equal size from the youngest to the oldest, each with its classes `[n]`."""
    order = age.argsort(stable=True)
    return [
        AgeGroup(int(age[rows].min()), int(age[rows].max()), len(rows), shares(labels[rows][None], n_values)[0])
        for rows in order.tensor_split(n_groups)
        if len(rows)
    ]


def apart(p: Tensor, q: Tensor) -> float:
    """The total variation distance of two shares: 0 where they are equal, 1 where they have nothing in common."""
    return float((p - q).abs().sum() / 2)


def apart_by_chance(p: Tensor, n: int) -> float:
    """What `apart` of two groups of n would be about, were the classes of both drawn with the shares p."""
    spread = (p * (1 - p) * 2 / n).sqrt()
    return float(spread.sum() / 2) * math.sqrt(2 / math.pi)
