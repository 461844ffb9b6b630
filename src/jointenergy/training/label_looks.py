"""training: comparison of the labels of samples with those of data, where a table holds no numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from jointenergy.data.training import TrainingData
from jointenergy.errors import plural
from jointenergy.labels import MISSING
from jointenergy.metrics.looks import FEWEST, REFERENCE, Looks, Space

KNOWN = 0.5  # share of rows that must have a label for it to be compared


def label_looks(
    data: TrainingData, n_rows: int, samples: Mapping[str, Tensor], *, generator: torch.Generator
) -> tuple[dict[str, Looks], str]:
    """Compare labels of samples `[n, L]`, by name, with the labels of rows; else return why they cannot be compared.

    Labels are compared as one-hot codes. Equal rows were merged and their weights added, so rows are repeated to make
    `n_rows` again. Rows that miss a label are left out, and so are labels that most rows miss.
    """
    known = data.y != MISSING
    share = known.double().mean(0)
    compared = share >= min(KNOWN, float(share.max()))
    weight = torch.ones(len(known), device=known.device) if data.weight is None else data.weight
    times = (weight * n_rows / len(known)).round().long() * known[:, compared].all(1)
    rows = torch.arange(len(known), device=known.device).repeat_interleave(times)
    order = torch.randperm(len(rows), generator=generator, device=generator.device)
    drawn = rows[order[:REFERENCE].to(rows.device)]
    if len(drawn) < FEWEST:
        few = plural(len(drawn), "row")
        return {}, f"samples cannot be compared with data: {few} without missing categories, but {FEWEST} are needed"
    names = [name for name, among in zip(data.labels, compared.tolist(), strict=True) if among]
    space = data.labels.subspace(names)

    def code(y: Tensor) -> Tensor:
        return space.one_hot(y[:, compared])

    shown = code(data.y[drawn])
    found = Space(shown, shown, unseen=True)
    if found.constant:
        return {}, "samples cannot be compared with data: all data rows are equal"
    return {name: found.looks(code(y)) for name, y in samples.items()}, ""
