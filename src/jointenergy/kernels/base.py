"""kernels: target, state, info, and the one shape of every kernel (`init`, `step`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.fusing import fused
from jointenergy.inputs import graphs, ordinary
from jointenergy.labels import MISSING, Given
from jointenergy.models.base import JointModel


class Target:
    """What a kernel samples: a model's density with some labels and some entries of x held fixed.

    `given_y` names labels (a mapping, or a tensor with MISSING where free; one row stands for all). `given_x` holds
    values of x where `mask` is True. The target is made anew where weights change; it holds no weights of its own.
    """

    def __init__(
        self, model: JointModel, *, given_y: Given = None, given_x: Tensor | None = None, mask: Tensor | None = None
    ) -> None:
        if not isinstance(model, JointModel):
            raise InputError(f"a target needs a JointModel, got {type(model).__name__}")
        self.model = model
        self.given_y: Tensor | None = None
        if given_y is not None:
            n = len(given_y) if isinstance(given_y, Tensor) else 1
            self.given_y = model.labels.given(given_y, n).clone()
            if n == 0:
                raise InputError("given_y has no rows: give one row for all chains, or one for each")
        if (given_x is None) != (mask is None):
            raise InputError("given_x and mask go together: the values of x that are held, and where they are held")
        if given_x is not None and mask is not None:
            model.check_x(given_x)
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
                raise InputError(f"mask must be a boolean tensor, True where x is held, got {kind}")
            if tuple(mask.shape) not in (tuple(given_x.shape), tuple(given_x.shape[1:])):
                raise InputError(f"mask must have the shape of x or of one row of it, got {tuple(mask.shape)}")
            # Copies: what is given stays as it was, whatever becomes of the caller's tensors.
            with torch.inference_mode(False):
                given_x = ordinary(given_x).clone()
                mask = ordinary(mask).clone().to(given_x.device)
        self.given_x = given_x
        self.mask = mask
        self.frames: dict[object, object] = {}
        """What a kernel works out once for what is held here."""
        self.offers = True  # gradients without a graph, as far as is known: a model that had none is not asked again

    def hold_y(self, y: Tensor) -> Tensor:
        """The labels with what is given written in."""
        if self.given_y is None:
            return y
        self._check_rows("given_y", self.given_y, y)
        self.given_y = self.given_y.to(y.device)
        return torch.where(self.given_y == MISSING, y, self.given_y)

    def hold_x(self, x: Tensor) -> Tensor:
        """x with what is given written in."""
        if self.given_x is None or self.mask is None:
            return x
        self._check_rows("given_x", self.given_x, x)
        if self.given_x.shape[1:] != x.shape[1:]:
            raise InputError(f"given_x has rows of shape {tuple(self.given_x.shape[1:])}, x of {tuple(x.shape[1:])}")
        # To the chains' device and dtype once, not at every step.
        self.given_x, self.mask = self.given_x.to(x), self.mask.to(x.device)
        return torch.where(self.mask, self.given_x, x)

    def free_labels(self, y: Tensor) -> Tensor:
        """Which labels may move, `[1 or n, L]`."""
        if self.given_y is None:
            return torch.ones(1, y.shape[1], dtype=torch.bool, device=y.device)
        self.given_y = self.given_y.to(y.device)
        return self.given_y == MISSING

    def open_labels(self, y: Tensor) -> Tensor:
        """The given labels of each row of y, MISSING where free, `[n, L]`."""
        return self.hold_y(torch.full_like(y, MISSING))

    def moving(self, change: Tensor) -> Tensor:
        """A change of x, zero where x is held."""
        if self.mask is None:
            return change
        self.mask = self.mask.to(change.device)
        return change.masked_fill(self.mask, 0.0)

    @staticmethod
    def _check_rows(name: str, given: Tensor, rows: Tensor) -> None:
        if len(given) not in (1, len(rows)):
            raise InputError(f"{name} has {len(given)} rows where the chains have {len(rows)}")


@dataclass(frozen=True)
class Evaluation:
    """The log-density and its gradient by x or by the label code, at the state that carries it."""

    by: Literal["x", "code"]
    log_density: Tensor
    gradient: Tensor
    by_x: Tensor | None = None
    """Beside the gradient by the code that by x, where the state asked for both."""


FEW_VALUES, MANY_VALUES = 1 << 13, 1 << 20
"""Between them rows are chosen by index on a CPU: below calls cost more than values, above memory does."""

Known = Literal["complete", "missing", None]


def known_of(y: Tensor) -> Known:
    """By looking: for callers who may wait."""
    missing = y == MISSING
    if not bool(missing.any()):
        return "complete"
    return "missing" if bool(missing.all()) else None


@dataclass(frozen=True)
class State:
    """What the next step needs: the joint state, one random key per chain, how many steps were made.

    `evaluation` spares an adjusted kernel its second look at a point that it stands on; it holds for these weights
    alone, and `run` begins without it.
    """

    x: Tensor
    y: Tensor
    keys: Tensor
    step: int = 0
    evaluation: Evaluation | None = None
    known: Known = None
    """Whether y is known to miss no label, or all of them: then nobody looks for what it misses."""
    both: bool = False
    """Whether whoever looks at labels should look at x in the same pass: a kernel on x comes next."""
    ahead: tuple[streams.DrawnNoise, ...] = ()
    """What the next steps draw, drawn in one pass; of other keys than the state's it is ignored."""
    velocity: Tensor | None = None
    """Of x, where a kernel's motion goes on from step to step."""

    def rows(self, index: Tensor | slice) -> State:
        """Some of the chains, to be run apart from the others with the same result."""
        velocity = None if self.velocity is None else self.velocity[index]
        return State(self.x[index], self.y[index], self.keys[index], self.step, known=self.known, velocity=velocity)


