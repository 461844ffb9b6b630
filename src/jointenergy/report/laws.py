"""report: the laws exp(a f(x)) on the way from one that is known to a model's own, as chains walk them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from jointenergy import streams
from jointenergy.errors import DomainError
from jointenergy.inputs import check_positive
from jointenergy.kernels import MALA, Kernel, State, Target
from jointenergy.kernels.base import Evaluation, evaluate_x, known_of, over
from jointenergy.labels import MISSING
from jointenergy.models import Box, JointModel

EDGE = 1e-6  # of a box's width: rows on its edge are taken this far inside, where a chain without bounds can begin


@dataclass(frozen=True, eq=False)
class Seen:
    """The model at some points z: f and its gradient by x, the reference term, and how z becomes x."""

    z: Tensor
    f: Tensor
    f_by_x: Tensor
    reference: Tensor
    reference_by_x: Tensor
    log_volume: Tensor
    log_volume_by_z: Tensor
    x_by_z: Tensor


@dataclass(frozen=True, eq=False)
class Path:
    """The laws exp(a f) of a model, a from 0 on, with labels summed, given or moved along.

    A box is walked in coordinates z without bounds, x = low + width * sigmoid(z): its law at a = 0 is uniform and drawn
    exactly, no proposal leaves it, and mass that leans on its walls is no narrow layer. On R^D the reference term alone
    is the law at a = 0, at the hottest temperature of interest; it cools with f from there on.
    """

    model: JointModel
    hottest: float
    y_kernel: Kernel | None = None
    """Moves the labels, where these can be neither summed nor are given."""
    x_kernel: Callable[[float], Kernel] = MALA
    """Of a step size, at temperature 1: adjusted, or there are no bounds."""

    def __post_init__(self) -> None:
        if not self.model.domain.proper:
            raise DomainError(
                "a likelihood needs a domain on which the density has a normalizer: declare domain=Box(low, high), or "
                "domain=Reals(scale) for a Gaussian reference term"
            )
        check_positive(self, "hottest", self.hottest)

    def log_normalizer_at_start(self, n_dims: int) -> float:
        """log Z of the law at a = 0."""
        domain = self.model.domain
        flat_labels = 0.0 if self.y_kernel is None else sum(math.log(c) for c in self.model.labels.cardinalities)
        if isinstance(domain, Box):
            return n_dims * math.log(domain.high - domain.low) + flat_labels
        assert domain.scale is not None
        return n_dims / 2 * math.log(2 * math.pi * domain.scale**2 * self.hottest) + flat_labels

    def draw(self, y: Tensor, like: Tensor, keys: Tensor) -> State:
        """Exact draws of the law at a = 0, one for each row of y; `like` is any row of x."""
        keys, x_keys, y_keys = streams.split(keys.to(like.device), 3)
        domain, n_dims = self.model.domain, like[0].numel()
        if isinstance(domain, Box):
            z = streams.uniform(x_keys, n_dims, like.dtype).logit()
        else:
            assert domain.scale is not None
            scale = domain.scale * math.sqrt(self.hottest)
            z = domain.mean + scale * streams.normal(x_keys, n_dims, like.dtype)
        y = y.to(like.device)
        if self.y_kernel is not None:
            y = self.model.labels.from_one_hot(streams.gumbel(y_keys, self.model.labels.n_codes))
        return State(z.view(len(y), *like.shape[1:]), y, keys, known=known_of(y))

    def enter(self, x: Tensor, y: Tensor, keys: Tensor) -> State:
        """Given rows as states of chains."""
        domain = self.model.domain
        if isinstance(domain, Box):
            share = (x - domain.low) / (domain.high - domain.low)
            x = share.clamp(EDGE, 1 - EDGE).logit()
        return State(x.clone(), y.to(x.device), keys.to(x.device), known=known_of(y))

    def look(self, state: State) -> Seen:
        """One look at the model, which serves every law of the path."""
        z, domain = state.x, self.model.domain
        if isinstance(domain, Box):
            width, share = domain.high - domain.low, z.sigmoid()
            x, x_by_z, by_z = domain.low + width * share, width * share * (-z).sigmoid(), 1 - 2 * share
            log_volume = x_by_z.log().flatten(1).sum(1, dtype=torch.float64)
            reference, reference_by_x = torch.zeros_like(log_volume), torch.zeros_like(z)
        else:
            assert domain.scale is not None
            x, x_by_z, by_z = z, torch.ones_like(z), torch.zeros_like(z)
            reference, reference_by_x = domain.log_reference(z).double(), -(z - domain.mean) / domain.scale**2
            log_volume = torch.zeros_like(reference)
        here = evaluate_x(Target(self.model), replace(state, x=x, evaluation=None))
        return Seen(z, here.log_density.double(), here.gradient, reference, reference_by_x, log_volume, by_z, x_by_z)

    def slope(self, a: float, seen: Seen) -> Tensor:
        """The derivative by a of the law's log-density, `[n]`."""
        return seen.f - seen.reference if a < 1 / self.hottest else seen.f

    def log_density(self, a: float, seen: Seen) -> Tensor:
        """Of x, up to the normalizer, `[n]` in float64; the reference term is never hotter than the hottest."""
        return a * seen.f + (max(a, 1 / self.hottest) - a) * seen.reference

    def evaluation(self, a: float, seen: Seen) -> Evaluation:
        """Of the law as chains see it, by z."""
        by_x = a * seen.f_by_x + (max(a, 1 / self.hottest) - a) * seen.reference_by_x
        value = self.log_density(a, seen) + seen.log_volume
        return Evaluation("x", value, by_x * seen.x_by_z + seen.log_volume_by_z)


class Law(JointModel):
    """One law of a path, in the coordinates of its chains."""

    def __init__(self, path: Path, a: float) -> None:
        super().__init__(path.model.labels, event_shape=path.model.event_shape, normalizer=path.model.normalizer)
        self.path, self.a = path, a
        self.last: Seen | None = None

    def with_gradient(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        y = torch.full((len(x), len(self.labels)), MISSING, device=x.device) if y is None else y
        self.last = self.path.look(State(x, y, torch.empty(0), known=known_of(y)))
        found = self.path.evaluation(self.a, self.last)
        return found.log_density, found.gradient

    def seen_after(self, state: State, before: Seen) -> Seen:
        """What was seen of a state after a step, each row of it either as before or as last looked at."""
        # A kernel that leaves no evaluation did not look where it went.
        if state.evaluation is None or self.last is None:
            return self.path.look(state)
        moved = (state.x == self.last.z).flatten(1).all(1)
        both = ((getattr(self.last, f.name), getattr(before, f.name)) for f in fields(Seen))
        return Seen(*(torch.where(over(moved, new), new, old) for new, old in both))

    # What moves labels compares values at one x: terms of x alone do not matter.

    def log_density_of_codes(self, x: Tensor, code: Tensor) -> Tensor:
        return self.a * self.path.model.log_density_of_codes(self._x(x), code)

    def log_density_of_states(self, x: Tensor, states: Tensor) -> Tensor:
        return self.a * self.path.model.log_density_of_states(self._x(x), states)

    def _x(self, z: Tensor) -> Tensor:
        domain = self.path.model.domain
        return domain.low + (domain.high - domain.low) * z.sigmoid() if isinstance(domain, Box) else z
