"""objectives: the likelihood terms log p(x), log p(y | x), log p(x, y) and log p(x | y), for observed parts of rows."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.inputs import is_number
from jointenergy.labels import MISSING, LabelSpace, constant
from jointenergy.models import JointModel
from jointenergy.objectives.base import DrawName
from jointenergy.objectives.objective import Term
from jointenergy.objectives.values import Values, needs_draws

LabelWeights = tuple[tuple[float, ...], ...]
"""One weight for each value of each label variable."""


@dataclass(frozen=True)
class LikelihoodTerm(Term):
    """Base class of log-likelihoods: the log ratio of two sums over states.

        log sum over states that agree with `over`  -  log sum over states that agree with `under`

    `over` and `under` name what is given in each sum. The gradient is that of f at completed rows minus that at the
    negatives. No draws are needed for a sum that the model can compute.

    Parameters
    ----------
    weight
        The factor of the term.

    Examples
    --------
    >>> from jointenergy.objectives import LikelihoodTerm, LogPX
    >>> issubclass(LogPX, LikelihoodTerm), LogPX.over, LogPX.under
    (True, 'given_x', 'negatives')
    """

    over: ClassVar[DrawName]
    under: ClassVar[DrawName]
    maximized: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.draws = (cls.over, cls.under)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        return frozenset(
            d for d in self.draws if needs_draws(model, d, missing_labels=missing_labels, masked_x=masked_x)
        )

    @abstractmethod
    def applies(self, values: Values) -> Tensor:
        """Return the rows that the term applies to, bool `[n]`."""

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        over, under = values.at(self.over), values.at(self.under)
        gap = over.mean(over.log_density) - under.mean(under.log_density)
        return values.total(torch.where(self.applies(values), gap, 0.0)) / values.n


@final
@dataclass(frozen=True)
class LogPX(LikelihoodTerm):
    """Maximize log p(x) of every row. Labels are summed out even where they are known.

    Parameters
    ----------
    weight
        The factor of the term.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(3, 1), domain=je.Reals(1.0))
    >>> sorted(je.objectives.LogPX().needs(model))
    ['negatives']
    """

    name: ClassVar[str] = "log_p_x"
    over: ClassVar[DrawName] = "given_x"
    under: ClassVar[DrawName] = "negatives"

    def applies(self, values: Values) -> Tensor:
        return values.with_x


@final
@dataclass(frozen=True)
class LogPXY(LikelihoodTerm):
    """Maximize log p of everything observed: log p(x, y) of a labeled row, log p(x) of an unlabeled one.

    Parameters
    ----------
    weight
        The factor of the term.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.LogitModel(torch.nn.Linear(3, 2), je.LabelSpace({"class": 2}), domain=je.Reals(1.0))
    >>> sorted(je.objectives.LogPXY().needs(model, missing_labels=False))
    ['negatives']
    """

    name: ClassVar[str] = "log_p_xy"
    over: ClassVar[DrawName] = "given_xy"
    under: ClassVar[DrawName] = "negatives"

    def applies(self, values: Values) -> Tensor:
        return values.with_x | values.labeled


@final
@dataclass(frozen=True)
class LogPXGivenY(LikelihoodTerm):
    """Maximize log p(x | observed labels) of labeled rows; for a model without labels, log p(x).

    The negatives of each row are drawn given that row's labels.

    Parameters
    ----------
    weight
        The factor of the term.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.LogitModel(torch.nn.Linear(3, 2), je.LabelSpace({"class": 2}), domain=je.Reals(1.0))
    >>> sorted(je.objectives.LogPXGivenY().needs(model, missing_labels=False))
    ['given_y']
    """

    name: ClassVar[str] = "log_p_x_given_y"
    over: ClassVar[DrawName] = "given_xy"
    under: ClassVar[DrawName] = "given_y"
    labeled_only: ClassVar[bool] = True

    def applies(self, values: Values) -> Tensor:
        return values.with_x & values.labeled if len(values.model.labels) else values.with_x


@final
@dataclass(frozen=True)
class LogPYGivenX(LikelihoodTerm):
    """Maximize log p(observed labels | x) of labeled rows: minus the cross-entropy of a classifier.

    If the model cannot sum over labels, the negatives are labels drawn at the row's x. Label weights and smoothing need
    labels that are independent given x, and complete x.

    Parameters
    ----------
    weight
        The factor of the term.
    label_weights
        A weight for each value of each label; see `frequency_weights`.
    label_smoothing
        Replaces log p(y_k | x) by (1 - s) log p(y_k | x) + s times the mean of log p(v | x) over the values v.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.LogitModel(torch.nn.Linear(3, 2), je.LabelSpace({"class": 2}))
    >>> objective = je.objectives.Objective((je.objectives.LogPYGivenX(label_smoothing=0.1),))
    >>> objective(model, je.objectives.Batch(torch.zeros(4, 3), torch.tensor([0, 1, 1, 0]))).total.shape
    torch.Size([])
    """

    label_weights: LabelWeights | None = None
    label_smoothing: float = 0.0

    name: ClassVar[str] = "log_p_y_given_x"
    over: ClassVar[DrawName] = "given_xy"
    under: ClassVar[DrawName] = "given_x"
    labeled_only: ClassVar[bool] = True
    of_density: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (is_number(self.label_smoothing) and 0 <= self.label_smoothing < 1):
            raise InputError(f"label_smoothing must be at least 0 and less than 1, got {self.label_smoothing!r}")
        if self.label_weights is None:
            return
        weights: LabelWeights = tuple(tuple(float(w) for w in row) for row in self.label_weights)
        object.__setattr__(self, "label_weights", weights)
        if not all(math.isfinite(w) and w >= 0 for row in weights for w in row):
            raise InputError("label weights must be finite, zero or positive")

    def applies(self, values: Values) -> Tensor:
        return values.labeled

    def check(self, values: Values) -> None:
        if self.label_weights is None and not self.label_smoothing:
            return
        model = values.model
        if not model.factorized:
            raise InputError(
                "label weights and smoothing need labels that are independent given x, which those of "
                f"{type(model).__name__} are not: leave them out, or use a LogitModel"
            )
        if values.mask is not None:
            raise InputError("label weights and smoothing need complete x: leave them out for rows with masked x")
        if self.label_weights is None:
            return
        if tuple(len(w) for w in self.label_weights) != model.labels.cardinalities:
            raise InputError(
                f"label weights need {model.labels.cardinalities} values, one for each value of each label, got "
                f"{tuple(len(w) for w in self.label_weights)}"
            )

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        if not (values.model.factorized and len(values.model.labels) and values.mask is None):
            return super().value(values, terms)
        # Label by label, so that terms without y cancel before rounding.
        entries = values.log_sums(values.y) - values.all_log_sums
        if s := self.label_smoothing:
            even = values.mean_logits - values.all_log_sums
            entries = torch.where(values.y == MISSING, entries, (1 - s) * entries + s * even)
        if self.label_weights is not None:
            flat = tuple(w for row in self.label_weights for w in row)
            offsets = constant(values.model.labels.offsets, values.y.device)
            entries = entries * _weights(flat, entries.dtype, entries.device)[values.y.clamp(min=0) + offsets]
        return values.total(entries) / values.n


@final
@dataclass(frozen=True)
class LogPTargetsGivenRest(Term):
    """Maximize log p(targets | x, other labels), where the targets are the first `n_targets` labels.

    This is what a classifier of tables predicts: the other labels are discrete features. The sum over the targets is
    exact. If other labels or entries of x are missing, the term is the mean of log p(targets | completed row) over rows
    completed given everything observed. That mean is not the log-likelihood of the observed part.

    Parameters
    ----------
    weight
        The factor of the term.
    n_targets
        The number of target labels.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"species": 3, "island": 2})
    >>> model = je.PairModel(je.Concat(torch.nn.Linear(9, 1)), labels)
    >>> objective = je.objectives.Objective((je.objectives.LogPTargetsGivenRest(),))
    >>> objective(model, je.objectives.Batch(torch.zeros(4, 4), torch.zeros(4, 2, dtype=torch.int64))).total.shape
    torch.Size([])
    """

    n_targets: int = 1

    name: ClassVar[str] = "log_p_targets_given_rest"
    maximized: ClassVar[bool] = True
    of_density: ClassVar[bool] = False
    draws: ClassVar[tuple[DrawName, ...]] = ("given_xy",)

    def needs(self, model: JointModel, *, missing_labels: bool = True, masked_x: bool = False) -> frozenset[DrawName]:
        needed = needs_draws(model, "given_xy", missing_labels=missing_labels, masked_x=masked_x)
        return frozenset(self.draws if needed else ())

    def value(self, values: Values, terms: Sequence[Term]) -> Tensor:
        x, y = values.states("given_xy")
        samples = None if values.exact("given_xy") else values.samples("given_xy")
        observed = values.y[:, : self.n_targets]
        own = observed if samples is None else observed[values.rows("given_xy")]
        asked = torch.cat((own, y[:, self.n_targets :]), dim=1)
        gap = values.model.log_prob_of_first(x, asked, self.n_targets)
        gap = gap if samples is None else samples.mean_by_row(gap, values.n)
        return values.total(torch.where((observed != MISSING).any(1), gap, 0.0)) / values.n


def frequency_weights(y: Tensor, labels: LabelSpace) -> LabelWeights:
    """Compute label weights that balance rare and frequent values: inverse frequencies with mean 1 over the data.

    Parameters
    ----------
    y
        Labels of the training data, int64 `[n, L]`. Missing entries are left out.
    labels
        The label space. A value that never occurs gets weight 1.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"class": 2})
    >>> je.objectives.frequency_weights(torch.tensor([0, 0, 0, 1]), labels)
    ((0.6666666666666666, 2.0),)
    """
    y = labels.check(y)
    weights = []
    for k, cardinality in enumerate(labels.cardinalities):
        counts = torch.bincount(y[y[:, k] != MISSING, k], minlength=cardinality).tolist()
        mean = sum(counts) / max(sum(c > 0 for c in counts), 1)
        weights.append(tuple(mean / c if c else 1.0 for c in counts))
    return tuple(weights)


@functools.lru_cache(maxsize=64)
def _weights(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cache the tensor per device: a copy from the host in every step would stall a GPU."""
    return torch.tensor(values, dtype=dtype, device=device)
