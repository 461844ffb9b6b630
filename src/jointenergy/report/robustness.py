"""report: how small a change of x makes a run wrong: the smallest that several attacks find, refined and not."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jointenergy.data import View
from jointenergy.labels import MISSING
from jointenergy.report.adversarial_pictures import adversarial_images, curves
from jointenergy.report.attacked import Attacked, median_radius, metrics_of, tables_of
from jointenergy.report.defended import NORMS, Budget, Defended, Gradient, Norm, units
from jointenergy.report.predictors import predictors, prefix, shown
from jointenergy.report.sections import Picture, Section, Subject, Suite
from jointenergy.runs import Run
from jointenergy.runs.run import generator_of

if TYPE_CHECKING:
    from jointenergy.report.attacks import Closest

NAME, TITLE = "robustness", "Robustness: small changes made on purpose"
REFINED: Mapping[str, Gradient] = {"gradient": "through", "identity": "identity"}
HIDDEN = 0.05  # the share of rows on which attacks without gradients may be the closer ones before it is said
STARTS = 2000  # rows of data among which attacks without gradients look for a start, at the most


@dataclass(frozen=True)
class Sizes:
    """How much is attacked and how hard. Radii are 255ths of the range of x, attacked each by itself."""

    rows: int
    refinements: tuple[int, ...]
    radii: Mapping[Norm, tuple[int, ...]]
    budget: Budget
    votes: int
    """Draws of the chain that decide, with refinement."""
    boundary_steps: int = 0
    """Steps of the boundary attack; 0: no attack without gradients is run."""
    pointwise_entries: int = 0
    """The most entries of x for which the pointwise attack is run, which goes through them one by one."""


QUICK = Sizes(
    rows=50,
    refinements=(0, 1),
    radii={"linf": (4, 8, 16, 32, 64), "l2": (64, 128, 256, 512)},
    budget=Budget(steps=15, restarts=2, halvings=4, draws=2),
    votes=8,
)
FULL = Sizes(
    rows=100,
    refinements=(0, 1, 10),
    radii={"linf": (1, 2, 4, 8, 16, 32, 64, 128), "l2": (16, 32, 64, 128, 256, 512, 1024)},
    budget=Budget(steps=40, restarts=4, halvings=6, draws=2),
    votes=8,
    boundary_steps=2000,
    pointwise_entries=1024,
)
SIZES: Mapping[Suite, Sizes] = {"quick": QUICK, "full": FULL}


def attack(
    run: Run, x: Tensor, y: Tensor, *, steps: int, sizes: Sizes, starts: Tensor, seed: int
) -> dict[str, Closest]:
    """What each attack finds on its own. `starts` are rows of data from which attacks without gradients walk back."""
    # Here, because foolbox is an extra.
    from jointenergy.report import attacks, gradient_free

    defended = Defended.of(run, x, y, steps=steps, votes=sizes.votes, seed=seed)
    unit = units(run.bounds)
    found = {}
    ways: dict[str, Gradient] = {"gradient": "through"} if steps == 0 else dict(REFINED)
    for name, gradient in ways.items():
        found[name], generator = attacks.Closest(defended, unit), generator_of(seed)
        for norm in NORMS:
            radii = [r / 255 for r in sizes.radii[norm]]
            attacks.search(found[name], norm, radii, sizes.budget, gradient, generator=generator)
    if sizes.boundary_steps:
        begin, rows = gradient_free.top_two_starts(defended, starts)
        found["boundary"] = attacks.Closest(defended, unit)
        gradient_free.boundary(found["boundary"], begin, rows, steps=sizes.boundary_steps, generator=generator_of(seed))
        if x[0].numel() <= sizes.pointwise_entries:
            found["pointwise"] = attacks.Closest(defended, unit)
            gradient_free.pointwise(found["pointwise"], begin, rows, generator=generator_of(seed))
    return found


def robustness(subject: Subject, suite: Suite, sizes: Sizes | None = None) -> Section:
    """Robust accuracy at some radii, and the radius that half of the rows withstand, in L-inf and in L2."""
    sizes = sizes or SIZES[suite]
    if importlib.util.find_spec("foolbox") is None:
        return Section(NAME, TITLE, ("Attacks need foolbox: pip install 'jointenergy[robust]', then evaluate again.",))
    if View.of(subject.run.bounds).levels is not None:
        return Section(NAME, TITLE, ("Radii are changes of pixels, and this run sees logits of them: not measured.",))
    able, said = predictors(subject)
    for name in [n for n, run in able.items() if not run.model.can_sum()]:
        del able[name]
        said.append(f"{_capital(shown(name))} was not attacked: its labels have more states than can be summed.")
    if "run" not in able:
        return Section(NAME, TITLE, tuple(said))
    labeled = (subject.test.y != MISSING).any(1).nonzero()[:, 0]
    order = labeled[torch.randperm(len(labeled), generator=generator_of(subject.seed))]
    rows, starts = subject.test.rows(order[: sizes.rows]), subject.test.x[order[:STARTS]]
    found = []
    for name, run in able.items():
        x, data = run.rows(rows.x), run.rows(starts)
        for steps in sizes.refinements if name == "run" else (0,):
            each = attack(run, x, rows.y, steps=steps, sizes=sizes, starts=data, seed=subject.seed)
            found.append(_attacked(name, run, steps, each))
    x = subject.run.rows(rows.x)
    return Section(
        NAME,
        TITLE,
        (*_says(found, sizes, rows.x[0].numel()), *said),
        metrics_of(found, sizes.radii),
        tables_of(found, sizes.radii),
        tuple(_pictures(found, sizes, subject.run, x.cpu(), rows.y)),
    )


def _attacked(name: str, run: Run, steps: int, found: Mapping[str, Closest]) -> Attacked:
    called = name if name != "run" or steps == 0 else f"run, {steps} refinement step{'s' * (steps > 1)}"
    radii = {a: {norm: c.radius[norm].cpu() for norm in NORMS} for a, c in found.items()}
    x = {a: {norm: c.x[norm].cpu() for norm in NORMS} for a, c in found.items()}
    return Attacked(called, prefix(name), steps, radii, x, run.predict)


def _says(found: Sequence[Attacked], sizes: Sizes, entries: int) -> Iterator[str]:
    n, budget = len(found[0].smallest("linf")), sizes.budget
    for each in found:
        yield (
            f"{_capital(each.name)}: half of the rows stay right until each entry may change by "
            f"{_length(each, 'linf')} (L-inf), or all together by a length of {_length(each, 'l2')} (L2)."
        )
    yield (
        f"Changes are counted in ranges of an entry: 1 is from its lowest to its highest value. {n} random test rows, "
        f"the same for all: a share of them is uncertain by up to {196 * math.sqrt(0.25 / n):.0f} points. A row that "
        "is wrong without a change has radius 0; one with several labels is right where all of them are."
    )
    yield (
        f"Every point is the minimum over all attacks run: projected gradient descent ({budget.steps} steps, "
        f"{budget.restarts} restarts, the best kept) at each radius and between them by halving"
        + (
            f", the boundary attack ({sizes.boundary_steps} steps) from the second class"
            if sizes.boundary_steps
            else ""
        )
        + (", the pointwise attack" if any("pointwise" in each.radii for each in found) else "")
        + ". A stronger attack may find less: these radii are upper bounds."
    )
    if any(each.steps for each in found):
        yield (
            f"With refinement the label with the largest mean probability over {sizes.votes} draws of the chain "
            f"decides. The adversary follows the mean loss over {budget.draws} fresh draws at each step: once by the "
            "gradient through all refinement, once by the gradient at the refined x as if it were that at x."
        )
    if not sizes.boundary_steps:
        yield "Attacks without gradients (boundary, pointwise) belong to the full suite."
    elif entries > sizes.pointwise_entries:
        yield f"The pointwise attack was not run: x has {entries} entries, and it goes through them one by one."
    for each in found:
        blind = [a for a in each.radii if a in ("boundary", "pointwise")]
        if blind:
            seeing = each.smallest("l2", [a for a in each.radii if a not in blind])
            n_closer = int((each.smallest("l2", blind) < 0.99 * seeing).sum())
            if n_closer > HIDDEN * n:
                yield (
                    f"{_capital(each.name)}: on {n_closer} of {n} rows attacks without gradients came "
                    "closer (L2) than those with: its gradients mislead, and the true radii may be smaller still."
                )


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]


def _length(each: Attacked, norm: Norm) -> str:
    middle = median_radius(each.smallest(norm))
    if middle is None:
        return "more than was tried"
    return f"{255 * middle:.0f}/255" if norm == "linf" else f"{middle:.2f}"


def _pictures(found: Sequence[Attacked], sizes: Sizes, run: Run, x: Tensor, y: Tensor) -> Iterator[Picture]:
    for norm in NORMS:
        yield curves({each.name: each.smallest(norm) for each in found}, norm, max(sizes.radii[norm]) / 255)
    images = adversarial_images(run, x, y, [each for each in found if each.steps == 0])
    if images is not None:
        yield images