@dataclass(frozen=True)
class Info:
    """What a diagnostician wants of one step, one number per chain; None where the kernel has no such thing.

    `log_density` and `gradient_norm` (of the gradient before any clamp) are those of the point from which x, or the
    labels, were moved; a block kernel reports the point after its label move. Acceptances are probabilities.
    """

    log_density: Tensor | None = None
    gradient: Tensor | None = None
    x_acceptance: Tensor | None = None
    y_acceptance: Tensor | None = None
    moved_from: State | None = None
    """The state from which Langevin last moved x, with the labels and the random keys it had: `recompute` takes it."""
    reached: tuple[Tensor, Tensor] | None = None
    """Where a trajectory of HMC led, accepted or not: x and its velocity."""

    @property
    def gradient_norm(self) -> Tensor | None:
        """Computed when it is asked for: most chains are run without anyone looking."""
        return None if self.gradient is None else torch.linalg.vector_norm(self.gradient.flatten(1), dim=1)


class Kernel(ABC):
    """One Markov transition on joint states (x, y): a frozen dataclass of numbers; the target comes in at each call.

    A kernel that moves x alone holds y, and sums over its MISSING entries: with all labels missing it samples p(x).
    """

    moves_x: ClassVar[bool] = False
    moves_y: ClassVar[bool] = False
    rejects: ClassVar[bool] = False
    """Whether it accepts or rejects by differences of log-densities."""

    @property
    def adjusted(self) -> bool:
        """Whether it, or a part of it, rejects: then log-densities must not be rounded."""
        return self.rejects

    @final
    def init(self, target: Target, x: Tensor, y: Given = None, *, generator: torch.Generator) -> State:
        """Checked starting states. What is given is written in; labels that move and are MISSING start uniformly."""
        model = target.model
        x = target.hold_x(model.check_x(x))
        y = target.hold_y(model.labels.given(y, len(x), x.device))
        if self.moves_y and len(model.labels) == 0:
            raise InputError(f"{type(self).__name__} moves labels, and the model has none")
        model.check_summable(target.open_labels(y) if self.moves_y else y)
        if self.adjusted:
            check_precision(self, target, x)
        self.check_start(target, x)
        known = "complete" if self.moves_y else known_of(y)
        return self.init_unchecked(target, x, y, known=known, generator=generator)

    @final
    def init_unchecked(
        self, target: Target, x: Tensor, y: Tensor, *, known: Known, generator: torch.Generator
    ) -> State:
        """`init` for callers inside, who know their states and what labels these miss; the host waits nowhere."""
        x = x if target.given_x is None else target.hold_x(x)
        y = y if target.given_y is None else target.hold_y(y)
        keys = streams.chain_keys(len(x), generator=generator).to(x.device)
        if self.moves_y:
            keys, key = streams.split(keys, 2)
            flat = torch.zeros(len(x), target.model.labels.n_codes, device=x.device)
            y = torch.where(y == MISSING, categorical_by_label(target.model, key, flat), y)
        with torch.inference_mode(False):
            return State(x.detach().clone(), y.clone(), keys.clone(), known=known)

    def check_start(self, target: Target, x: Tensor) -> None:
        """Refuse, in one sentence, a target or a start that this kernel cannot sample."""
        return

    def look_ahead(self, state: State, steps: int) -> State:
        """The state with what up to `steps` next steps draw, where that is faster; `step` gives the same."""
        return state

    @abstractmethod
    def step(self, target: Target, state: State) -> tuple[State, Info]:
        """The next state, a pure function of this one, and what is worth knowing of the step."""


