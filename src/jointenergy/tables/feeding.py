"""tables: a table's rows as the trainer takes them: filled, shaped, weighed, some of them held out."""

from __future__ import annotations

import torch
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.labels import MISSING, LabelSpace

SMALL_SHARE = 200.0  # uniform noise that health is judged against fills that many times the data's own box


def data_of(
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    weight: Tensor,
    split: tuple[Tensor, Tensor],
    labels: LabelSpace,
    *,
    shape: tuple[int, ...],
    device: torch.device | str,
) -> TrainingData:
    """The rows of a `split`, held out and others. Health is judged on the held-out ones, or, where there are none, on
    the others."""
    held, rest = split
    judged = held if len(held) else rest

    def shaped(rows: Tensor) -> Tensor:
        return rows.float().view(len(rows), *shape).to(device)

    hidden = None if bool(mask[rest].all()) else mask[rest].view(-1, *shape).to(device)
    share = shares(weight[rest])
    return TrainingData(
        shaped(x[rest]),
        y[rest].to(device),
        shaped(x[judged]),
        y[judged].to(device),
        labels,
        hidden,
        None if share is None else share.float().to(device),
    )


def shares(weight: Tensor) -> Tensor | None:
    """How much each row counts, 1 on average; None where all count alike."""
    share = weight / weight.mean()
    return None if bool((share == 1).all()) else share


def most_frequent(y: Tensor, labels: LabelSpace) -> Tensor:
    """The value of each label that most rows have, `[L]`."""
    values = [
        torch.bincount(y[:, k][y[:, k] != MISSING], minlength=size).argmax()
        for k, size in enumerate(labels.cardinalities)
    ]
    return torch.stack(values) if values else y.new_zeros(0)


def bound_of(x: Tensor) -> float:
    """Bounds around the data so wide that uniform noise between them hardly ever looks like data."""
    n_features = x[0].numel()
    return float(x.abs().max().clamp(min=1.0)) * max(2.0, float(SMALL_SHARE ** (1 / n_features)))
