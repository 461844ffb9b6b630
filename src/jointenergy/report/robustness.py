"""report: robustness: how small a change of x makes a run wrong, over several attacks, with refinement and without."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from jointenergy.data import Dataset, View
from jointenergy.kernels import Langevin
from jointenergy.labels import MISSING
from jointenergy.report.attack_target import NORMS, Budget, ClassifiedRows, Gradient, Norm, units
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.predictors import predictors, prefix, shown
from jointenergy.report.sections import Picture, Section, Subject, Suite, Table
from jointenergy.runs import Run
from jointenergy.runs.film import as_images
from jointenergy.runs.run import generator_of

if TYPE_CHECKING:
    from jointenergy.report.attacks import Closest

NAME, TITLE = "robustness", "Robustness"
REFINED: Mapping[str, Gradient] = {"gradient": "through", "identity": "identity"}
HIDDEN = 0.05  # the share of rows on which attacks without gradients may be the closer ones before it is said
STARTS = 2000  # rows of data among which attacks without gradients look for a start, at the most


@dataclass(frozen=True)
class RobustnessSizes:
    """How much is attacked and how hard. Radii are 255ths of the range of x, attacked each by itself."""

    rows: int
    refinements: tuple[int, ...]
    radii: Mapping[Norm, tuple[int, ...]]
    budget: Budget
    votes: int
    """Draws of the chain that decide, with refinement."""
    boundary_steps: int = 0
    """Steps of the boundary attack; 0: no attack without gradients is run."""
    pointwise_cells: int = 1024
    """The most cells of x that the pointwise attack goes through one by one: of larger x each is a block of entries."""


QUICK = RobustnessSizes(
    rows=50,
    refinements=(0, 1),
    radii={"linf": (4, 8, 16, 32, 64), "l2": (64, 128, 256, 512)},
    budget=Budget(steps=15, restarts=2, halvings=4, draws=2),
    votes=8,
)
FULL = RobustnessSizes(
    rows=100,
    refinements=(0, 1, 10),
    radii={"linf": (1, 2, 4, 8, 16, 32, 64, 128), "l2": (16, 32, 64, 128, 256, 512, 1024)},
    budget=Budget(steps=40, restarts=4, halvings=6, draws=2),
    votes=8,
    boundary_steps=2000,
)
# JEM (Grathwohl et al., 2020): PGD with 20 restarts, the best kept, through the steps of refinement.
PAPER = RobustnessSizes(
    rows=300,
    refinements=(0, 1, 10),
    radii={"linf": (1, 2, 4, 8, 12, 16), "l2": (16, 32, 64, 96, 128, 256)},
    budget=Budget(steps=100, restarts=20, halvings=0, draws=1),
    votes=8,
    boundary_steps=2000,
)
SIZES: Mapping[Suite, RobustnessSizes] = {"quick": QUICK, "full": FULL, "paper": PAPER}


def attack(
    run: Run, x: Tensor, y: Tensor, *, steps: int, sizes: RobustnessSizes, starts: Tensor, seed: int
) -> dict[str, Closest]:
    """What each attack finds on its own. `starts` are rows of data from which attacks without gradients walk back."""
    # Here, because foolbox is an extra.
    from jointenergy.report import attacks

    classified = ClassifiedRows.of(run, x, y, steps=steps, votes=sizes.votes, seed=seed)
    unit = units(run.bounds)
    found = {}
    ways: dict[str, Gradient] = {"gradient": "through"} if steps == 0 else dict(REFINED)
    for name, gradient in ways.items():
        found[name], generator = attacks.Closest(classified, unit), generator_of(seed)
        for norm in NORMS:
            radii = [r / 255 for r in sizes.radii[norm]]
            attacks.search(found[name], norm, radii, sizes.budget, gradient, generator=generator)
    if sizes.boundary_steps:
        begin, rows = attacks.top_two_starts(classified, starts)
        found["boundary"] = attacks.Closest(classified, unit)
        attacks.boundary(found["boundary"], begin, rows, steps=sizes.boundary_steps, generator=generator_of(seed))
        found["pointwise"] = attacks.Closest(classified, unit)
        cells = attacks.cells_of(tuple(x.shape[1:]), sizes.pointwise_cells)
        attacks.pointwise(found["pointwise"], begin, rows, cells=cells, generator=generator_of(seed))
    return found


def robustness(subject: Subject, suite: Suite, sizes: RobustnessSizes | None = None) -> Section:
    """Robust accuracy at some radii, and the radius that half of the rows withstand, in L-inf and in L2."""
    sizes = sizes or SIZES[suite]
    if importlib.util.find_spec("foolbox") is None:
        return Section(NAME, TITLE, ("Attacks need foolbox: pip install 'jointenergy[robust]', then evaluate again.",))
    if View.of(subject.run.bounds).levels is not None:
        return Section(NAME, TITLE, ("Not measured: radii are in pixels, but this run uses logits of pixels.",))
    able, said = predictors(subject)
    for name in [n for n, run in able.items() if not run.model.can_sum()]:
        del able[name]
        said.append(f"{_capital(shown(name))} was not attacked: its labels have too many states to enumerate.")
    if "run" not in able:
        return Section(NAME, TITLE, tuple(said))
    rows, starts = chosen_rows(subject, sizes)
    found = []
    for name, run in able.items():
        refinements = (0,) if name == "baseline" else sizes.refinements
        if not isinstance(run.sampling.x_kernel, Langevin):
            refinements = (0,)
            said.append(f"{_capital(shown(name))} was not refined: its kernel is {run.sampling.x_kernel!r}.")
        for steps in refinements:
            found.append(attacked(name, run, rows, starts, steps=steps, sizes=sizes, seed=subject.seed))
    x = subject.run.rows(rows.x)
    return Section(
        NAME,
        TITLE,
        (*_says(found, sizes, rows.x[0].numel()), *said),
        metrics_of(found, sizes.radii),
        tables_of(found, sizes.radii),
        tuple(_pictures(found, sizes, subject.run, x.cpu(), rows.y)),
        lead=tuple(_half(each) for each in found if each.steps == 0),
    )


def chosen_rows(subject: Subject, sizes: RobustnessSizes) -> tuple[Dataset, Tensor]:
    """The test rows that are attacked, and the x among which attacks without gradients look for a start."""
    labeled = (subject.test.y != MISSING).any(1).nonzero()[:, 0]
    order = labeled[torch.randperm(len(labeled), generator=generator_of(subject.seed))]
    return subject.test.rows(order[: sizes.rows]), subject.test.x[order[:STARTS]]


def attacked(
    name: str, run: Run, rows: Dataset, starts: Tensor, *, steps: int, sizes: RobustnessSizes, seed: int
) -> Attacked:
    """A classifier after all attacks, with so many steps of refinement."""
    found = attack(run, run.rows(rows.x), rows.y, steps=steps, sizes=sizes, starts=run.rows(starts), seed=seed)
    radii = {a: {norm: c.radius[norm].cpu() for norm in NORMS} for a, c in found.items()}
    x = {a: {norm: c.x[norm].cpu() for norm in NORMS} for a, c in found.items()}
    return Attacked(called(name, steps), prefix(name), steps, radii, x, run.predict)


def called(name: str, steps: int) -> str:
    """A classifier with its refinement, as tables and curves name it."""
    return name if steps == 0 else f"{name}, {steps} refinement step{'s' * (steps > 1)}"


def _says(found: Sequence[Attacked], sizes: RobustnessSizes, entries: int) -> Iterator[str]:
    n, budget = len(found[0].smallest("linf")), sizes.budget
    yield from map(_half, found)
    yield (
        f"Changes are measured in units of the range of x. {n} random test rows, the same for all: their share has a "
        f"95 % margin of up to {196 * math.sqrt(0.25 / n):.0f} points. Rows that are wrong without a change have "
        "radius 0; rows with several labels must be right in all of them."
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
        + ". A stronger attack may find smaller radii: these are upper bounds."
    )
    if any(each.steps for each in found):
        yield (
            f"With refinement, the label with the largest mean probability over {sizes.votes} draws of the chain is "
            f"predicted. The adversary follows the mean loss over {budget.draws} fresh draws at each step: with the "
            "gradient through all refinement steps, and with the identity gradient at the refined x."
        )
    if not sizes.boundary_steps:
        yield "Gradient-free attacks (boundary, pointwise) are part of the full suite."
    elif entries > sizes.pointwise_cells:
        yield (
            f"The pointwise attack goes through cells one by one: x has {entries} entries, so each cell is a block of "
            f"them, {sizes.pointwise_cells} at the most."
        )
    for each in found:
        blind = [a for a in each.radii if a in ("boundary", "pointwise")]
        if blind:
            seeing = each.smallest("l2", [a for a in each.radii if a not in blind])
            n_closer = int((each.smallest("l2", blind) < 0.99 * seeing).sum())
            if n_closer > HIDDEN * n:
                yield (
                    f"{_capital(each.name)}: on {n_closer} of {n} rows gradient-free attacks came closer (L2) than "
                    "gradient attacks: gradients are masked, and the true radii may be even smaller."
                )


def _half(each: Attacked) -> str:
    return (
        f"{_capital(each.name)}: half of the rows withstand changes of up to "
        f"{_length(each, 'linf')} per entry (L-inf), or a total length of {_length(each, 'l2')} (L2)."
    )


def _capital(name: str) -> str:
    return name[0].upper() + name[1:]


def _length(each: Attacked, norm: Norm) -> str:
    middle = median_radius(each.smallest(norm))
    if middle is None:
        return "more than tested"
    return f"{255 * middle:.0f}/255" if norm == "linf" else f"{middle:.2f}"


def _pictures(found: Sequence[Attacked], sizes: RobustnessSizes, run: Run, x: Tensor, y: Tensor) -> Iterator[Picture]:
    for norm in NORMS:
        yield curves({each.name: each.smallest(norm) for each in found}, norm, max(sizes.radii[norm]) / 255)
    images = adversarial_images(run, x, y, [each for each in found if each.steps == 0])
    if images is not None:
        yield images


SHOWN: Mapping[Norm, str] = {"linf": "L-inf", "l2": "L2"}
ATTACKS = {
    "gradient": "gradient",
    "identity": "identity gradient",
    "boundary": "boundary, gradient-free",
    "pointwise": "pointwise, gradient-free",
}


@dataclass(frozen=True, eq=False)
class Attacked:
    """A classifier after all attacks: for each attack the radii in [0, 1] units by norm, `[n]`, and the wrong rows."""

    name: str
    prefix: str
    steps: int
    radii: Mapping[str, Mapping[Norm, Tensor]]
    x: Mapping[str, Mapping[Norm, Tensor]]
    predict: Callable[[Tensor], Tensor]
    """Labels `[n, L]` without refinement."""

    def smallest(self, norm: Norm, attacks: Sequence[str] = ()) -> Tensor:
        """The minimum over all attacks, or over those named."""
        return torch.stack([self.radii[a][norm] for a in attacks or self.radii]).amin(0)

    def closest(self, norm: Norm) -> Tensor:
        """The x of that minimum; of a row that stood, or was wrong before, its own."""
        best = torch.stack([self.radii[a][norm] for a in self.radii]).argmin(0)
        return torch.stack([self.x[a][norm] for a in self.radii])[best, torch.arange(len(best))]


def robust_accuracy(radius: Tensor, within: float) -> float:
    """The share of rows that no attack made wrong by a change of at most this radius."""
    return float((radius > within).double().mean())


def median_radius(radius: Tensor) -> float | None:
    """The radius within which half of the rows fall; None where more than half stood everything."""
    middle = float(radius.sort().values[(len(radius) - 1) // 2])
    return middle if math.isfinite(middle) else None


def metrics_of(found: Sequence[Attacked], radii: Mapping[Norm, Sequence[int]]) -> dict[str, float | None]:
    """Robust accuracies at radii in 255ths, and the median radius, of each classifier under all attacks together."""
    metrics: dict[str, float | None] = {}
    for each in found:
        for norm in NORMS:
            radius = each.smallest(norm)
            for r in (0, *radii[norm]):
                at = f"{r}-255" if r else "0"
                metrics[f"{each.prefix}robust_accuracy.{norm}.{each.steps}.{at}"] = robust_accuracy(radius, r / 255)
            metrics[f"{each.prefix}robust_radius.{norm}.{each.steps}"] = median_radius(radius)
    return metrics


def tables_of(found: Sequence[Attacked], radii: Mapping[Norm, Sequence[int]]) -> tuple[Table, ...]:
    """A table for each norm, and one of what each attack found alone."""
    tables = [
        Table(
            f"Robust accuracy within {SHOWN[norm]} distance r, under all attacks",
            ("classifier", "r = 0", *(f"{r}/255" for r in radii[norm]), "median radius"),
            tuple(
                (
                    each.name,
                    *(robust_accuracy(each.smallest(norm), r / 255) for r in (0, *radii[norm])),
                    median_radius(each.smallest(norm)),
                )
                for each in found
            ),
        )
        for norm in NORMS
    ]
    alone = Table(
        "Median radius by attack; a smaller radius is a stronger attack",
        ("classifier", "attack", *SHOWN.values()),
        tuple(
            (each.name, ATTACKS[attack], *(median_radius(each.radii[attack][norm]) for norm in NORMS))
            for each in found
            for attack in each.radii
        ),
    )
    return (*tables, alone)


IMAGES = 8  # columns of the picture of changed images


def steps_of(radius: Tensor, last: float) -> tuple[list[float], list[float]]:
    """Corners of the curve "share of rows whose radius exceeds r", for r from 0 to `last`."""
    falls = radius[radius <= last].sort().values
    at = torch.cat((torch.zeros(1, dtype=radius.dtype), falls, torch.full((1,), last, dtype=radius.dtype)))
    share = torch.stack([(radius > r).double().mean() for r in at])
    return at.tolist(), share.tolist()


def curves(radii: Mapping[str, Tensor], norm: Norm, last: float) -> Picture:
    """One curve for each classifier, over radii up to the largest that was tried, or that any row withstood."""
    reached = max(float(r[r <= last].max()) if bool((r <= last).any()) else last for r in radii.values())
    end = last if any(bool((r > last).any()) for r in radii.values()) else min(last, 1.05 * reached)
    scale = 255 if norm == "linf" else 1
    with drawing() as figure:
        axes = figure.add_subplot()
        for i, (name, radius) in enumerate(radii.items()):
            at, share = steps_of(radius, end)
            dashes = "-" if name.startswith("run") else "--"
            axes.step([a * scale for a in at], share, dashes, where="post", color=COLORS[i % len(COLORS)], label=name)
        axes.set_xlim(0, end * scale)
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel("robust accuracy")
        axes.set_xlabel(
            "largest change of any entry, in 255ths of its range (L-inf)"
            if norm == "linf"
            else "length of the change, in units of the range of x (L2)"
        )
        axes.legend()
        caption = (
            "Robust accuracy when an adversary may change "
            + ("every entry of x by so much" if norm == "linf" else "x by this length")
            + ". Curves further to the right are more robust; each drops where the strongest attack succeeds."
        )
        return picture(f"robustness_{norm}", caption, figure)


def adversarial_images(run: Run, x: Tensor, y: Tensor, attacked: Sequence[Attacked]) -> Picture | None:
    """Rows that the first classifier gets right, and what makes each classifier wrong; None where none can be shown."""
    if as_images(x) is None or not attacked:
        return None
    first = attacked[0].smallest("linf")
    rows = (first.isfinite() & (first > 0)).nonzero()[:IMAGES, 0]
    if len(rows) == 0:
        return None
    lines = [("test row", x[rows], _names(run, y[rows]))]
    for each in attacked:
        wrong = each.closest("linf")[rows]
        read, radius = _names(run, each.predict(wrong)), each.smallest("linf")[rows].tolist()
        lines.append((each.name, wrong, [_title(name, r) for name, r in zip(read, radius, strict=True)]))
    with drawing(0.95 * len(rows) + 1.0, 1.15 * len(lines)) as figure:
        all_axes = figure.subplots(len(lines), len(rows), squeeze=False)
        for line, (name, shown, titles) in zip(all_axes, lines, strict=True):
            for axes, image, title in zip(line, _unit(shown, run.bounds), titles, strict=True):
                axes.imshow(image.numpy(), cmap="gray", vmin=0, vmax=1)
                axes.set_title(title, fontsize=8, pad=2)
                axes.set(xticks=[], yticks=[])
                axes.grid(False)
            line[0].set_ylabel(name, fontsize=9)
        caption = (
            "Test rows, and below each the nearest misclassified image found, with its predicted class and the largest "
            "change of any pixel."
        )
        return picture("adversarial_images", caption, figure)


def _title(name: str, radius: float) -> str:
    if radius == math.inf:
        return "none found"
    return ", ".join(part for part in (name, f"{255 * radius:.0f}/255" if radius else "unchanged") if part)


def _names(run: Run, y: Tensor) -> list[str]:
    """What the labels are called; nothing where there are several, for want of room."""
    if len(run.labels) != 1:
        return [""] * len(y)
    return [next(iter(names.values()), "") for names in run.labels.decode(y.cpu())]


def _unit(x: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Images as matplotlib takes them, `[n, height, width]` or with colors last."""
    images = as_images(x)
    assert images is not None
    return View.of(bounds).unit(images).clamp(0, 1).movedim(1, -1).squeeze(-1)
