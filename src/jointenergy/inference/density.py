"""inference: the conditional distribution of any chosen labels given x and any others, exact or estimated by draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import EnumerationError, InputError
from jointenergy.inference.rows import label_chains, mixed_labels, observed, pieces, row_keys
from jointenergy.inputs import check_count
from jointenergy.kernels import Kernel, SingleSiteGibbs, last
from jointenergy.labels import ENUMERATION_LIMIT, MISSING, Given, constant
from jointenergy.models import JointModel
from jointenergy.starts import XStart


@torch.no_grad()
def label_log_prob(model: JointModel, x: Tensor, y: Given, given: Given = None) -> Tensor:
    """log p(the labels that y names | x, the labels given), `[n]`; labels in neither are summed out. Exact."""
    x = model.check_x(x)
    fixed = model.labels.given(given, len(x), x.device)
    asked = model.labels.given(y, len(x), x.device)
    mixed_labels(model, asked, fixed)
    model.check_summable(fixed)
    found = [model.label_log_prob(x[p], asked[p], fixed[p]) for p in pieces(model, fixed)]
    # A difference of two log-densities: rounding may lift it above 0, which no probability is.
    return torch.cat(found).clamp(max=0.0)


@torch.no_grad()
def label_table(model: JointModel, x: Tensor, names: Sequence[str] | None = None, given: Given = None) -> Tensor:
    """p(the chosen labels | x, the labels given), all together, `[n, *their cardinalities]` in the order of `names`.

    Exact: by closed form or enumeration. None chooses all labels; those neither chosen nor given are summed out.
    """
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    columns = chosen_columns(model, names)
    model.check_summable(y)
    return torch.cat([log_table(model, x[p], y[p], columns).exp() for p in pieces(model, y)])


def chosen_columns(model: JointModel, names: Sequence[str] | None) -> list[int]:
    """The columns of the chosen labels, or one sentence where a table of them makes no sense."""
    if isinstance(names, str):
        raise InputError(f"the chosen labels are a list of names, got the string {names!r}")
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
    """The log-probabilities of all values of the variables in `columns` given x and y, `[n, *cardinalities]`."""
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
    """The table of rows that miss the same labels, from the log-probabilities of all their completions."""
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
    """The table of independent variables: sums of log-probabilities, in the order of the tables."""
    whole = x.new_zeros(len(x), 1)
    for table in tables:
        whole = (whole[:, :, None] + table.reshape(len(x), 1, -1)).flatten(1)
    return whole.view(len(x), *(size for table in tables for size in table.shape[1:]))


@dataclass(frozen=True)
class EstimatedTable:
    """Estimated, not exact: the shares of the final states of `n_chains` independent chains a row, `steps` steps each.

    `standard_error` is that of the shares, and does not know whether the chains have arrived. It is computed from
    (count + 1/2) / (n_chains + 1), so that a value that no chain has shown is not taken for impossible.
    """

    probs: Tensor
    standard_error: Tensor
    n_chains: int
    steps: int


def estimate_table(
    model: JointModel,
    x: Tensor,
    kernel: Kernel,
    names: Sequence[str] | None = None,
    *,
    n_chains: int = 100,
    steps: int = 200,
    generator: torch.Generator,
    given: Given = None,
    mask: Tensor | None = None,
    x_start: XStart | None = None,
) -> EstimatedTable:
    """`label_table` where the labels are beyond enumeration, or x is observed in part (see `predict_by_sampling`)."""
    x, mask = observed(x, mask)
    x = model.check_x(x)
    y = model.labels.given(given, len(x), x.device)
    columns = chosen_columns(model, names)
    check_count("the number of steps", steps, least=0)
    sizes = [model.labels.cardinalities[k] for k in columns]
    # Counts do not fit into half precision.
    dtype = torch.promote_types(x.dtype, torch.float32)
    counts = torch.zeros(len(x), math.prod(sizes), device=x.device, dtype=dtype)
    keys = row_keys(x, generator=generator)
    for chains in label_chains(model, x, kernel, n_chains=n_chains, keys=keys, given=y, mask=mask, x_start=x_start):
        final = last(kernel, chains.target, chains.state, steps).y
        place = torch.zeros_like(chains.rows)
        for k, size in zip(columns, sizes, strict=True):
            place = place * size + final[:, k]
        counts.index_put_((chains.rows, place), counts.new_ones(len(place)), accumulate=True)
    smooth = (counts + 0.5) / (n_chains + 1)
    error = (smooth * (1 - smooth) / n_chains).sqrt()
    shape = (len(x), *sizes)
    return EstimatedTable((counts / n_chains).view(shape), error.view(shape), n_chains, steps)


@dataclass(frozen=True)
class EstimatedLogProb:
    """Estimated, not exact: log p(labels | x, given) `[n]` and the standard error of that log, first order.

    The log of a mean lies low by about half the square of its error. Neither knows whether the chains have arrived.
    """

    log_prob: Tensor
    standard_error: Tensor
    n_chains: int
    steps: int


def estimate_log_prob(
    model: JointModel,
    x: Tensor,
    y: Given,
    kernel: Kernel,
    *,
    n_chains: int = 100,
    steps: int = 200,
    generator: torch.Generator,
    given: Given = None,
    mask: Tensor | None = None,
    x_start: XStart | None = None,
) -> EstimatedLogProb:
    """`label_log_prob` where labels are beyond enumeration: the chain rule, one variable that y names after the other.

    p(y_k | the earlier ones, x, given) is the mean over final states of p(y_k | all the state's other labels, x), which
    is exact for each state: no draw must hit y. It takes one run of all chains for each variable that y names.
    """
    x, mask = observed(x, mask)
    x = model.check_x(x)
    known = model.labels.given(given, len(x), x.device)
    asked = model.labels.given(y, len(x), x.device)
    mixed_labels(model, asked, known)
    check_count("the number of steps", steps, least=0)
    check_count("the number of chains", n_chains, least=2)
    model.check_summable(known)
    # One key for each variable of a row: which others are asked for, in this row or another, must not matter.
    keys = streams.split(row_keys(x, generator=generator), len(model.labels))
    log_prob, variance = x.new_zeros(len(x)), x.new_zeros(len(x))
    for k in range(len(model.labels)):
        rows = ((asked[:, k] != MISSING) & (known[:, k] == MISSING)).nonzero()[:, 0]
        if len(rows) == 0:
            continue
        value, held = asked[rows, k], None if mask is None else mask[rows]
        log_probs = x.new_zeros(len(rows), n_chains)
        for chains in label_chains(
            model,
            x[rows],
            kernel,
            n_chains=n_chains,
            keys=keys[k][rows],
            given=known[rows],
            mask=held,
            x_start=x_start,
        ):
            final = last(kernel, chains.target, chains.state, steps)
            site = constant((k,), x.device).expand(len(final.y))
            with torch.no_grad():
                p = SingleSiteGibbs().value_logits(chains.target, final, site).log_softmax(1)
            log_probs[chains.rows, chains.numbers] = p.gather(1, value[chains.rows, None])[:, 0]
        # Relative to the largest, so that the improbable does not vanish.
        top = log_probs.max(1, keepdim=True).values
        relative = (log_probs - top).exp()
        log_prob[rows] += top[:, 0] + relative.mean(1).log()
        variance[rows] += relative.var(1) / n_chains / relative.mean(1) ** 2
        known = known.clone()
        known[rows, k] = value
    return EstimatedLogProb(log_prob, variance.sqrt(), n_chains, steps)