def evaluate_x(target: Target, state: State) -> Evaluation:
    """The log-density at the state, missing labels summed out, and its gradient by x."""
    if state.evaluation is not None and state.evaluation.by == "x":
        return state.evaluation
    if torch.is_inference_mode_enabled():  # what is made in it can enter no gradient
        with torch.inference_mode(False):
            return evaluate_x(target, state)
    offered = None
    if target.offers and state.known is not None:
        offered = target.model.with_gradient(state.x.detach(), state.y if state.known == "complete" else None)
        target.offers = offered is not None
    if offered is None:
        with torch.enable_grad():
            x = ordinary(state.x).requires_grad_()
            value = log_density_at(target, x, ordinary(state.y), state.known)
            offered = value.detach(), gradient_of(value, x)
    return Evaluation("x", offered[0], offered[1] if target.mask is None else target.moving(offered[1]))


def evaluate_code(target: Target, state: State) -> Evaluation:
    """The log-density at the state's complete labels and its gradient by their one-hot code."""
    if state.evaluation is not None and state.evaluation.by == "code":
        return state.evaluation
    with graphs():
        x, code = ordinary(state.x), target.model.labels.code_of(state.y, state.x.dtype).requires_grad_()
        points = (code, x.requires_grad_()) if state.both else (code,)
        value = target.model.log_density_of_codes(x, code)
        gradient, *by_x = gradients_of(value, points)
    return Evaluation("code", value.detach(), gradient, target.moving(by_x[0]) if by_x else None)


def check_inside(kernel: Kernel, target: Target, x: Tensor) -> None:
    """Refuse starts outside the model's domain: an exact kernel would never leave from there."""
    inside = target.model.domain.contains(x)
    if not inside.all():
        raise InputError(
            f"{type(kernel).__name__} must start inside the model's domain {target.model.domain}; "
            f"{int((~inside).sum())} of {len(x)} chains do not"
        )


def check_precision(kernel: Kernel, target: Target, x: Tensor) -> None:
    """Refuse densities of half precision: at T = 5e-5 their rounding alone is some 80 nats of an acceptance ratio."""
    narrow = [t.dtype for t in (x, *target.model.parameters()) if t.is_floating_point() and t.dtype.itemsize < 4]
    if torch.is_autocast_enabled(x.device.type):
        narrow.append(torch.get_autocast_dtype(x.device.type))
    if narrow:
        raise InputError(
            f"{type(kernel).__name__} accepts by differences of log-densities, which {narrow[0]} rounds away: "
            "use float32 weights and x, without autocast, or an unadjusted kernel such as Langevin"
        )


