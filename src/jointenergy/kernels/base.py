"""kernels: `Target`, `State`, `Info`, the base class `Kernel`, and what all kernels share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import InputError
from jointenergy.fusing import fused
from jointenergy.inputs import graphs, ordinary
from jointenergy.labels import MISSING, Given
from jointenergy.models.base import JointModel
from jointenergy.models.domains import Reals


class Target:
    """Define what a kernel samples: a model's density with some labels and some entries of x held fixed.

    A target holds no weights of its own. Create a new one after the model's weights change.

    Parameters
    ----------
    model
        The density to sample.
    given_y
        Labels to hold fixed: a mapping from names to values, or int64 `[n, L]` with MISSING where a label is free. One
        row applies to all chains.
    given_x
        Values of x to hold fixed, `[n, *event]` or one row for all chains. Needs `mask`.
    mask
        Boolean, True where x is held at `given_x`; of the shape of x or of one row.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> labels = je.LabelSpace({"animal": ["cat", "dog"]})
    >>> model = je.LogitModel(torch.nn.Linear(2, 2), labels, domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model, given_y={"animal": "dog"})
    >>> target.given_y
    tensor([[1]])
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
            # Copied, so that later changes to the caller's tensors have no effect.
            with torch.inference_mode(False):
                given_x = ordinary(given_x).clone()
                mask = ordinary(mask).clone().to(given_x.device)
        self.given_x = given_x
        self.mask = mask
        self.frames: dict[object, object] = {}
        """Values that kernels compute once per target, such as Cholesky factors."""
        self.offers = True  # False once the model's `with_gradient` has returned None

    def hold_y(self, y: Tensor) -> Tensor:
        """Return y with the given labels written in."""
        if self.given_y is None:
            return y
        self._check_rows("given_y", self.given_y, y)
        self.given_y = self.given_y.to(y.device)
        return torch.where(self.given_y == MISSING, y, self.given_y)

    def hold_x(self, x: Tensor) -> Tensor:
        """Return x with the given entries written in."""
        if self.given_x is None or self.mask is None:
            return x
        self._check_rows("given_x", self.given_x, x)
        if self.given_x.shape[1:] != x.shape[1:]:
            raise InputError(f"given_x has rows of shape {tuple(self.given_x.shape[1:])}, x of {tuple(x.shape[1:])}")
        # Moved to the chains' device and dtype once, not at every step.
        self.given_x, self.mask = self.given_x.to(x), self.mask.to(x.device)
        return torch.where(self.mask, self.given_x, x)

    def free_labels(self, y: Tensor) -> Tensor:
        """Return which labels may move, bool `[1 or n, L]`."""
        if self.given_y is None:
            return torch.ones(1, y.shape[1], dtype=torch.bool, device=y.device)
        self.given_y = self.given_y.to(y.device)
        return self.given_y == MISSING

    def open_labels(self, y: Tensor) -> Tensor:
        """Return the given labels of each row, MISSING where free, `[n, L]`."""
        return self.hold_y(torch.full_like(y, MISSING))

    def moving(self, change: Tensor) -> Tensor:
        """Return a change of x, set to zero where x is held."""
        if self.mask is None:
            return change
        self.mask = self.mask.to(change.device)
        return change.masked_fill(self.mask, 0.0)

    @staticmethod
    def _check_rows(name: str, given: Tensor, rows: Tensor) -> None:
        if len(given) not in (1, len(rows)):
            raise InputError(
                f"{name} has {len(given)} rows for {len(rows)} chains: give one row for all, or one for each"
            )


@dataclass(frozen=True)
class Evaluation:
    """Hold the log-density at a state and its gradient with respect to x or to the one-hot label code."""

    by: Literal["x", "code"]
    log_density: Tensor
    gradient: Tensor
    by_x: Tensor | None = None
    """The gradient with respect to x, if `by` is "code" and the state asked for both."""


FEW_VALUES = 1 << 13
"""Below, calls cost more than values."""

Known = Literal["complete", "missing", None]


def known_of(y: Tensor) -> Known:
    """Inspect y for missing labels; this waits for the device."""
    missing = y == MISSING
    if not bool(missing.any()):
        return "complete"
    return "missing" if bool(missing.all()) else None


