"""models: the base class of all models, `log_density(x, y)` with every missing label summed out."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from jointenergy import labels as label_room
from jointenergy.errors import DomainError, InputError, NormalizerError
from jointenergy.inputs import check_x
from jointenergy.labels import MISSING, Given, LabelSpace, constant
from jointenergy.models.domains import Domain, Reals

Normalizer = Literal["joint", "conditional"]

CHUNK = 1 << 16
"""The largest number of (row, state) pairs that an enumeration evaluates at once."""


@dataclass(frozen=True)
class LabelLogits:
    """The closed form of a model whose labels are independent given x.

        f(x, y) = bias(x) + sum over k of logits_k(x)[y_k]

    Parameters
    ----------
    bias
        `[n]`.
    logits
        The logits of all labels side by side, `[n, n_codes]`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.LogitModel(torch.nn.Linear(2, 3), je.LabelSpace({"class": 3}))
    >>> model.label_logits(torch.zeros(4, 2)).logits.shape
    torch.Size([4, 3])
    """

    bias: Tensor
    logits: Tensor


@dataclass(frozen=True)
class LabelCompletions:
    """All completions of rows that miss the same labels."""

    rows: Tensor
    states: Tensor
    log_density: Tensor


class JointModel(nn.Module, ABC):
    """Base class of models: an unnormalized log-density f(x, y) of data x and labels y.

    A subclass implements the first of these three functions that it can:

    - `label_logits`, if labels are independent given x; it then sets `factorized = True`;
    - `log_density_of_codes`, a function of real-valued one-hot codes;
    - `log_density_of_complete`, a function of label indices.

    Parameters
    ----------
    labels
        The label variables.
    domain
        `Box(low, high)` or `Reals(scale)`; by default R^D without a reference term.
    event_shape
        The shape of one row of x; None accepts any.
    normalizer
        "joint" if one constant normalizes p(x, y), "conditional" if each label has its own unknown constant.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> class Quadratic(je.JointModel):
    ...     def log_density_of_complete(self, x, y):
    ...         return -(x - y).square().sum(1) / 2
    >>> model = Quadratic(je.LabelSpace({"class": 2}))
    >>> model.log_density(torch.zeros(1, 1), torch.tensor([[1]]))
    tensor([-0.5000])
    >>> model.label_probs(torch.full((1, 1), 0.5))
    {'class': tensor([[0.5000, 0.5000]])}
    """

    factorized: bool = False
    """Whether labels are independent given x, so that `label_logits` gives every sum in closed form."""
    joins: bool = False
    """Whether `together` saves passes of the network."""

    def __init__(
        self,
        labels: LabelSpace,
        *,
        domain: Domain | None = None,
        event_shape: tuple[int, ...] | None = None,
        normalizer: Normalizer = "joint",
    ) -> None:
        super().__init__()
        if normalizer not in ("joint", "conditional"):
            raise InputError(f"normalizer must be 'joint' or 'conditional', got {normalizer!r}")
        self.labels = labels
        self.domain: Domain = Reals() if domain is None else domain
        self.event_shape = event_shape
        self.normalizer: Normalizer = normalizer

    # What a subclass implements.

    def label_logits(self, x: Tensor) -> LabelLogits:
        """Return the closed form; factorized models only."""
        raise InputError(f"{type(self).__name__} has no closed form: its labels are not independent given x")

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        """Return the log-density at real-valued codes `[n, n_codes]`; at one-hot codes it is that of the labels."""
        if not self.factorized:
            raise InputError(
                f"{type(self).__name__} has no gradient with respect to labels, because it takes no real-valued codes: "
                "sample its labels with ExactGibbs or SingleSiteGibbs"
            )
        closed = self.label_logits(x)
        return closed.bias + (code * closed.logits).sum(1)

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the log-density at complete labels, without checks."""
        return self.log_density_of_codes(x, self.labels.code_of(y, x.dtype))

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        """Return the log-density of each row of x at each of its states `[n, S, L]`, as `[n, S]`."""
        n, n_states = states.shape[:2]
        if self.factorized:
            closed = self.label_logits(x)
            places = states + constant(self.labels.offsets, states.device)
            return closed.bias[:, None] + closed.logits[:, None, :].expand(-1, n_states, -1).gather(2, places).sum(2)
        repeated = x.repeat_interleave(n_states, dim=0)
        return self.log_density_of_complete(repeated, states.reshape(n * n_states, -1)).view(n, n_states)

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """Return the log-density and its gradient with respect to x, computed without autograd.

        `y` are complete labels; None sums all labels out. Returns None if the network is not supported, and the caller
        then uses autograd. It saves time in chains of small networks.
        """
        return None

    def together(self, points: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Evaluate the network at all these points at once, for calls inside the context that ask for one of them.

        The points and the weights must not change inside. A model may ignore it.
        """
        return nullcontext()

    def log_prob_of_first(self, x: Tensor, y: Tensor, n: int) -> Tensor:
        """Return log p(the first n labels | x, the others); missing labels are summed out. No checks."""
        rest = torch.cat((torch.full_like(y[:, :n], MISSING), y[:, n:]), dim=1)
        return self.log_density_unchecked(x, y) - self.log_density_unchecked(x, rest)

    def blocks(self) -> list[tuple[JointModel, Tensor]]:
        """Return parts whose labels are independent given x, with the columns of each; their log-densities add up."""
        return [(self, torch.arange(len(self.labels)))]

    # What the base class derives.

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.log_density(x, y)

    def log_density(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Return log p(x, y) up to a constant of the model, `[n]`, with every MISSING label summed out.

        Parameters
        ----------
        x
            Data, `[n, *event]`.
        y
            Labels, int64 `[n, L]`; None means that all are missing.
        """
        x = self.check_x(x)
        y = self.labels.given(y, len(x), x.device)
        self.check_summable(y)
        return self.log_density_unchecked(x, y)

    def log_density_of_x(self, x: Tensor) -> Tensor:
        """Return log p(x) up to the model's constant, without checks."""
        if not self.factorized:
            return self._log_sum_of_states(x)
        closed, sizes = self.label_logits(x), self.labels.cardinalities
        if not sizes:
            return closed.bias
        if len(sizes) == 1:
            return closed.bias + closed.logits.logsumexp(1)
        blocks = closed.logits.split(sizes, dim=1)
        return closed.bias + torch.stack([b.logsumexp(1) for b in blocks]).sum(0)

    def _log_sum_of_states(self, x: Tensor) -> Tensor:
        """Sum out all labels by enumeration; every row has the same states."""
        if len(self.labels) == 0 or len(self.blocks()) > 1:
            return self.log_density_unchecked(x, self.labels.given(None, len(x), x.device))
        states = self.labels.enumerate(device=x.device).expand(len(x), -1, -1)
        return torch.cat([self.log_density_of_states(x, piece) for piece in self._pieces(states)], dim=1).logsumexp(1)

    @staticmethod
    def _pieces(states: Tensor) -> tuple[Tensor, ...]:
        """Split states `[n, S, L]` so that at most CHUNK are evaluated at once."""
        pieces: tuple[Tensor, ...] = states.split(max(1, CHUNK // max(1, len(states))), dim=1)
        return pieces

    def log_density_unchecked(self, x: Tensor, y: Tensor) -> Tensor:
        """Do the same as `log_density` for internal callers with checked inputs."""
        if self.factorized:
            closed = self.label_logits(x)
            return closed.bias + self._summed_out(closed.logits, y)
        if len(self.labels) == 0:
            return self.log_density_of_complete(x, y)
        blocks = self.blocks()
        if len(blocks) > 1:
            return torch.stack([b.log_density_unchecked(x, y[:, columns]) for b, columns in blocks]).sum(0)
        parts = list(self.completions(x, y))
        order = torch.cat([p.rows for p in parts]).argsort()
        return torch.cat([p.log_density.logsumexp(1) for p in parts])[order]

    def completions(self, x: Tensor, y: Tensor) -> Iterator[LabelCompletions]:
        """Group rows by which labels they miss, and yield each group with all its completions."""
        patterns, which = (y == MISSING).unique(dim=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            rows = (which == i).nonzero()[:, 0]
            free = pattern.nonzero()[:, 0]
            states = self.labels.completed(y[rows], free)
            values = torch.cat([self.log_density_of_states(x[rows], piece) for piece in self._pieces(states)], dim=1)
            yield LabelCompletions(rows, states, values)

    def label_log_prob(self, x: Tensor, y: Tensor, given: Given = None) -> Tensor:
        """Return log p(labels in y | x, given labels), `[n]`; labels in neither are summed out.

        Parameters
        ----------
        x
            Data, `[n, *event]`.
        y
            Labels to score, MISSING for those that are summed out.
        given
            Labels to condition on: a mapping, a tensor with MISSING, or None.
        """
        x = self.check_x(x)
        y = self.labels.check(y, len(x)).to(x.device)
        given = self.labels.given(given, len(x), x.device)
        both = (y != MISSING) & (given != MISSING) & (y != given)
        if both.any():
            row, column = (int(i) for i in both.nonzero()[0])
            raise InputError(
                f"row {row} asks for a value of {self.labels.names[column]!r} other than the one given: leave one out"
            )
        self.check_summable(given)
        joined = torch.where(y == MISSING, given, y)
        return self.log_density_unchecked(x, joined) - self.log_density_unchecked(x, given)

    def label_probs(self, x: Tensor, given: Given = None) -> dict[str, Tensor]:
        """Return p(y_k | x, given labels) for each variable k, `[n, cardinality]`, by name.

        Parameters
        ----------
        x
            Data, `[n, *event]`.
        given
            Labels to condition on: a mapping, a tensor with MISSING, or None.
        """
        x = self.check_x(x)
        y = self.labels.given(given, len(x), x.device)
        self.check_summable(y)
        if self.factorized:
            open_logits = self.label_logits(x).logits.masked_fill(~self.labels.allowed(y), -torch.inf)
            blocks = open_logits.split(self.labels.cardinalities, dim=1)
            return {name: b.softmax(1) for name, b in zip(self.labels, blocks, strict=True)}
        if len(self.labels) == 0:
            return {}
        blocks = self.blocks()
        if len(blocks) > 1:
            found = [b.label_probs(x, y[:, columns]) for b, columns in blocks]
            return {name: next(f[name] for f in found if name in f) for name in self.labels}
        probs = [x.new_zeros(len(x), c) for c in self.labels.cardinalities]
        for part in self.completions(x, y):
            weights = part.log_density.softmax(1)
            for k, p in enumerate(probs):
                block = p.new_zeros(len(part.rows), p.shape[1]).scatter_add(1, part.states[:, :, k], weights)
                probs[k] = probs[k].index_copy(0, part.rows, block)
        return dict(zip(self.labels, probs, strict=True))

    def log_likelihood(self, x: Tensor, y: Tensor | None = None, *, log_normalizer: Tensor | float) -> Tensor:
        """Return the normalized log-density in nats, from an estimate of log Z.

        Parameters
        ----------
        x
            Data, `[n, *event]`.
        y
            Labels, int64 `[n, L]`; None means that all are missing.
        log_normalizer
            An estimate of log Z: one number, or one per row for a conditional model.
        """
        if not self.domain.proper:
            raise DomainError(
                "a likelihood needs a domain on which the density has a normalizer: declare domain=Box(low, high), or "
                "domain=Reals(scale) for a Gaussian reference term"
            )
        x = self.check_x(x)
        log_z = torch.as_tensor(log_normalizer, dtype=x.dtype, device=x.device)
        if log_z.ndim > 1 or log_z.numel() not in (1, len(x)):
            raise InputError(f"log_normalizer must be one number or one per row, got shape {tuple(log_z.shape)}")
        value = self.log_density(x, y) - log_z
        return torch.where(self.domain.contains(x), value, -torch.inf)

    def with_offsets(self, offsets: Tensor | None = None, *, assume_equal_constants: bool = False) -> JointModel:
        """Turn a conditional model into a joint one, whose labels can be summed and compared.

        Parameters
        ----------
        offsets
            Subtracted from f, one per label state: log Z_y - log p(y).
        assume_equal_constants
            Assume that all offsets are equal. Reports show this assumption.
        """
        from jointenergy.models.related import Related  # it is a JointModel itself

        return Related(self, offsets, assume_equal_constants=assume_equal_constants)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the model assumes without evidence; reports show it."""
        return tuple(sorted({a for m in self.modules() for a in getattr(m, "own_assumptions", ())}))

    def tempered(self, inverse_temperature: float) -> JointModel:
        """Return the model with log-density f * inverse_temperature; see `Tempered`."""
        from jointenergy.models.tempered import Tempered  # it is a JointModel itself

        return Tempered(self, inverse_temperature)

    # Checks, made once in each public function.

    def check_x(self, x: Tensor) -> Tensor:
        """Check x and return it."""
        check_x(x, self.event_shape)
        weight = next((p for p in self.parameters() if p.is_floating_point()), None)
        if weight is not None and (weight.dtype != x.dtype or weight.device != x.device):
            raise InputError(
                f"x is {x.dtype} on {x.device} where the model's weights are {weight.dtype} on {weight.device}: "
                "convert one with .to()"
            )
        return x

    def check_summable(self, y: Tensor) -> None:
        """Refuse to sum over labels that each have an unknown normalizer."""
        if self.normalizer == "conditional" and bool((y[:, self.conditional_columns()] == MISSING).any()):
            raise NormalizerError(
                "this model is conditional: each label has an unknown normalizer of its own, so labels cannot be "
                "summed out or compared; give all labels (in the shell with --given), or relate them by "
                "with_offsets(...): offsets estimated by annealed importance sampling, offsets fitted by cross-entropy "
                "on held-out data, or assume_equal_constants=True (of a run: run.assuming_equal_constants())"
            )

    def can_sum(self, given: Tensor | None = None) -> bool:
        """Tell whether the labels missing in `given` `[n, L]` (None: all) are few enough to be summed out.

        Sums are in closed form, or enumerate the states of each of the `blocks`. Whether a sum is meaningful is checked
        by `check_summable`.
        """
        if self.factorized or len(self.labels) == 0:
            return True
        blocks = [(block, columns) for block, columns in self.blocks() if not block.factorized]
        if given is None:
            return all(block.labels.n_states <= label_room.ENUMERATION_LIMIT for block, _ in blocks)
        most = math.log(label_room.ENUMERATION_LIMIT) + 1e-9  # in logs: hundreds of labels have more states than floats
        for block, columns in blocks:
            sizes = torch.tensor(block.labels.cardinalities, dtype=torch.float64).log()
            missing = given[:, columns.to(given.device)].cpu() == MISSING
            if bool(((missing * sizes).sum(1) > most).any()):
                return False
        return True

    def conditional_columns(self) -> list[int]:
        """Return the labels of a conditional model that have unknown normalizers."""
        return list(range(len(self.labels)))

    def _summed_out(self, logits: Tensor, y: Tensor) -> Tensor:
        """Add up the log-sum-exp of each variable over the values that y allows, `[n]`."""
        open_logits = logits.masked_fill(~self.labels.allowed(y), -torch.inf)
        sizes = set(self.labels.cardinalities)
        if len(self.labels) == 1:  # the fast path of a classifier
            return open_logits.logsumexp(1)
        if len(sizes) == 1:
            return open_logits.view(len(logits), len(self.labels), sizes.pop()).logsumexp(2).sum(1)
        if not sizes:
            return logits.sum(1)
        return torch.stack([b.logsumexp(1) for b in open_logits.split(self.labels.cardinalities, dim=1)]).sum(0)


def one_per_row(value: Tensor, n: int, network: nn.Module) -> Tensor:
    """Check that a network returns one value per row, and return it as `[n]`."""
    if value.shape == (n, 1):
        return value[:, 0]
    if value.shape != (n,):
        raise InputError(
            f"{type(network).__name__} must give one value per row, shape [{n}] or [{n}, 1], got {list(value.shape)}"
        )
    return value
