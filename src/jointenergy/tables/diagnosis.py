"""tables: the warning of a fit that did not converge or is not healthy, with its likely cause."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from jointenergy.errors import plural
from jointenergy.tables.columns import Columns
from jointenergy.tables.training import FitResult, FitSettings

FEW_ITERATIONS = 100  # fewer iterations do not converge
FEW_ROWS = 50
SPIKE = 0.4  # share of rows with the same number, which no smooth density can fit
ALIKE = 0.999  # correlation of redundant columns
FAR = 10.0  # standard deviations from the mean


def warn_of_trouble(estimator: Any, result: FitResult, settings: FitSettings, x: Tensor) -> None:
    """Issue one ConvergenceWarning if the fit did not converge or is not healthy."""
    health, name = result.health, type(estimator).__name__
    short = result.n_iter < FEW_ITERATIONS and not result.stopped and estimator.max_iter is not None
    if not short and health.healthy and not result.diverged:
        return
    if health.healthy and not result.diverged:
        said = f"{name} made {plural(result.n_iter, 'iteration')}, which is too few to converge"
    else:
        what = health.complaints[0] if health.complaints else "its chains diverged"
        said = f"{name} is not healthy after {plural(result.n_iter, 'iteration')}: {what}"
        if result.diverged:
            said += ", and the last healthy weights are used"
    cause = likely_cause(estimator._columns, x, short=short)
    warnings.warn(
        f"{said}. Likely cause: {cause}. See health_ for details. Probabilities may still be good; do not "
        "rely on densities, draws and imputations",
        ConvergenceWarning,
        stacklevel=5,
    )


def likely_cause(columns: Columns, x: Tensor, *, short: bool) -> str:
    """Return the first known cause of bad fits that this table or these settings show."""
    if short:
        return "max_iter is small: leave it out, or raise it to a few hundred"
    names = [columns.called(k) for k in columns.numbers]
    for k, name in enumerate(names):
        known = x[:, k][~x[:, k].isnan()]
        values, counts = known.unique(return_counts=True)
        share = float(counts.max()) / max(len(known), 1)
        if share > SPIKE and len(values) > 1:
            value = columns.scaling.restored(values[counts.argmax()].repeat(len(names)).numpy())[k]
            return (
                f"{share:.0%} of column {name} are {value:g}, a spike that no density can fit; make it a category, or "
                "two columns (whether it is that value, and how much else)"
            )
    filled = x.nan_to_num(0.0)
    if len(names) > 1 and len(x) > 2:
        related = torch.corrcoef(filled.mT).abs().nan_to_num(0.0).fill_diagonal_(0.0)
        if float(related.max()) > ALIKE:
            a, b = divmod(int(related.argmax()), len(names))
            return f"columns {names[a]} and {names[b]} are nearly identical; drop one"
    if len(x) < FEW_ROWS:
        return f"there are only {plural(len(x), 'different row')}"
    if names:
        far = filled.abs().max(0).values
        if float(far.max()) > FAR:
            name = names[int(far.argmax())]
            return f"column {name} has values {float(far.max()):.0f} standard deviations away; check for wrong entries"
    few = [name for k, name in enumerate(names) if len(x[:, k][~x[:, k].isnan()].unique()) <= 5]
    if few:
        return f"column {few[0]} holds only a few distinct numbers; make it a category"
    if not names:
        return "max_iter is small for the categories of this table; double it"
    if len(x) < 10 * x.shape[1]:
        return f"{plural(x.shape[1], 'column')} of numbers are too many for {plural(len(x), 'row')}; select fewer"
    return "columns of numbers with gaps or edges in their distribution; raise max_iter"
