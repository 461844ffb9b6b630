"""report: attacks on a classifier, foolbox's underneath: the smallest change of each row that makes it wrong.

It imports foolbox, which is an extra: import it where an attack is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import eagerpy as ep
import numpy as np
import torch
from eagerpy.astensor import astensor
from eagerpy.tensor.tensor import Tensor as Eager
from foolbox.attacks.boundary_attack import BoundaryAttack
from foolbox.attacks.gradient_descent_base import BaseGradientDescent
from foolbox.attacks.pointwise import PointwiseAttack
from foolbox.attacks.projected_gradient_descent import (
    L2ProjectedGradientDescentAttack,
    LinfProjectedGradientDescentAttack,
)
from foolbox.criteria import Misclassification
from foolbox.models.pytorch import PyTorchModel
from foolbox.types import Bounds
from torch import Tensor, nn

from jointenergy.data.fitting import image_form
from jointenergy.inference import predict, predict_proba
from jointenergy.labels import MISSING, constant
from jointenergy.report.attack_target import NORMS, Budget, ClassifiedRows, Gradient, Norm, distance


class Closest:
    """The smallest change of each row that was found to make it wrong, in each norm, as radii in [0, 1] units.

    A row that is wrong unchanged has radius 0, one that nothing made wrong has infinity. Whatever an attack looks for,
    what it finds counts in every norm.
    """

    def __init__(self, classified: ClassifiedRows, unit: float) -> None:
        self.classified, self.unit = classified, unit
        begin = torch.where(classified.wrong(classified.x), 0.0, torch.inf).double()
        self.radius: dict[Norm, Tensor] = {norm: begin.clone() for norm in NORMS}
        self.x: dict[Norm, Tensor] = {norm: classified.x.clone() for norm in NORMS}

    def offer(self, rows: Tensor, x: Tensor, *, within: tuple[Norm, Tensor] | None = None) -> Tensor:
        """Changed rows, of which those that are wrong count, and which those are.

        `within` are radii that an attack kept to: by rounding alone its changes are larger.
        """
        classified = self.classified.rows(rows)
        wrong = classified.wrong(x)
        for norm in NORMS:
            radius = distance(x - classified.x, norm).double() / self.unit
            if within is not None and within[0] == norm:
                radius = torch.minimum(radius, within[1])
            closer = wrong & (radius < self.radius[norm][rows])
            self.radius[norm][rows[closer]] = radius[closer]
            self.x[norm][rows[closer]] = x[closer]
        return wrong


def search(
    closest: Closest,
    norm: Norm,
    radii: Sequence[float],
    budget: Budget,
    gradient: Gradient,
    *,
    generator: torch.Generator,
) -> None:
    """Gradient attacks at each radius, small ones first, on what still stands; then between where it stood and fell."""
    found = closest.radius[norm]
    stood = torch.zeros_like(found)

    def attack(rows: Tensor, radius: Tensor) -> None:
        """Some restarts at a time, on the rows that those before have not made wrong."""
        for first in range(0, budget.restarts, AT_ONCE):
            classified = closest.classified.rows(rows)
            numbers = range(first, min(first + AT_ONCE, budget.restarts))
            x = best_of_restarts(
                classified, norm, radius * closest.unit, budget, gradient, numbers=numbers, generator=generator
            )
            wrong = closest.offer(rows, x, within=(norm, radius))
            rows, radius = rows[~wrong], radius[~wrong]
            if not len(rows):
                return
        stood[rows] = radius

    for limit in sorted(radii):
        rows = (found > limit).nonzero()[:, 0]
        if len(rows):
            attack(rows, torch.full_like(found[rows], limit))
    for _ in range(budget.halvings):
        rows = (found.isfinite() & (found > stood)).nonzero()[:, 0]
        if len(rows):
            attack(rows, (stood[rows] + found[rows]) / 2)


AT_ONCE = 4  # restarts that run side by side


def best_of_restarts(
    classified: ClassifiedRows,
    norm: Norm,
    radius: Tensor,
    budget: Budget,
    gradient: Gradient,
    *,
    numbers: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """Each row changed by at most its own radius (in units of x): the restart that makes it wrong, by least if many.

    `numbers` are those of the restarts: the first of all begins at the row, and every second follows the margin.
    """
    times, n = len(numbers), len(classified)
    many, each = classified.repeated(times), radius.repeat(times)
    restart = torch.tensor(list(numbers), device=classified.x.device).repeat_interleave(n)
    copies = budget.draws * (max(1, classified.steps) if gradient == "through" else 1)
    x = torch.cat(
        [
            descend(many.rows(piece), norm, each[piece], budget, gradient, restart[piece], generator)
            for piece in many.pieces(copies)
        ]
    )
    length = distance(x - many.x, norm).masked_fill(~many.wrong(x), torch.inf)
    best = length.view(times, -1).argmin(0)
    return x.view(times, *classified.x.shape)[best, torch.arange(n, device=x.device)]


def descend(
    classified: ClassifiedRows,
    norm: Norm,
    radius: Tensor,
    budget: Budget,
    gradient: Gradient,
    numbers: Tensor,
    generator: torch.Generator,
) -> Tensor:
    """Where projected gradient steps end; `numbers` are those of restarts, of which the first begins at the row."""

    def losses(x: Tensor) -> Tensor:
        return classified.losses(
            x, by_margin=numbers % 2 == 1, gradient=gradient, draws=budget.draws, generator=generator
        )

    kind = _LinfDescent if norm == "linf" else _L2Descent
    attack = kind(losses, _over(radius, classified.x), _over(numbers > 0, classified.x), budget.steps)
    with own_randomness(classified.x.device, generator):
        return changed(classified, lambda model, right: attack.run(model, classified.x, right, epsilon=1.0))


class _Descent(BaseGradientDescent):
    """foolbox's descent with a radius for each row, so `epsilon` is 1, and with losses of our own."""

    def __init__(self, losses: Callable[[Tensor], Tensor], radius: Tensor, random: Tensor, steps: int) -> None:
        super().__init__(rel_stepsize=2.5 / steps, steps=steps, random_start=True)
        self.losses = losses
        self.radius: Eager = astensor(radius)
        self.random: Eager = astensor(random)

    def get_random_start(self, x0: Eager, epsilon: float) -> Eager:
        start: Eager = super().get_random_start(ep.zeros_like(x0), epsilon)  # type: ignore[safe-super]
        return x0 + self.radius * self.random * start

    def normalize(self, gradients: Eager, *, x: Eager, bounds: Bounds) -> Eager:
        step: Eager = super().normalize(gradients, x=x, bounds=bounds)  # type: ignore[safe-super]
        return self.radius * step

    def project(self, x: Eager, x0: Eager, epsilon: float) -> Eager:
        change: Eager = super().project((x - x0) / self.radius, ep.zeros_like(x0), epsilon)  # type: ignore[safe-super]
        return x0 + self.radius * change

    def value_and_grad(self, loss_fn: Callable[[Eager], Eager], x: Eager) -> tuple[Eager, Eager]:
        # foolbox's own would leave gradients on the weights.
        with torch.enable_grad():
            point = x.raw.detach().requires_grad_()
            loss = self.losses(point).sum()
            (gradient,) = torch.autograd.grad(loss, point)
        # A chain that blew up shows no way: the row stays.
        return astensor(loss.detach()), astensor(gradient.nan_to_num(0.0, 0.0, 0.0))


