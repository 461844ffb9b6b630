"""models: `log_density(x, y)` with every missing label summed out, and what follows from it for every family."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator
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
"""The most (row, state) pairs that a sum by enumeration evaluates at once."""


@dataclass(frozen=True)
class LabelLogits:
    """f(x, y) = bias(x) + sum over k of logits_k(x)[y_k]: the labels are independent given x, so sums are closed."""

    bias: Tensor
    logits: Tensor


@dataclass(frozen=True)
class LabelCompletions:
    """All ways to fill in the missing labels of some rows that miss the same variables."""

    rows: Tensor
    states: Tensor
    log_density: Tensor


class JointModel(nn.Module, ABC):
    """An unnormalized log-density of data x and labels y; it knows x, y and its weights, and nothing of sampling.

    A family writes one of three functions, the first that it can: `label_logits` (labels independent given x; it then
    says `factorized = True`), `log_density_of_codes` (any function of real-valued one-hot codes),
    `log_density_of_complete` (any function of label indices). All the rest follows here.
    """

    factorized: bool = False
    """Whether the labels are independent given x, so that `label_logits` gives every sum in closed form."""

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

    # What a family provides.

    def label_logits(self, x: Tensor) -> LabelLogits:
        """The closed form, of factorized models alone."""
        raise InputError(f"{type(self).__name__} has no closed form: its labels are not independent given x")

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        """The log-density at real-valued codes `[n, n_codes]`, equal to that of complete labels at the corners."""
        if not self.factorized:
            raise InputError(
                f"{type(self).__name__} has no value at real-valued label codes, so no gradient by labels: "
                "sample its labels with ExactGibbs or SingleSiteGibbs"
            )
        closed = self.label_logits(x)
        return closed.bias + (code * closed.logits).sum(1)

    def log_density_of_complete(self, x: Tensor, y: Tensor) -> Tensor:
        """The log-density at complete labels, unchecked."""
        return self.log_density_of_codes(x, self.labels.code_of(y, x.dtype))

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        """The log-density of each row of x at each of its own states `[n, S, L]`, as `[n, S]`."""
        n, n_states = states.shape[:2]
        if self.factorized:
            closed = self.label_logits(x)
            places = states + constant(self.labels.offsets, states.device)
            return closed.bias[:, None] + closed.logits[:, None, :].expand(-1, n_states, -1).gather(2, places).sum(2)
        repeated = x.repeat_interleave(n_states, dim=0)
        return self.log_density_of_complete(repeated, states.reshape(n * n_states, -1)).view(n, n_states)

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """The log-density at complete labels, or with all summed out (no `y`), and its gradient by x, without a graph.

        Families offer it where `input_gradients` knows their network: small chains save time. None: take torch's graph.
        """
        return None

    def blocks(self) -> list[tuple[JointModel, Tensor]]:
        """Parts whose labels are independent of each other given x, with the columns of each; their f add up to f."""
        return [(self, torch.arange(len(self.labels)))]

    # What follows.

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        return self.log_density(x, y)

    def log_density(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """log p(x, y) up to one constant of the model, `[n]`, every MISSING label summed out; no `y`: all missing."""
        x = self.check_x(x)
        y = self.labels.given(y, len(x), x.device)
        self.check_summable(y)
        return self.log_density_unchecked(x, y)

    def log_density_of_x(self, x: Tensor) -> Tensor:
        """log p(x) up to the model's constant, all labels summed out, for callers inside."""
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
        """All labels summed out by enumeration. Every row has the same states, so nobody looks for rows that fit."""
        if len(self.labels) == 0 or len(self.blocks()) > 1:
            return self.log_density_unchecked(x, self.labels.given(None, len(x), x.device))
        states = self.labels.enumerate(device=x.device).expand(len(x), -1, -1)
        return torch.cat([self.log_density_of_states(x, piece) for piece in self._pieces(states)], dim=1).logsumexp(1)

    @staticmethod
    def _pieces(states: Tensor) -> tuple[Tensor, ...]:
        """States `[n, S, L]` in pieces, so that no more than CHUNK are evaluated at once."""
        pieces: tuple[Tensor, ...] = states.split(max(1, CHUNK // max(1, len(states))), dim=1)
        return pieces

    def log_density_unchecked(self, x: Tensor, y: Tensor) -> Tensor:
        """`log_density` for callers inside, who have checked x and y once and call this in a loop."""
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
        """Rows grouped by which labels they miss, each with all its completions: the sum by enumeration."""
        patterns, which = (y == MISSING).unique(dim=0, return_inverse=True)
        for i, pattern in enumerate(patterns):
            rows = (which == i).nonzero()[:, 0]
            free = pattern.nonzero()[:, 0]
            states = self.labels.completed(y[rows], free)
            values = torch.cat([self.log_density_of_states(x[rows], piece) for piece in self._pieces(states)], dim=1)
            yield LabelCompletions(rows, states, values)

    def label_log_prob(self, x: Tensor, y: Tensor, given: Given = None) -> Tensor:
        """log p(the labels that y names | x, the labels given), `[n]`; labels in neither are summed out."""
        x = self.check_x(x)
        y = self.labels.check(y, len(x)).to(x.device)
        given = self.labels.given(given, len(x), x.device)
        both = (y != MISSING) & (given != MISSING) & (y != given)
        if both.any():
            row, column = (int(i) for i in both.nonzero()[0])
            raise InputError(f"row {row} asks for a value of {self.labels.names[column]!r} other than the one given")
        self.check_summable(given)
        joined = torch.where(y == MISSING, given, y)
        return self.log_density_unchecked(x, joined) - self.log_density_unchecked(x, given)

    def label_probs(self, x: Tensor, given: Given = None) -> dict[str, Tensor]:
        """p(y_k | x, the labels given) for each variable k, `[n, cardinality]`, by closed form or enumeration."""
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
        """The normalized log-density in nats, given an estimate of log Z: one number, or one per row if conditional."""
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
        """A conditional model made joint: offsets, one per label state, are subtracted from f, or all said equal."""
        from jointenergy.models.related import Related  # it is a JointModel itself

        return Related(self, offsets, assume_equal_constants=assume_equal_constants)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed and not known, in any part of the model: reports must show it."""
        return tuple(sorted({a for m in self.modules() for a in getattr(m, "own_assumptions", ())}))

    def tempered(self, inverse_temperature: float) -> JointModel:
        """The model with log-density f * inverse_temperature: the law of chains on (x, y) that move both at that T.

        Not that of a chain on log p(x) at T: labels are summed after the tempering here, and before it there.
        """
        from jointenergy.models.tempered import Tempered  # it is a JointModel itself

        return Tempered(self, inverse_temperature)

    # Checks, made once at each public door.

    def check_x(self, x: Tensor) -> Tensor:
        """x itself, or one sentence about what is wrong with it."""
        check_x(x, self.event_shape)
        weight = next((p for p in self.parameters() if p.is_floating_point()), None)
        if weight is not None and (weight.dtype != x.dtype or weight.device != x.device):
            raise InputError(
                f"x is {x.dtype} on {x.device} where the model's weights are {weight.dtype} on {weight.device}: "
                "convert one with .to()"
            )
        return x

    def check_summable(self, y: Tensor) -> None:
        """A sum or comparison over labels is refused where each label has an unknown normalizer of its own."""
        if self.normalizer == "conditional" and bool((y[:, self.conditional_columns()] == MISSING).any()):
            raise NormalizerError(
                "this model is conditional: each label has an unknown normalizer of its own, so labels cannot be "
                "summed out or compared; give all labels (in the shell with --given), or relate them by "
                "with_offsets(...): offsets estimated by annealed importance sampling, offsets fitted by cross-entropy "
                "on held-out data, or assume_equal_constants=True (of a run: run.assuming_equal_constants())"
            )

    def can_sum(self, given: Tensor | None = None) -> bool:
        """Whether the labels that are missing in `given` `[n, L]` (None: all labels) are few enough to be summed out.

        Sums are in closed form, or enumerate the states of each of the `blocks`. Whether a sum has a meaning is another
        question: that of `check_summable`.
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
        """The labels of a conditional model that have unknown normalizers: all, unless a family knows better."""
        return list(range(len(self.labels)))

    def _summed_out(self, logits: Tensor, y: Tensor) -> Tensor:
        """The logs of each variable's sum over the values that y leaves open, added up, `[n]`."""
        open_logits = logits.masked_fill(~self.labels.allowed(y), -torch.inf)
        sizes = set(self.labels.cardinalities)
        if len(self.labels) == 1:  # a classifier: chains of small ones feel every operation
            return open_logits.logsumexp(1)
        if len(sizes) == 1:
            return open_logits.view(len(logits), len(self.labels), sizes.pop()).logsumexp(2).sum(1)
        if not sizes:
            return logits.sum(1)
        return torch.stack([b.logsumexp(1) for b in open_logits.split(self.labels.cardinalities, dim=1)]).sum(0)


def one_per_row(value: Tensor, n: int, network: nn.Module) -> Tensor:
    """A network's output as `[n]`, or one sentence about its shape."""
    if value.shape == (n, 1):
        return value[:, 0]
    if value.shape != (n,):
        raise InputError(
            f"{type(network).__name__} must give one value per row, shape [{n}] or [{n}, 1], got {list(value.shape)}"
        )
    return value
