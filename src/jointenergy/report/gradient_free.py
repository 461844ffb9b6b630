"""report: attacks that see decisions alone, foolbox's: they show whether gradients were only hidden from others.

It imports foolbox, which is an extra: import it where an attack is asked for.
"""

from __future__ import annotations

import torch
from foolbox.attacks.boundary_attack import BoundaryAttack
from foolbox.attacks.pointwise import PointwiseAttack
from torch import Tensor

from jointenergy.inference import predict, predict_proba
from jointenergy.labels import MISSING, constant
from jointenergy.report.attacks import Closest, changed, own_randomness
from jointenergy.report.defended import Defended


def boundary(closest: Closest, starts: Tensor, rows: Tensor, *, steps: int, generator: torch.Generator) -> None:
    """The boundary attack, which sees decisions alone, on rows that are wrong at their `starts`."""
    _walk_back(closest, BoundaryAttack(steps=steps), starts, rows, generator)


def pointwise(closest: Closest, starts: Tensor, rows: Tensor, *, generator: torch.Generator) -> None:
    """The pointwise attack, which sees decisions alone: entry after entry goes back from the start towards the row."""
    _walk_back(closest, PointwiseAttack(), starts, rows, generator)


def _walk_back(
    closest: Closest, attack: BoundaryAttack | PointwiseAttack, starts: Tensor, rows: Tensor, generator: torch.Generator
) -> None:
    if len(rows) == 0:
        return
    defended = closest.defended.rows(rows)
    with own_randomness(defended.x.device, generator):
        x = changed(defended, lambda model, right: attack.run(model, defended.x, right, starting_points=starts.clone()))
    closest.offer(rows, x)


def top_two_starts(defended: Defended, data: Tensor) -> tuple[Tensor, Tensor]:
    """For rows that are right, the nearest row of data that the classifier puts into their second class, as `x, rows`.

    The second class is the most probable wrong value of any label. Rows without such a neighbor take the nearest that
    would be wrong for them; those that have not even that are left out.
    """
    labels, y = defended.model.labels, defended.y
    probs = torch.cat(list(predict_proba(defended.model, defended.x).values()), dim=1)
    second = probs.masked_fill(labels.allowed(y), -1.0).argmax(1)
    variable, value = (constant(v, y.device)[second] for v in (labels.variable_of_code, labels.value_of_code))
    told = predict(defended.model, data)
    in_second = value[:, None] == told[:, variable].T
    other = ((told != y[:, None, :]) & (y[:, None, :] != MISSING)).any(2)
    far = torch.cdist(defended.x.flatten(1), data.flatten(1))
    # Those of the second class first: all others count as farther than the farthest of them.
    ranked = torch.where(in_second, far, far + far.max() + 1.0).masked_fill(~other, torch.inf)
    starts = data[ranked.argmin(1)]
    rows = (defended.wrong(starts) & ~defended.wrong(defended.x)).nonzero()[:, 0]
    return starts[rows], rows