@dataclass(frozen=True)
class State:
    """The state of a batch of chains: what the next step needs.

    `evaluation` caches the log-density and gradient at (x, y), so that an adjusted kernel evaluates each state once. It
    is valid for the current weights only; `run` drops it.

    Parameters
    ----------
    x
        Positions, `[n, *event]`.
    y
        Labels, int64 `[n, L]`; MISSING labels are summed out.
    keys
        One random key per chain.
    step
        The number of steps made so far.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.MALA(step_size=0.5)
    >>> state = kernel.init(target, torch.zeros(8, 2), generator=torch.Generator().manual_seed(0))
    >>> state, info = kernel.step(target, state)
    >>> state.step, state.x.shape, info.x_acceptance.shape
    (1, torch.Size([8, 2]), torch.Size([8]))
    """

    x: Tensor
    y: Tensor
    keys: Tensor
    step: int = 0
    evaluation: Evaluation | None = None
    known: Known = None
    """"complete" if no label is missing, "missing" if all are; None means that each use has to check."""
    both: bool = False
    """Whether a label kernel should also compute the gradient with respect to x, because a kernel on x comes next."""
    ahead: tuple[streams.DrawnNoise, ...] = ()
    """Noise of the next steps, drawn in one pass; ignored if it belongs to other keys."""
    velocity: Tensor | None = None
    """The velocity of x, for kernels that carry momentum from step to step."""

    def rows(self, index: Tensor | slice) -> State:
        """Select some of the chains. Run separately, they give the same result."""
        velocity = None if self.velocity is None else self.velocity[index]
        return State(self.x[index], self.y[index], self.keys[index], self.step, known=self.known, velocity=velocity)


@dataclass(frozen=True)
class Info:
    """Diagnostics of one step, one number per chain; None where a kernel does not provide it.

    `log_density` and `gradient` (before any clamp) are taken at the state before the move. `BlockGibbs` reports them
    after its label move. Acceptances are probabilities.

    Parameters
    ----------
    log_density
        The log-density before the move, `[n]`.
    gradient
        Its gradient with respect to x.
    x_acceptance
        Acceptance probability of the move of x.
    y_acceptance
        Acceptance probability of the move of the labels.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> info = je.kernels.Info(gradient=torch.tensor([[3.0, 4.0]]))
    >>> info.gradient_norm
    tensor([5.])
    """

    log_density: Tensor | None = None
    gradient: Tensor | None = None
    x_acceptance: Tensor | None = None
    y_acceptance: Tensor | None = None
    moved_from: State | None = None
    """The state before the last Langevin move of x, with its labels and keys; input of `Langevin.recompute`."""
    reached: tuple[Tensor, Tensor] | None = None
    """End of an HMC trajectory, accepted or not: x and its velocity."""

    @property
    def gradient_norm(self) -> Tensor | None:
        """The Euclidean norm of the gradient, `[n]`."""
        return None if self.gradient is None else torch.linalg.vector_norm(self.gradient.flatten(1), dim=1)


class Kernel(ABC):
    """Base class of one Markov transition on joint states (x, y).

    A kernel is a frozen dataclass of numbers; the target is an argument of each call. A kernel that moves x alone holds
    y and sums over MISSING labels: with all labels missing it samples p(x).

    Subclasses implement `step`, and set `moves_x`, `moves_y` and `rejects`.

    Examples
    --------
    >>> import torch
    >>> import jointenergy as je
    >>> model = je.EnergyModel(torch.nn.Linear(2, 1), domain=je.Reals(1.0))
    >>> target = je.kernels.Target(model)
    >>> kernel = je.kernels.Langevin(step_size=0.01, noise_scale=0.1)
    >>> isinstance(kernel, je.kernels.Kernel), kernel.moves_x, kernel.moves_y, kernel.adjusted
    (True, True, False, False)
    >>> state = kernel.init(target, torch.zeros(8, 2), generator=torch.Generator().manual_seed(0))
    >>> state, info = kernel.step(target, state)
    """

    moves_x: ClassVar[bool] = False
    moves_y: ClassVar[bool] = False
    rejects: ClassVar[bool] = False
    """Whether it accepts or rejects proposals by differences of log-densities."""

    @property
    def adjusted(self) -> bool:
        """Whether the kernel or a part of it has a Metropolis test; it then needs full-precision log-densities."""
        return self.rejects

    @final
    def init(self, target: Target, x: Tensor, y: Given = None, *, generator: torch.Generator) -> State:
        """Check the inputs and return starting states.

        Given values are written in. If the kernel moves labels, MISSING ones start uniformly at random.

        Parameters
        ----------
        target
            What to sample.
        x
            Starting positions, `[n, *event]`.
        y
            Starting labels, a mapping or int64 `[n, L]`; None means that all are missing.
        generator
            Source of the chains' random keys.
        """
        if not isinstance(target, Target):
            raise InputError(f"a kernel samples a Target, got {type(target).__name__}: wrap the model, Target(model)")
        model = target.model
        x = target.hold_x(model.check_x(x))
        y = target.hold_y(model.labels.given(y, len(x), x.device))
        if self.moves_y and len(model.labels) == 0:
            raise InputError(f"{type(self).__name__} moves labels, and the model has none: use a kernel on x alone")
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
        """Do the same as `init` for internal callers whose inputs are checked; it does not wait for the device."""
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
        """Raise an InputError for a target or start that this kernel cannot sample."""
        return

    def look_ahead(self, state: State, steps: int) -> State:
        """Return the state with the noise of up to `steps` next steps drawn in one pass, where that is faster.

        The steps that follow give the same result as without it.
        """
        return state

    @abstractmethod
    def step(self, target: Target, state: State) -> tuple[State, Info]:
        """Return the next state, a pure function of `state`, and the diagnostics of the step."""


