"""objectives: log-densities that the terms of an objective share, each computed once, exact or from draws."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import NamedTuple, final

import torch
from torch import Tensor

from jointenergy.labels import MISSING, constant
from jointenergy.models import JointModel, LabelLogits
from jointenergy.objectives.base import Batch, DrawName, Draws, Samples


def needs_draws(model: JointModel, name: DrawName, *, missing_labels: bool, masked_x: bool) -> bool:
    """Tell whether the log-sum over the free part of `name` has to be estimated from draws."""
    if name in ("given_x", "given_xy"):
        open_labels = missing_labels or name == "given_x"
        return masked_x or (open_labels and not model.can_sum())
    return True


class Evaluated(NamedTuple):
    """Log-densities of states, and a function that averages over all states or over those of each row."""

    log_density: Tensor
    mean: Callable[[Tensor], Tensor]


@final
class Values:
    """Evaluate a batch and its draws under a model, for all terms.

    `at(name)` has the gradient of the log-sum over the states that agree with what `name` gives. If the model can sum,
    it is the log-density with missing labels summed out; otherwise its gradient is the mean of the gradients at the
    draws. Rows without labels are used by no term for names in `labeled_only`: their labels are set to zero to skip the
    sum.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> from jointenergy.objectives import Batch, Draws, Values
    >>> model = je.LogitModel(torch.nn.Linear(3, 2), je.LabelSpace({"class": 2}))
    >>> values = Values(model, Batch(torch.zeros(4, 3), torch.zeros(4, 1, dtype=torch.int64)), Draws())
    >>> torch.equal(values.at("given_x").log_density, model.log_density(torch.zeros(4, 3)))
    True
    """

    def __init__(
        self, model: JointModel, batch: Batch, draws: Draws, labeled_only: Collection[DrawName] = frozenset()
    ) -> None:
        self.model, self.x, self.mask, self.draws = model, batch.x, batch.mask, draws
        self.complete, self.weight = batch.complete, batch.weight
        self.n = len(batch.x)
        self.y = self.labels_of(batch)
        self.labeled = (self.y != MISSING).any(1)
        self.labeled_only = labeled_only
        self._at: dict[DrawName, Evaluated] = {}

    @functools.cached_property
    def with_x(self) -> Tensor:
        """Rows with at least one observed entry of x."""
        return torch.ones_like(self.labeled) if self.mask is None else self.mask.flatten(1).any(1)

    def total(self, values: Tensor) -> Tensor:
        """Sum values `[n, ...]` with the rows' weights."""
        if self.weight is None:
            return values.sum()
        return (self.weight.to(values.dtype).view(-1, *(1,) * (values.ndim - 1)) * values).sum()

    def labels_of(self, states: Batch | Samples) -> Tensor:
        """Return the labels of states, MISSING where there are none."""
        if states.y is None:
            return self.model.labels.given(None, len(states.x), states.x.device)
        return states.y

    def exact(self, name: DrawName) -> bool:
        """Tell whether the model computes the sum at `name`. Without draws, a row's few missing labels are summed."""
        return not needs_draws(
            self.model, name, missing_labels=self.draws.given_xy is not None, masked_x=self.mask is not None
        )

    def states(self, name: DrawName) -> tuple[Tensor, Tensor]:
        """Return the states x, y at which the log-densities for `name` are evaluated."""
        if self.exact(name):
            x, y = self.x, self.y if name == "given_xy" else torch.full_like(self.y, MISSING)
        else:
            samples = self.samples(name)
            x, y = samples.x.detach(), self.labels_of(samples)
        if name in self.labeled_only:
            labeled = self.labeled if self.exact(name) else self.labeled[self.rows(name)]
            y = torch.where(labeled[:, None], y, y.clamp(min=0))
        return x, y

    def samples(self, name: DrawName) -> Samples:
        """Return the draws called `name`."""
        samples = getattr(self.draws, name)
        assert isinstance(samples, Samples)
        return samples

    def rows(self, name: DrawName) -> Tensor:
        """Return the row of the batch that each drawn state belongs to."""
        row = self.samples(name).row
        return torch.arange(self.n, device=self.x.device) if row is None else row

    def at(self, name: DrawName) -> Evaluated:
        """Return the log-densities for `name`, computed once."""
        if name not in self._at:
            self._at[name] = self._exact_at(name) if self.exact(name) else self._drawn_at(name)
        return self._at[name]

    def _exact_at(self, name: DrawName) -> Evaluated:
        if name == "given_x" and (self.complete or name not in self.labeled_only):
            return self.summed_out
        x, y = self.states(name)
        if self.model.factorized:
            value = self.closed.bias + self.log_sums(y).sum(1)
        elif self.complete and name == "given_xy":
            value = self.model.log_density_of_complete(x, y)
        else:
            value = self.model.log_density_unchecked(x, y)
        return Evaluated(value, _as_it_is)

    def _drawn_at(self, name: DrawName) -> Evaluated:
        samples = self.samples(name)
        if samples.y is None:
            value = self.model.log_density_of_x(samples.x.detach())
        else:
            of = self.model.log_density_of_complete if samples.complete else self.model.log_density_unchecked
            value = of(*self.states(name))
        by_row = functools.partial(samples.mean_by_row, n=self.n)
        return Evaluated(value, samples.mean if name == "negatives" else by_row)

    def alike(self, name: DrawName, negatives: DrawName) -> Evaluated:
        """Return the log-densities for `name`, with labels summed out if the negatives have none."""
        summed = name == "given_xy" and self.samples(negatives).y is None
        return self.summed_out if summed and self.exact(name) and self.model.can_sum() else self.at(name)

    @functools.cached_property
    def summed_out(self) -> Evaluated:
        """The log-densities of the batch with all labels summed out."""
        if not self.model.factorized:
            return Evaluated(self.model.log_density_of_x(self.x), _as_it_is)
        return Evaluated(self.closed.bias + self.all_log_sums.sum(1), _as_it_is)

    @functools.cached_property
    def closed(self) -> LabelLogits:
        """The closed form of a factorized model at the batch: one forward pass serves all terms."""
        return self.model.label_logits(self.x)

    @functools.cached_property
    def all_log_sums(self) -> Tensor:
        """The log-sum-exp of each label over all its values, `[n, L]`."""
        return self.log_sums(None)

    @functools.cached_property
    def mean_logits(self) -> Tensor:
        """The mean of each label's logits over its values, `[n, L]`."""
        blocks = self.closed.logits.split(self.model.labels.cardinalities, dim=1)
        return torch.stack([block.mean(1) for block in blocks], dim=1)

    def log_sums(self, y: Tensor | None) -> Tensor:
        """Return the log-sum-exp of each label over the values that y allows, `[n, L]`; over all without `y`."""
        labels, logits = self.model.labels, self.closed.logits
        if y is not None and self.complete:  # sums of one value each
            return logits.gather(1, y + constant(labels.offsets, y.device))
        open_logits = logits if y is None else logits.masked_fill(~labels.allowed(y), -torch.inf)
        if labels.shared_cardinality is not None:  # one operation for hundreds of labels
            return open_logits.view(self.n, -1, labels.shared_cardinality).logsumexp(2)
        blocks = open_logits.split(labels.cardinalities, dim=1) if len(labels) else ()
        return torch.stack([b.logsumexp(1) for b in blocks], dim=1) if blocks else open_logits


def _as_it_is(values: Tensor) -> Tensor:
    return values