class _LinfDescent(_Descent, LinfProjectedGradientDescentAttack):
    pass


class _L2Descent(_Descent, L2ProjectedGradientDescentAttack):
    pass


class _Judged(nn.Module):
    """Rows in their order as foolbox asks about them: class 0 is right, class 1 wrong, whatever the labels are."""

    def __init__(self, classified: ClassifiedRows) -> None:
        super().__init__()
        self.classified = classified

    def forward(self, x: Tensor) -> Tensor:
        wrong = self.classified.wrong(x)
        return torch.stack((~wrong, wrong), 1).to(x.dtype)


def changed(classified: ClassifiedRows, attack: Callable[[PyTorchModel, Misclassification], Tensor]) -> Tensor:
    """What an attack's `run` makes of the rows. foolbox's `__call__` knows one radius for all rows."""
    model = PyTorchModel(_Judged(classified).eval(), bounds=classified.bounds, device=classified.x.device)
    right = torch.zeros(len(classified), dtype=torch.int64, device=classified.x.device)
    return attack(model, Misclassification(right)).detach()


@contextmanager
def own_randomness(device: torch.device, generator: torch.Generator) -> Iterator[None]:
    """foolbox draws from the global random states of torch and numpy: inside they begin by our seed, after they are
    as they were."""
    seed = int(torch.randint(1 << 31, (), generator=generator))
    kept = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # Not torch.manual_seed, which would also seed devices that are not ours.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(kept)  # noqa: NPY002


