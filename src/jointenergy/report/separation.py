"""report: how well a score tells rows of the data from other rows, and scores of rows that pass by in batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.report.sections import Rows
from jointenergy.runs import Run
from jointenergy.streams import seeded

Values = NDArray[np.float64]

AT_ONCE = 500  # rows of a batch


@dataclass(frozen=True)
class Separation:
    """How well a score tells rows of the data, which should have the larger ones, from others. NaN where it is none.

    `auroc` is the share of pairs in the right order, equals counting half. `aupr` is the average precision with the
    data as the positives and both sets counting alike, so that .5 is a guess at any sizes. `fpr95` is the share of the
    others that is accepted where at least 95 % of the data are.
    """

    auroc: float
    aupr: float
    fpr95: float


NOT_KNOWN = Separation(math.nan, math.nan, math.nan)


def separation(inside: Values, outside: Values) -> Separation:
    if not len(inside) or not len(outside) or not (np.isfinite(inside).all() and np.isfinite(outside).all()):
        return NOT_KNOWN
    truth = np.repeat((1, 0), (len(inside), len(outside)))
    scores = np.concatenate((inside, outside))
    weights = np.where(truth == 1, 1 / len(inside), 1 / len(outside))
    passed, accepted, _ = roc_curve(truth, scores, drop_intermediate=False)
    return Separation(
        float(roc_auc_score(truth, scores)),
        float(average_precision_score(truth, scores, sample_weight=weights)),
        float(passed[np.argmax(accepted >= 0.95 - 1e-12)]),
    )


class Asked(NamedTuple):
    """One score of one run, on rows as they are or with the data noise of the recipe."""

    who: str
    kind: str
    noised: bool


def scores_of(
    rows: Rows, runs: Mapping[str, Run], asked: Sequence[Asked], *, most: int | None, noise: float, seed: int
) -> dict[Asked, Values]:
    """Scores of the rows, which pass by in batches: of each only its numbers stay.

    Of sets with more than `most` rows every second, fourth, ... row is taken, so that all parts of the set have their
    share although nobody knows its length beforehand. Noise belongs to a row, whatever batch it is in.
    """
    kept: dict[Asked, list[Tensor]] = {a: [] for a in asked}
    generator = seeded(seed, "outside", "data noise", rows.name)
    step, seen, n = 1, 0, 0
    for batch in rows.batches(AT_ONCE):
        keys = streams.chain_keys(len(batch), generator=generator)
        taken = slice(-seen % step, None, step)
        seen += len(batch)
        x = batch[taken]
        if not len(x):
            continue
        noisy = x + noise * streams.normal_like(keys[taken].to(x.device), x) if noise else x
        for a in asked:
            kept[a].append(_score(runs[a.who], noisy if a.noised else x, a.kind))
        n += len(x)
        while most is not None and n > most:
            kept = {a: [torch.cat(values)[::2]] for a, values in kept.items()}
            step, n = 2 * step, -(-n // 2)
    return {a: torch.cat(values).numpy() if values else np.empty(0) for a, values in kept.items()}


def _score(run: Run, x: Tensor, kind: str) -> Tensor:
    try:
        return run.score(x, kind).double().cpu()
    except InputError:
        # No labels are the most probable where log p(x) is no number: that is a finding, and all else is a mistake.
        if not bool(run.score(x, "log_density").isnan().any()):
            raise
        return torch.full((len(x),), math.nan, dtype=torch.float64)
