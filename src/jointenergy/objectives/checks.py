"""objectives: checks of batches and draws, before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.labels import MISSING
from jointenergy.models import JointModel
from jointenergy.objectives.base import Batch, DrawName, Draws, Samples
from jointenergy.objectives.values import Values

if TYPE_CHECKING:
    from jointenergy.objectives.objective import Term

MEANINGS: dict[DrawName, str] = {
    "negatives": "joint states of the model",
    "given_x": "states drawn given the observed x of each row",
    "given_y": "states drawn given the observed labels of each row",
    "given_xy": "the rows completed given all that is observed of them",
    "last_step": "chains with their last Langevin step recomputed",
    "neighbors": "other samples of x to measure distances to",
}


def checked_batch(model: JointModel, batch: Batch) -> Batch:
    """Check a batch; return it with labels `[n, L]` and a mask of the shape of x."""
    x, mask = batch.x, batch.mask
    if mask is not None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise InputError("the batch's mask must be a boolean tensor, True where x is observed")
        if tuple(mask.shape) not in (tuple(x.shape), tuple(x.shape[1:])):
            raise InputError(
                f"the batch's mask must have the shape of x or of one row of it, {tuple(x.shape)}, "
                f"got {tuple(mask.shape)}"
            )
        mask = mask.expand_as(x)
        x = x.masked_fill(~mask, 0.0)
    model.check_x(x)
    y = model.labels.given(batch.y, len(x), x.device)
    if batch.complete and bool((y == MISSING).any()):
        raise InputError("the batch says complete=True and has missing labels: leave out `complete`")
    weight = batch.weight
    if weight is not None and (weight.shape != x.shape[:1] or not bool((weight.isfinite() & (weight >= 0)).all())):
        raise InputError(f"the batch's weights must be {len(x)} finite numbers, none of them negative")
    return Batch(x, y, mask, batch.complete, weight)


def checked_draws(model: JointModel, draws: Draws) -> Draws:
    """Check draws; return them with labels `[m, L]`."""

    def checked(name: DrawName) -> Samples | None:
        samples = getattr(draws, name)
        if samples is None:
            return None
        if not isinstance(samples, Samples):
            raise InputError(f"draws.{name} must be Samples(x, y), got {type(samples).__name__}")
        x, weight, row = model.check_x(samples.x), samples.weight, samples.row
        if weight is not None and (
            weight.shape != x.shape[:1] or not bool((weight.isfinite() & (weight >= 0)).all() & (weight.sum() > 0))
        ):
            raise InputError(
                f"the weights of draws.{name} must be {len(x)} finite numbers, none negative and not all zero"
            )
        if row is not None and (row.shape != x.shape[:1] or row.dtype != torch.int64):
            raise InputError(f"the rows of draws.{name} must be torch.int64, one for each of its {len(x)} states")
        y = model.labels.given(samples.y, len(x), x.device)
        if samples.complete and bool((y == MISSING).any()):
            raise InputError(f"draws.{name} say complete=True and have missing labels: leave out `complete`")
        if name == "negatives" and bool((y == MISSING).all()):
            return replace(samples, y=None)  # None means that all labels are missing, without a search for them
        return replace(samples, y=y)

    return Draws(
        negatives=checked("negatives"),
        given_x=checked("given_x"),
        given_y=checked("given_y"),
        given_xy=checked("given_xy"),
        last_step=checked("last_step"),
        neighbors=draws.neighbors,
    )


def check_draws(term: Term, values: Values) -> None:
    """Check that the draws a term needs are there and fit the batch, and that a conditional model is not summed."""
    model, y = values.model, values.y
    if model.normalizer == "conditional" and {"negatives", "given_x"} & set(term.draws):
        model.check_summable(torch.full_like(y, MISSING))
    used = torch.where(values.labeled[:, None], y, 0) if term.labeled_only else y
    missing = not model.can_sum(used)
    for name in sorted(term.needs(model, missing_labels=missing, masked_x=values.mask is not None)):
        if getattr(values.draws, name) is None:
            raise InputError(f"the term {term.name!r} needs draws.{name}: {MEANINGS[name]}")
    for name in term.draws:
        if name in ("given_x", "given_y", "given_xy"):
            if not values.exact(name):
                _check_aligned(name, values)
            model.check_summable(values.states(name)[1])
        elif name == "negatives" and values.samples(name).row is not None:
            raise InputError("draws.negatives do not belong to rows of the batch: leave out their `row`")


def _check_aligned(name: DrawName, values: Values) -> None:
    """Check that each row of the batch has states, and that these hold the row's given values."""
    samples, row = values.samples(name), values.rows(name)
    if samples.row is None and len(samples.x) != values.n:
        raise InputError(
            f"draws.{name} has {len(samples.x)} states where the batch has {values.n} rows: give one state for each "
            "row, or the `row` of each state"
        )
    if samples.row is not None and not torch.equal(row.unique(), torch.arange(values.n, device=row.device)):
        raise InputError(f"the rows of draws.{name} must name each of the batch's {values.n} rows, and no others")
    if samples.weight is not None:
        total = samples.weight.new_zeros(values.n).index_add(0, row, samples.weight)
        if not (total > 0).all():
            raise InputError(f"the weights of draws.{name} are all zero in row {int((total <= 0).nonzero()[0])}")
    wrong = torch.zeros_like(row, dtype=torch.bool)
    if name != "given_x":
        y = values.y[row]
        wrong |= ((y != MISSING) & (values.labels_of(samples) != y)).any(1)
    if name != "given_y":
        differs = samples.x != values.x[row]
        wrong |= (differs if values.mask is None else differs & values.mask[row]).flatten(1).any(1)
    if wrong.any():
        first = int(row[wrong.nonzero()[0, 0]])
        raise InputError(
            f"draws.{name} differ from the observed values of row {first} of the batch: draw them row by row, with "
            "the observed values held fixed"
        )
