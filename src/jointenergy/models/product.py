"""models: products of models over the same x."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from jointenergy.errors import InputError
from jointenergy.labels import LabelSpace, constant
from jointenergy.models.base import JointModel, LabelLogits


class Product(JointModel):
    """Multiply densities over the same x: f(x, y) is the sum of the factors' log-densities.

    Label spaces are joined by name. A label that factors share is one variable.

    Parameters
    ----------
    factors
        Models of the same x.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> animal = je.LogitModel(torch.nn.Linear(2, 3), je.LabelSpace({"animal": 3}))
    >>> color = je.LogitModel(torch.nn.Linear(2, 4), je.LabelSpace({"color": 4}))
    >>> je.Product([animal, color]).labels
    LabelSpace({'animal': 3, 'color': 4})
    """

    def __init__(self, factors: Sequence[JointModel]) -> None:
        if not factors or not all(isinstance(f, JointModel) for f in factors):
            raise InputError("a product needs at least one factor, and each must be a JointModel")
        joined: dict[str, tuple[str, ...]] = {}
        for factor in factors:
            for name, values in zip(factor.labels.names, factor.labels.values, strict=True):
                if joined.setdefault(name, values) != values:
                    raise InputError(
                        f"the factors disagree on the values of label {name!r}: {joined[name]} and {values}; rename one"
                    )
        shapes = {f.event_shape for f in factors} - {None}
        if len(shapes) > 1:
            raise InputError(f"the factors have different shapes of x: {sorted(map(str, shapes))}")
        labels = LabelSpace(joined)
        super().__init__(
            labels,
            domain=functools.reduce(lambda a, b: a.intersect(b), (f.domain for f in factors)),
            event_shape=next(iter(shapes), None),
            normalizer="joint" if all(f.normalizer == "joint" for f in factors) else "conditional",
        )
        self.factors = nn.ModuleList(factors)
        self.factorized = all(f.factorized for f in factors)
        self._columns = [tuple(labels.index(name) for name in f.labels) for f in factors]
        self._codes = [
            tuple(labels.offsets[k] + value for k in columns for value in range(labels.cardinalities[k]))
            for columns in self._columns
        ]

    def conditional_columns(self) -> list[int]:
        """Return the labels of the conditional factors; those of joint factors alone may be summed."""
        parts = self._parts(self._columns, torch.device("cpu"))
        conditional = [(f, columns.tolist()) for f, columns in parts if f.normalizer == "conditional"]
        return sorted({columns[j] for f, columns in conditional for j in f.conditional_columns()})

    def blocks(self) -> list[tuple[JointModel, Tensor]]:
        """Group factors that share labels; other labels are summed separately."""
        groups: list[tuple[set[int], list[JointModel]]] = []
        for factor, places in self._parts(self._columns, torch.device("cpu")):
            for part, columns in factor.blocks():
                own, members = set(places[columns].tolist()), [part]
                meeting = [g for g in groups if g[0] & own]
                for g in meeting:
                    own, members = own | g[0], g[1] + members
                groups = [g for g in groups if not any(g is m for m in meeting)] + [(own, members)]
        if len(groups) == 1:
            return super().blocks()
        found = []
        for _, members in groups:
            block = members[0] if len(members) == 1 else Product(members)
            found.append((block, torch.tensor([self.labels.index(name) for name in block.labels], dtype=torch.int64)))
        return found

    def label_logits(self, x: Tensor) -> LabelLogits:
        """Add the closed forms of the factors: logits of a shared label add."""
        bias, logits = x.new_zeros(len(x)), x.new_zeros(len(x), self.labels.n_codes)
        for factor, codes in self._parts(self._codes, x.device):
            closed = factor.label_logits(x)
            bias = bias + closed.bias
            logits = logits.index_add(1, codes, closed.logits)
        return LabelLogits(bias, logits)

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        return _sum(f.log_density_of_codes(x, code[:, c]) for f, c in self._parts(self._codes, x.device))

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        return _sum(f.log_density_of_complete(x, y[:, c]) for f, c in self._parts(self._columns, x.device))

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        return _sum(f.log_density_of_states(x, states[:, :, c]) for f, c in self._parts(self._columns, x.device))

    def _parts(self, indices: list[tuple[int, ...]], device: torch.device) -> Iterator[tuple[JointModel, Tensor]]:
        """Yield each factor with the places of its labels in the joined space."""
        for factor, places in zip(self.factors, indices, strict=True):
            assert isinstance(factor, JointModel)
            yield factor, constant(places, device)


def _sum(terms: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, terms)
