"""metrics: patterns of labels (single values and pairs) and how many rows have them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jointenergy.labels import MISSING, LabelSpace

PIECE = 4096  # rows encoded at once


def counts_of_pairs(y: Tensor, labels: LabelSpace) -> Tensor:
    """Count the rows with each pair of values, `[n_codes, n_codes]`; missing labels do not count."""
    total = torch.zeros(labels.n_codes, labels.n_codes, dtype=torch.float64, device=y.device)
    for rows in y.split(PIECE):
        code = labels.code_of(rows.clamp(min=0), torch.float64)
        known = (rows != MISSING).repeat_interleave(torch.tensor(labels.cardinalities, device=y.device), dim=1)
        code = code * known
        total += code.T @ code
    return total.long()


def singles(labels: LabelSpace) -> Tensor:
    """Return a pattern for each value of each label, `[n_codes, L]`."""
    patterns = torch.full((labels.n_codes, len(labels)), MISSING)
    for place, (k, value) in enumerate(zip(labels.variable_of_code, labels.value_of_code, strict=True)):
        patterns[place, k] = value
    return patterns


def pairs(labels: LabelSpace, y: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return pairs of values of two labels that occur in y, and pairs that do not though both values occur, `[P, L]`.

    Without y all pairs count as occurring.
    """
    one = singles(labels)
    counts = torch.ones(labels.n_codes, labels.n_codes) if y is None else counts_of_pairs(y, labels).cpu()
    seen: list[Tensor] = []
    novel: list[Tensor] = []
    for i in range(labels.n_codes):
        for j in range(i + 1, labels.n_codes):
            if labels.variable_of_code[i] == labels.variable_of_code[j] or not (counts[i, i] and counts[j, j]):
                continue
            (seen if counts[i, j] else novel).append(torch.maximum(one[i], one[j]))
    return _stacked(seen, labels), _stacked(novel, labels)


def named(labels: LabelSpace, pattern: Tensor) -> str:
    """Describe a pattern in words, such as `shape round, size big`."""
    return ", ".join(f"{name} {value}" for name, value in labels.decode(pattern[None])[0].items())


def agreement(found: Tensor, asked: Tensor) -> Tensor:
    """Return whether each row has all labels asked for, MISSING meaning any."""
    return ((asked == MISSING) | (found.to(asked.device) == asked)).all(1)


def share_with(found: Tensor, patterns: Tensor) -> Tensor:
    """Return the fraction of rows that have each pattern, `[P]`."""
    return torch.stack([agreement(found, p[None].to(found.device)).double().mean() for p in patterns])


def _stacked(patterns: Sequence[Tensor], labels: LabelSpace) -> Tensor:
    return torch.stack(list(patterns)) if patterns else torch.empty(0, len(labels), dtype=torch.int64)
