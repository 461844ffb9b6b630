"""report: how likely test rows are under the run's density: bounds, with simple densities beside.

The law is exp(f / T) / Z on the model's domain. T is chosen on validation rows (IGEBM, appendix A.3), and every figure
says its T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jointenergy.data import View
from jointenergy.metrics.dequantization import Cells
from jointenergy.metrics.likelihood import Annealer, Bounds, Effort, Points, how_labels, temperature_grid
from jointenergy.metrics.reference_densities import CHOICE_ROWS, FIT_ROWS, Gaussian, Kernels
from jointenergy.models import Box
from jointenergy.networks.accelerated import hold
from jointenergy.report import likelihood_page as page
from jointenergy.report.sections import Section, Subject, Suite
from jointenergy.runs import Run

OUTSIDE = 0.01  # the share of test rows that may lie outside the domain, and are then left out


@dataclass(frozen=True)
class Sizes:
    """How much is run: first on validation rows to choose T, then on test rows, each with more and more effort."""

    scan: tuple[Effort, ...]
    """The first at every T, each further one at the better third of those before."""
    test: tuple[Effort, ...]
    pilot_chains: int
    most_rows: int
    """Of test and of validation rows, taken evenly from all."""
    most_dims: int
    """Beyond, nothing is measured: the annealing would take long and say nothing."""
    most_groups: int
    """Of labels, each with a normalizer of its own, of a conditional model."""


QUICK = Sizes(
    scan=(Effort(50, 32, 24), Effort(120, 64, 24)),
    test=tuple(Effort(k, 64, 32) for k in (75, 200, 500)),
    pilot_chains=32,
    most_rows=1000,
    most_dims=256,
    most_groups=16,
)
FULL = Sizes(
    scan=(Effort(300, 64, 64), Effort(1500, 128, 64)),
    test=tuple(Effort(k, 256, 128, n_tries=2) for k in (300, 1000, 3000, 10_000)),
    pilot_chains=128,
    most_rows=10_000,
    most_dims=256,
    most_groups=128,
)
# A step costs as much as x has dimensions: beyond those of FULL temperatures come before chains.
LARGE = Sizes(
    scan=(Effort(300, 32, 32), Effort(1500, 64, 32)),
    test=tuple(Effort(k, 64, 64) for k in (300, 1000, 3000)),
    pilot_chains=64,
    most_rows=10_000,
    most_dims=4096,
    most_groups=128,
)


def likelihood(subject: Subject, suite: Suite) -> Section:
    """Bounds on the mean log-likelihood of test rows; a sentence where there is none."""
    sizes = QUICK if suite == "quick" else FULL if subject.test.x[0].numel() <= FULL.most_dims else LARGE
    reason = why_not(subject, sizes)
    if reason is not None:
        return Section(page.NAME, page.TITLE, says=(reason,))
    with hold(subject.run.model):
        return _annealed(subject, sizes)


def _annealed(subject: Subject, sizes: Sizes) -> Section:
    """The section of a run that has a likelihood."""
    run, generator = subject.run, torch.Generator().manual_seed(subject.seed)
    how = how_labels(run.model)
    view = View.of(run.bounds)
    binary = run.recipe is not None and run.recipe.data.dequantize == "binary"
    cells = None if view.levels else Cells.of(subject.test.x, run.bounds, binary=binary)

    def rows(x: Tensor) -> Tensor:
        x = run.rows(x)
        return x if cells is None else cells.spread(x, generator=generator)

    kept, kept_held = evenly(len(subject.test.x), sizes.most_rows), evenly(len(run.data.x_held), sizes.most_rows)
    held = Points.of(run.model, rows(run.data.x_held[kept_held]), run.data.y_held[kept_held], how)
    test = Points.of(run.model, rows(subject.test.x[kept]), subject.test.y[kept], how)
    if (outside := _outside(run, subject.test.x[kept])) is not None:
        return Section(page.NAME, page.TITLE, says=(outside,))
    own = run.sampling.temperature
    grid = temperature_grid(held, own)
    annealer = Annealer.tuned(
        run.model,
        held,
        grid,
        how=how,
        y_kernel=run.sampling.y_kernel,
        n_chains=sizes.pilot_chains,
        generator=generator,
    )
    scan = scanned(annealer, held, grid, sizes.scan, generator=generator)
    chosen = _best(scan)[0].temperature
    n_dims = test.x[0].numel()
    found = [annealer.bounds(test, chosen, effort, generator=generator) for effort in sizes.test]
    peers = {} if how == "moved" else _peers(run, rows, test, generator)
    n_levels, log_cell = (None, None) if cells is None else (cells.n, cells.log_volume(n_dims))
    jacobian = None
    if view.levels:
        # Rows were dequantized when they were read: a density of logits becomes one of pixels between 0 and 1.
        n_levels, log_cell = view.levels, -n_dims * math.log(view.levels)
        jacobian = float(view.log_jacobian(test.x).mean())
        scan = [b.shifted(float(view.log_jacobian(held.x).mean())) for b in scan]
        found = [b.shifted(jacobian) for b in found]
        peers = {name: value + jacobian for name, value in peers.items()}
    facts = page.Facts(
        how=how,
        domain=str(run.model.domain),
        n_dims=n_dims,
        own=own,
        effort=sizes.test[-1],
        n_test=len(test.x),
        n_left_out=len(kept) - len(test.x),
        n_levels=n_levels,
        log_cell=log_cell,
        jacobian=jacobian,
        has_baseline=subject.baseline is not None and subject.baseline.is_cross_entropy,
        assumptions=run.model.assumptions,
    )
    return page.section(facts, scan, found, peers)


def _outside(run: Run, x: Tensor) -> str | None:
    """A sentence where the domain leaves out so many rows that a mean over the others would say little."""
    n = int((~run.model.domain.contains(run.rows(x))).sum())
    if n <= OUTSIDE * len(x):
        return None
    return (
        f"No likelihood: {n} of {len(x)} test rows lie outside {run.model.domain}, where the model's density is zero. "
        "Train with data.low and data.high that hold the data."
    )


def scanned(
    annealer: Annealer, held: Points, grid: Sequence[float], efforts: Sequence[Effort], *, generator: torch.Generator
) -> list[Bounds]:
    """The bounds at each temperature, those of the best with more effort: little effort flatters cold ones."""
    found: dict[float, Bounds] = {}
    left = list(grid)
    for effort in efforts:
        found.update({t: annealer.bounds(held, t, effort, generator=generator) for t in left})
        left = [b.temperature for b in _best(list(found.values()))[: math.ceil(len(left) / 3)]]
    return [found[t] for t in grid]


def _best(scan: Sequence[Bounds]) -> list[Bounds]:
    """Those that had the most effort, the likeliest first."""
    most = max(b.n_temperatures for b in scan)
    return sorted((b for b in scan if b.n_temperatures == most), key=lambda b: -b.cautious)


def why_not(subject: Subject, sizes: Sizes) -> str | None:
    """One sentence where the run has no likelihood that could be measured."""
    run, recipe = subject.run, subject.run.recipe
    n_dims = subject.test.x[0].numel()
    if recipe is None:
        return (
            f"No likelihood: {run.origin.name} was trained by cross-entropy, which leaves log p(x) free, and has no "
            "validation rows to choose a temperature on."
        )
    if run.is_cross_entropy:
        return (
            "No likelihood: the run was trained on log p(y given x) alone, so its log p(x) is no density of the data."
        )
    if not run.model.domain.proper:
        return 'No likelihood: the model has no domain on which it has a normalizer; train with model.domain = "box".'
    if n_dims > sizes.most_dims:
        return (
            f"No likelihood in this suite: x has {n_dims:,} dimensions, and it anneals up to {sizes.most_dims:,}; "
            f"the full suite goes up to {LARGE.most_dims:,}, which takes long and may not come close."
        )
    groups = len(subject.test.y.unique(dim=0)) if run.model.normalizer == "conditional" else 1
    if groups > sizes.most_groups:
        return (
            f"No likelihood in this suite: each of the {groups} labels of the test rows has a normalizer of its own, "
            f"and {sizes.most_groups} are estimated at the most."
        )
    return None


def evenly(n: int, most: int) -> Tensor:
    """The numbers of up to `most` rows of n, from first to last."""
    return torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).round().long()


def _peers(run: Run, rows: Callable[[Tensor], Tensor], test: Points, generator: torch.Generator) -> dict[str, float]:
    """Mean log-likelihoods of test rows under densities fitted to the run's training rows, on its domain."""
    domain = run.model.domain
    found: dict[str, float] = {}
    if isinstance(domain, Box):
        found["uniform"] = -test.x[0].numel() * float(torch.tensor(domain.high - domain.low).double().log())
    if run.data.mask is not None:
        return found
    train = rows(run.data.x[evenly(len(run.data.x), FIT_ROWS)])
    held = rows(run.data.x_held[evenly(len(run.data.x_held), CHOICE_ROWS)])
    found["gaussian"] = float(Gaussian.fit(train, held, domain, generator=generator).log_density(test.x).mean())
    found["kernels"] = float(Kernels.fit(train, held, domain).log_density(test.x).mean())
    return found
