"""inference: exact conditional distributions of any labels given x and other labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from jointenergy.errors import EnumerationError, InputError
from jointenergy.inference.rows import mixed_labels, pieces
from jointenergy.labels import ENUMERATION_LIMIT, MISSING, Given
from jointenergy.models import JointModel


@torch.no_grad()
def label_log_prob(model: JointModel, x: Tensor, y: Given, given: Given = None) -> Tensor:
    """Compute log p(labels in y | x, given), `[n]`, exactly; all other labels are summed out."""
    x = model.check_x(x)
    fixed = model.labels.given(given, len(x), x.device)
    asked = model.labels.given(y, len(x), x.device)
    mixed_labels(model, asked, fixed)
    model.check_summable(fixed)
    found = [model.label_log_prob(x[p], asked[p], fixed[p]) for p in pieces(model, fixed)]
    # A difference of two log-densities; clamp rounding errors above 0.
    return torch.cat(found).clamp(max=0.0)


@torch.no_grad()
def label_table(model: JointModel, x: Tensor, names: Sequence[str] | None = None, given: Given = None) -> Tensor:
    """Compute the joint p(chosen labels | x, given), `[n, *cardinalities]` in the order of `names`.

    Exact, in closed form or by enumeration. None chooses all labels; others that are not given are summed out.
    """
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    columns = chosen_columns(model, names)
    model.check_summable(y)
    return torch.cat([log_table(model, x[p], y[p], columns).exp() for p in pieces(model, y)])


def chosen_columns(model: JointModel, names: Sequence[str] | None) -> list[int]:
    """Return the columns of the chosen labels, refusing tables that are too large."""
    if isinstance(names, str):
        raise InputError(f"the chosen labels are a list of names, got the string {names!r}")
    if names is not None and not isinstance(names, Sequence):
        raise InputError(f"the chosen labels are a list of names, got {type(names).__name__}")
    chosen = list(model.labels) if names is None else list(names)
    columns = [model.labels.index(name) for name in chosen]
    if len(set(columns)) < len(columns):
        raise InputError(f"a label is chosen twice among {chosen}")
    size = math.prod(model.labels.cardinalities[k] for k in columns)
    if size > ENUMERATION_LIMIT:
        raise EnumerationError(
            f"a table of {len(columns)} label(s) has {size:,} entries, more than the {ENUMERATION_LIMIT:,} that are "
            "enumerated: choose fewer labels, or ask for the probability of single labelings"
        )
    return columns


def log_table(model: JointModel, x: Tensor, y: Tensor, columns: Sequence[int]) -> Tensor:
    """Compute log-probabilities of all values of the variables in `columns` given x and y, `[n, *cardinalities]`."""
    if model.factorized or not columns:
        closed = model.label_logits(x).logits.masked_fill(~model.labels.allowed(y), -torch.inf) if columns else None
        blocks = () if closed is None else closed.split(model.labels.cardinalities, dim=1)
        return _outer(x, [blocks[k].log_softmax(1) for k in columns])
    parts = model.blocks()
    if len(parts) > 1:
        tables, order = [], []
        for block, places in parts:
            inner = [j for j, k in enumerate(places.tolist()) if k in columns]
            tables.append(log_table(block, x, y[:, places], inner))
            order += [int(places[j]) for j in inner]
        return _outer(x, tables).permute(0, *(1 + order.index(k) for k in columns))
    sizes = [model.labels.cardinalities[k] for k in columns]
    table = x.new_empty(len(x), *sizes)
    for part in model.completions(x, y):
        table[part.rows] = _pattern_table(model, part.log_density.log_softmax(1), y[part.rows], columns)
    return table


def _pattern_table(model: JointModel, log_probs: Tensor, y: Tensor, columns: Sequence[int]) -> Tensor:
    """Build the table of rows with the same missing labels from the log-probabilities of all completions."""
    n, cardinalities = len(y), model.labels.cardinalities
    free = (y[0] == MISSING).nonzero()[:, 0].tolist()
    table = log_probs.view(n, *(cardinalities[k] for k in free))
    summed = [1 + i for i, k in enumerate(free) if k not in columns]
    if summed:
        table = table.logsumexp(summed)
    kept = [k for k in free if k in columns]
    # A chosen label that is given has all its mass on one value.
    for k in columns:
        if k not in kept:
            other = torch.arange(cardinalities[k], device=y.device) != y[:, k, None]
            shape = (n, *(1,) * len(kept), cardinalities[k])
            table = table[..., None].expand(*table.shape, cardinalities[k]).masked_fill(other.view(shape), -torch.inf)
            kept.append(k)
    return table.permute(0, *(1 + kept.index(k) for k in columns))


def _outer(x: Tensor, tables: Sequence[Tensor]) -> Tensor:
    """Combine independent variables: sums of log-probabilities, in the order of the tables."""
    whole = x.new_zeros(len(x), 1)
    for table in tables:
        whole = (whole[:, :, None] + table.reshape(len(x), 1, -1)).flatten(1)
    return whole.view(len(x), *(size for table in tables for size in table.shape[1:]))


def label_log_probs(model: JointModel, x: Tensor) -> list[Tensor]:
    """Compute log p(y_k | x) of each variable k, `[n, cardinality]`, in float64 to keep small probabilities."""
    y = model.labels.given(None, len(x), x.device)
    model.check_summable(y)
    if model.factorized:
        blocks = model.label_logits(model.check_x(x)).logits.double().split(model.labels.cardinalities, dim=1)
        return [b.log_softmax(1) for b in blocks]
    parts = model.blocks()
    if len(parts) > 1:
        found = {
            k: z for block, columns in parts for k, z in zip(columns.tolist(), label_log_probs(block, x), strict=True)
        }
        return [found[k] for k in range(len(model.labels))]
    n_labels = len(model.labels)
    if model.labels.n_states > ENUMERATION_LIMIT:
        model.labels.enumerate()  # says that they are too many, before memory is asked for all of them
    table = log_table(model, model.check_x(x), y, range(n_labels)).double()
    others = [[1 + j for j in range(n_labels) if j != k] for k in range(n_labels)]
    return [(table.logsumexp(o) if o else table).log_softmax(1) for o in others]