def checked_step(kernel: Kernel, target: Target, state: State) -> tuple[State, Info]:
    """Make one step, and refuse what is not a state with its diagnostics."""
    found: object = kernel.step(target, state)
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], State) and isinstance(found[1], Info):
        return found
    raise InputError(f"{type(kernel).__name__}.step must return a State and an Info, got {type(found).__name__}")


def check_kernel(kernel: Kernel) -> None:
    """Refuse what is no kernel."""
    if not isinstance(kernel, Kernel):
        raise InputError(f"a chain needs a kernel such as MALA(0.1), got {kernel!r}")


def evaluate_x(target: Target, state: State) -> Evaluation:
    """Evaluate the log-density, missing labels summed out, and its gradient with respect to x."""
    if state.evaluation is not None and state.evaluation.by == "x":
        return state.evaluation
    if torch.is_inference_mode_enabled():  # tensors created in it cannot require gradients
        with torch.inference_mode(False):
            return evaluate_x(target, state)
    offered = None
    if target.offers and state.known is not None:
        offered = target.model.with_gradient(state.x.detach(), state.y if state.known == "complete" else None)
        target.offers = offered is not None
    if offered is None:
        with graphs():
            x = ordinary(state.x).requires_grad_()
            value = log_density_at(target, x, ordinary(state.y), state.known)
            offered = value.detach(), gradient_of(value, x)
    return Evaluation("x", offered[0], offered[1] if target.mask is None else target.moving(offered[1]))


def evaluate_code(target: Target, state: State) -> Evaluation:
    """Evaluate the log-density at complete labels and its gradient with respect to their one-hot code."""
    if state.evaluation is not None and state.evaluation.by == "code":
        return state.evaluation
    with graphs():
        x, code = ordinary(state.x), target.model.labels.code_of(state.y, state.x.dtype).requires_grad_()
        points = (code, x.requires_grad_()) if state.both else (code,)
        value = target.model.log_density_of_codes(x, code)
        gradient, *by_x = gradients_of(value, points)
    return Evaluation("code", value.detach(), gradient, target.moving(by_x[0]) if by_x else None)


def check_inside(kernel: Kernel, target: Target, x: Tensor) -> None:
    """Refuse starts outside the model's domain, where the density is zero."""
    inside = target.model.domain.contains(x)
    if not inside.all():
        raise InputError(
            f"{type(kernel).__name__} must start inside the model's domain {target.model.domain}; "
            f"{int((~inside).sum())} of {len(x)} chains do not: clamp x"
        )


def only_inside(target: Target, x: Tensor, log_ratio: Tensor) -> Tensor:
    """Return the log acceptance ratios, minus infinity where the proposed x is outside the model's domain."""
    domain = target.model.domain
    return log_ratio if isinstance(domain, Reals) else log_ratio.masked_fill(~domain.contains(x), -torch.inf)