def check_codes(target: Target, x: Tensor) -> None:
    """Raise, in the model's own sentence, where it knows no codes and so no gradient by labels."""
    labels = target.model.labels
    corner = labels.code_of(torch.zeros(len(x), len(labels), dtype=torch.int64, device=x.device), x.dtype)
    with torch.no_grad():
        target.model.log_density_of_codes(x, corner)


def log_density_at(target: Target, x: Tensor, y: Tensor, known: Known) -> Tensor:
    """The target's log-density; where it is known which labels are missing nobody looks."""
    if known == "complete":
        return target.model.log_density_of_complete(x, y)
    return target.model.log_density_of_x(x) if known == "missing" else target.model.log_density_unchecked(x, y)


def gradient_of(value: Tensor, at: Tensor, *, create_graph: bool = False) -> Tensor:
    """The gradient of each row's value; zero where a density is flat and nothing leads back to the input."""
    return gradients_of(value, (at,), create_graph=create_graph)[0]


def gradients_of(value: Tensor, points: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor]:
    """The gradients of each row's value by several inputs, in one pass."""
    if not value.requires_grad:
        return [torch.zeros_like(at) for at in points]
    one = torch.ones_like(value)
    found = torch.autograd.grad(value, points, one, allow_unused=True, create_graph=create_graph)
    return [torch.zeros_like(at) if g is None else g for at, g in zip(points, found, strict=True)]


@fused
def metropolis(keys: Tensor, log_ratio: Tensor, drawn: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Which rows accept, and the probability with which each did; `drawn` is `log_uniform` of the keys."""
    # A ratio that is not a number counts as minus infinity: such a proposal is rejected.
    log_ratio = log_ratio.to(torch.promote_types(log_ratio.dtype, torch.float32))
    log_ratio = log_ratio.nan_to_num(-torch.inf, torch.inf, -torch.inf).clamp(max=0.0)
    if drawn is None or drawn.dtype != log_ratio.dtype:
        drawn = streams.log_uniform(keys, log_ratio.dtype)
    return drawn < log_ratio, log_ratio.exp()


def chosen(accept: Tensor, proposed: Tensor, current: Tensor) -> Tensor:
    """The proposed rows where accepted, the current ones elsewhere."""
    if current.device.type != "cpu" or not FEW_VALUES < current.numel() < MANY_VALUES:
        return torch.where(over(accept, current), proposed, current)
    # Whole rows by their index: half the time of a condition that goes over each row.
    rows = torch.arange(len(accept)).add_(accept, alpha=len(accept))
    return torch.cat((current, proposed)).index_select(0, rows)


def choose(accept: Tensor, proposed: Evaluation, current: Evaluation) -> Evaluation:
    """The evaluation of each row's next state: the proposed one where accepted."""
    return replace(
        current,
        log_density=torch.where(accept, proposed.log_density, current.log_density),
        gradient=chosen(accept, proposed.gradient, current.gradient),
        by_x=None if proposed.by_x is None or current.by_x is None else chosen(accept, proposed.by_x, current.by_x),
    )


def over(rows: Tensor, x: Tensor) -> Tensor:
    """One value per row, shaped to go over the rows of x."""
    return rows.view(-1, *(1,) * (x.ndim - 1))


def categorical_by_label(model: JointModel, keys: Tensor, logits: Tensor) -> Tensor:
    """One draw for each label variable from its block of logits `[n, n_codes]`, as labels `[n, L]`."""
    return model.labels.from_one_hot(logits.double() + streams.gumbel(keys, logits.shape[1]))