def _over(rows: Tensor, x: Tensor) -> Tensor:
    """One value per row, shaped to go over the rows of x."""
    return rows.to(x).view(-1, *(1,) * (x.ndim - 1))


def boundary(closest: Closest, starts: Tensor, rows: Tensor, *, steps: int, generator: torch.Generator) -> None:
    """The boundary attack, which sees decisions alone, on rows that are wrong at their `starts`."""
    if len(rows) == 0:
        return
    classified, attack = closest.classified.rows(rows), BoundaryAttack(steps=steps)
    with own_randomness(classified.x.device, generator):
        x = changed(
            classified, lambda model, right: attack.run(model, classified.x, right, starting_points=starts.clone())
        )
    closest.offer(rows, x)


def cells_of(event_shape: tuple[int, ...], most: int) -> Tensor:
    """Which cell each entry of x is in: blocks of neighboring pixels with all their channels, or of entries in a row.

    There are `most` cells at the most; of x with no more entries each is a cell of its own.
    """
    size = math.prod(event_shape)
    if size <= most:
        return torch.arange(size)
    form = image_form(event_shape)
    if form is None:
        return torch.arange(size) // -(-size // most)
    channels, height, width = form
    side = next(s for s in range(1, max(height, width) + 1) if -(-height // s) * -(-width // s) <= most)
    rows, columns = (torch.arange(n) // side for n in (height, width))
    cells = rows[:, None] * -(-width // side) + columns
    return cells.expand(channels, height, width).flatten()


class _Mixed(nn.Module):
    """Rows between x and their starts: an entry of z, for each cell of x, is how far the cell is from x."""

    def __init__(self, classified: ClassifiedRows, starts: Tensor, cells: Tensor) -> None:
        super().__init__()
        self.classified, self.starts, self.cells = classified, starts, cells.to(starts.device)

    def rows(self, z: Tensor) -> Tensor:
        x = self.classified.x
        share = z[:, self.cells].view_as(x)
        return torch.where(share == 1, self.starts, x + share * (self.starts - x))

    def forward(self, z: Tensor) -> Tensor:
        wrong = self.classified.wrong(self.rows(z))
        return torch.stack((~wrong, wrong), 1).to(z.dtype)


def pointwise(closest: Closest, starts: Tensor, rows: Tensor, *, cells: Tensor, generator: torch.Generator) -> None:
    """The pointwise attack, which sees decisions alone: cell after cell goes back from the start towards the row."""
    if len(rows) == 0:
        return
    mixed = _Mixed(closest.classified.rows(rows), starts, cells)
    model = PyTorchModel(mixed.eval(), bounds=(0.0, 1.0), device=starts.device)
    right = torch.zeros(len(rows), dtype=torch.int64, device=starts.device)
    far = starts.new_ones(len(rows), int(cells.max()) + 1)
    with own_randomness(starts.device, generator):
        z = PointwiseAttack().run(model, torch.zeros_like(far), Misclassification(right), starting_points=far)
    closest.offer(rows, mixed.rows(z))


def top_two_starts(classified: ClassifiedRows, data: Tensor) -> tuple[Tensor, Tensor]:
    """For rows that are right, the nearest row of data that the classifier puts into their second class, as `x, rows`.

    The second class is the most probable wrong value of any label. Rows without such a neighbor take the nearest that
    would be wrong for them; those that have not even that are left out.
    """
    labels, y = classified.model.labels, classified.y
    probs = torch.cat(list(predict_proba(classified.model, classified.x).values()), dim=1)
    second = probs.masked_fill(labels.allowed(y), -1.0).argmax(1)
    variable, value = (constant(v, y.device)[second] for v in (labels.variable_of_code, labels.value_of_code))
    told = predict(classified.model, data)
    in_second = value[:, None] == told[:, variable].T
    other = ((told != y[:, None, :]) & (y[:, None, :] != MISSING)).any(2)
    far = torch.cdist(classified.x.flatten(1), data.flatten(1))
    # Those of the second class first: all others count as farther than the farthest of them.
    ranked = torch.where(in_second, far, far + far.max() + 1.0).masked_fill(~other, torch.inf)
    starts = data[ranked.argmin(1)]
    rows = (classified.wrong(starts) & ~classified.wrong(classified.x)).nonzero()[:, 0]
    return starts[rows], rows