def check_precision(kernel: Kernel, target: Target, x: Tensor) -> None:
    """Refuse half precision: at T = 5e-5 rounding alone changes a log acceptance ratio by about 80 nats."""
    narrow = [t.dtype for t in (x, *target.model.parameters()) if t.is_floating_point() and t.dtype.itemsize < 4]
    if torch.is_autocast_enabled(x.device.type):
        narrow.append(torch.get_autocast_dtype(x.device.type))
    if narrow:
        raise InputError(
            f"{type(kernel).__name__} accepts by differences of log-densities, which {narrow[0]} rounds away: "
            "use float32 weights and x, without autocast, or an unadjusted kernel such as Langevin"
        )


def check_codes(target: Target, x: Tensor) -> None:
    """Raise the model's own error if it has no gradient with respect to labels."""
    labels = target.model.labels
    corner = labels.code_of(torch.zeros(len(x), len(labels), dtype=torch.int64, device=x.device), x.dtype)
    with torch.no_grad():
        target.model.log_density_of_codes(x, corner)


def log_density_at(target: Target, x: Tensor, y: Tensor, known: Known) -> Tensor:
    """Evaluate the target's log-density; skip the search for missing labels where `known` tells."""
    if known == "complete":
        return target.model.log_density_of_complete(x, y)
    return target.model.log_density_of_x(x) if known == "missing" else target.model.log_density_unchecked(x, y)


def gradient_of(value: Tensor, at: Tensor, *, create_graph: bool = False) -> Tensor:
    """Return the gradient of each row's value; zero if the value does not depend on the input."""
    return gradients_of(value, (at,), create_graph=create_graph)[0]


def gradients_of(value: Tensor, points: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor]:
    """Return the gradients of each row's value with respect to several inputs, in one backward pass."""
    if not value.requires_grad:
        return [torch.zeros_like(at) for at in points]
    one = torch.ones_like(value)
    found = torch.autograd.grad(value, points, one, allow_unused=True, create_graph=create_graph)
    return [torch.zeros_like(at) if g is None else g for at, g in zip(points, found, strict=True)]


@fused
def metropolis(keys: Tensor, log_ratio: Tensor, drawn: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Decide which rows accept, and return the acceptance probabilities; `drawn` is `log_uniform` of the keys."""
    # A NaN ratio counts as minus infinity: the proposal is rejected.
    log_ratio = log_ratio.to(torch.promote_types(log_ratio.dtype, torch.float32))
    log_ratio = log_ratio.nan_to_num(-torch.inf, torch.inf, -torch.inf).clamp(max=0.0)
    if drawn is None or drawn.dtype != log_ratio.dtype:
        drawn = streams.log_uniform(keys, log_ratio.dtype)
    return drawn < log_ratio, log_ratio.exp()


def chosen(accept: Tensor, proposed: Tensor, current: Tensor) -> Tensor:
    """The proposed rows where accepted, the current ones elsewhere."""
    plain = current.device.type == "cpu" and current.dtype in (torch.float32, torch.float64)
    if not plain or current.numel() < FEW_VALUES:
        return torch.where(over(accept, current), proposed, current)
    # Whole rows as single values of numpy: a fifth of the time of a condition that goes over each entry.
    row = np.dtype((np.void, current[0].nbytes))
    taken, kept = (rows.contiguous().numpy().reshape(len(rows), -1).view(row)[:, 0] for rows in (proposed, current))
    rows = np.where(accept.numpy(), taken, kept)
    return torch.from_numpy(rows.view(np.uint8)).view(current.dtype).view_as(current)


def choose(accept: Tensor, proposed: Evaluation, current: Evaluation) -> Evaluation:
    """Combine two evaluations: the proposed one in rows that accepted, the current one elsewhere."""
    return Evaluation(
        current.by,
        torch.where(accept, proposed.log_density, current.log_density),
        chosen(accept, proposed.gradient, current.gradient),
        None if proposed.by_x is None or current.by_x is None else chosen(accept, proposed.by_x, current.by_x),
    )


def over(rows: Tensor, x: Tensor) -> Tensor:
    """Reshape one value per row so that it broadcasts over the rows of x."""
    return rows.view(-1, *(1,) * (x.ndim - 1))


def categorical_by_label(model: JointModel, keys: Tensor, logits: Tensor) -> Tensor:
    """Draw one value per label from its block of the logits `[n, n_codes]`, as labels `[n, L]`."""
    return model.labels.from_one_hot(logits.double() + streams.gumbel(keys, logits.shape[1]))
