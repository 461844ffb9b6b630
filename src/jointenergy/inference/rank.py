"""inference: is one labeling or another more compatible with this x."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.inference.rows import mixed_labels, pieces
from jointenergy.labels import MISSING, Given
from jointenergy.models import JointModel


@dataclass(frozen=True)
class Ranking:
    """`log_odds` is log p(first | x) - log p(second | x), `[n]`; `winner` is 0 or 1, MISSING where they are equal."""

    log_odds: Tensor
    winner: Tensor


@torch.no_grad()
def rank(model: JointModel, x: Tensor, first: Given, second: Given, given: Given = None) -> Ranking:
    """Which of two labelings goes better with x: the difference of their log-densities. Exact.

    Each may name some of the labels, as a mapping or a tensor with MISSING: those that it does not name, and that are
    not given, are summed out. A constant of the model cancels. Where each label has an unknown normalizer of its own
    it does not, and the labels that would be compared are refused.
    """
    x = model.check_x(x)
    fixed = model.labels.given(given, len(x), x.device)
    a, b = (mixed_labels(model, model.labels.given(y, len(x), x.device), fixed) for y in (first, second))
    # Complete labels need no sum, yet to compare them is to compare their normalizers.
    model.check_summable(torch.where(a == b, a, MISSING))
    f_a, f_b = (
        torch.cat([model.log_density_unchecked(x[piece], y[piece]) for piece in pieces(model, y)]) for y in (a, b)
    )
    log_odds = torch.where(f_a == f_b, 0.0, f_a - f_b)
    winner = torch.where(log_odds == 0, MISSING, (log_odds < 0).long())
    return Ranking(log_odds, winner)
