"""inference: exact nearest neighbors of samples in the data, in pixels or a named feature space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import check_count, check_x

Features = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Neighbors:
    """The nearest data rows of each sample, nearest first; among ties the earlier row."""

    index: Tensor  # [n, k]
    distance: Tensor  # [n, k], Euclidean
    space: str
    """The space of the distances."""


@torch.no_grad()
def neighbors(
    samples: Tensor,
    data: Tensor | Iterable[Tensor],
    *,
    k: int = 1,
    features: Features | None = None,
    space: str | None = None,
    piece: int = 1024,
) -> Neighbors:
    """Find the `k` nearest rows of the data, which are read once in pieces of at most `piece` rows.

    `features` maps a batch to features `[n, ...]` of the named `space`. Memory depends on one piece and the samples,
    not on the data. Distances are sums of squared differences, not products, to distinguish near copies.
    """
    check_x(samples)
    check_count("k", k)
    check_count("piece", piece)
    if (features is None) != (space is None):
        raise InputError("features and space must be given together: the map to features, and the name of their space")
    own = torch.cat([_features(p, features) for p in samples.split(piece)])
    index = torch.empty(len(own), 0, dtype=torch.int64, device=own.device)
    distance = own.new_empty(len(own), 0)
    seen = 0
    for batch in _batches(data, samples, piece):
        far = torch.cdist(own, _features(batch, features), compute_mode="donot_use_mm_for_euclid_dist")
        distance = torch.cat((distance, far), dim=1)
        rows = torch.arange(seen, seen + len(batch), device=own.device).expand(len(own), -1)
        index = torch.cat((index, rows), dim=1)
        seen += len(batch)
        distance, order = distance.sort(dim=1, stable=True)
        distance, index = distance[:, :k], index.gather(1, order)[:, :k]
    if seen < k:
        raise InputError(f"{k} neighbors were requested, but the data have {seen} row(s)")
    return Neighbors(index, distance, "pixels" if space is None else space)


def _batches(data: Tensor | Iterable[Tensor], samples: Tensor, piece: int) -> Iterator[Tensor]:
    for batch in [data] if isinstance(data, Tensor) else data:
        if not isinstance(batch, Tensor) or batch.shape[1:] != samples.shape[1:]:
            shape = tuple(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
            raise InputError(f"data must be tensors with rows of shape {tuple(samples.shape[1:])}, got {shape}")
        if not batch.is_floating_point():
            raise InputError(f"data must be floating point on the scale of the samples, got {batch.dtype}")
        for part in batch.split(piece):
            yield part.to(samples)


def _features(x: Tensor, features: Features | None) -> Tensor:
    value = x if features is None else features(x)
    if not isinstance(value, Tensor) or len(value) != len(x) or not value.is_floating_point():
        raise InputError("features must give a floating-point tensor with one row for each row of its input")
    value = value.flatten(1)
    # Half precision has no exact distance.
    return value if value.dtype == torch.float64 else value.float()
