"""report: chains that go on: energy, values at the bounds and the class they show as they grow old."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from jointenergy.errors import InputError
from jointenergy.kernels import State
from jointenergy.labels import MISSING
from jointenergy.report.conditional_samples import Judge, judges_of
from jointenergy.report.drawings import COLORS, drawing, picture
from jointenergy.report.sample_sets import Sets, energy_of, some
from jointenergy.report.sections import Picture, Section, Subject
from jointenergy.runs import Run
from jointenergy.training.health import at_bounds

MOST_CLASSES = 20  # that a picture of classes by age has room for
BINS = 40

AGES = 25  # looks at the chains on their way
GROUPS = 4  # of persistent chains, from the youngest to the oldest


def ages_of(steps: int, also: tuple[int, ...] = (), n: int = AGES) -> tuple[int, ...]:
    """About n ages from 0 to `steps`, in equal ratios: most happens early; `also` are among them."""
    spread = {round(math.exp(math.log(max(steps, 1)) * i / (n - 2))) for i in range(n - 1)}
    return tuple(sorted({0, *(a for a in spread | set(also) if 0 <= a <= steps), steps}))


@dataclass(frozen=True, eq=False)
class Course:
    """Chains at some ages: energies `[ages, n]`, the share of values at the bounds, labels `[ages, n, L]`."""

    ages: tuple[int, ...]
    energy: Tensor
    at_bounds: tuple[float, ...]
    labels: Tensor | None


class Watch:
    """Looks at chains at some ages and keeps a few numbers of each: `run.sample(n, frames=watch)`."""

    def __init__(
        self,
        ages: tuple[int, ...],
        bounds: tuple[float, float],
        energy: Callable[[Tensor, Tensor], Tensor],
        labels: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self.ages, self.bounds, self._energy, self._labels = ages, bounds, energy, labels
        self._seen: list[tuple[Tensor, float, Tensor | None]] = []

    def __call__(self, step: int, state: State) -> None:
        if step not in self.ages:
            return
        x = state.x.detach()
        labels = None if self._labels is None else self._labels(x).cpu()
        self._seen.append((self._energy(x, state.y).cpu(), float(at_bounds(x, self.bounds)), labels))

    def course(self) -> Course:
        """What was seen; all ages must have passed by."""
        if len(self._seen) != len(self.ages):
            raise InputError(f"the chains were seen at {len(self._seen)} of {len(self.ages)} ages: let them go on")
        labels = [seen[2] for seen in self._seen if seen[2] is not None]
        return Course(
            self.ages,
            torch.stack([seen[0] for seen in self._seen]),
            tuple(seen[1] for seen in self._seen),
            torch.stack(labels) if labels else None,
        )


def kept(labels: Tensor, since: int = 0) -> Tensor:
    """The share of chains' labels `[ages, n, L]` that are those of look number `since`, at it and all later looks."""
    return (labels[since:] == labels[since]).double().mean((1, 2))


def shares(labels: Tensor, n_values: int) -> Tensor:
    """How often each value occurs at each look, `[looks, n_values]`, of one label `[looks, n]`; MISSING is none."""
    counts = [torch.bincount(row[row != MISSING], minlength=n_values) / max(row.numel(), 1) for row in labels]
    return torch.stack(counts)


@dataclass(frozen=True, eq=False)
class AgeGroup:
    """Persistent chains of about one age, and how often each class is among them."""

    youngest: int
    oldest: int
    n: int
    shares: Tensor


def by_age(age: Tensor, labels: Tensor, n_values: int, n_groups: int = GROUPS) -> list[AgeGroup]:
    """Groups of equal size from the youngest to the oldest, each with its classes `[n]`."""
    order = age.argsort(stable=True)
    return [
        AgeGroup(int(age[rows].min()), int(age[rows].max()), len(rows), shares(labels[rows][None], n_values)[0])
        for rows in order.tensor_split(n_groups)
        if len(rows)
    ]


def apart(p: Tensor, q: Tensor) -> float:
    """The total variation distance of two shares: 0 where they are equal, 1 where they have nothing in common."""
    return float((p - q).abs().sum() / 2)


def apart_by_chance(p: Tensor, n: int) -> float:
    """What `apart` of two groups of n would be about, were the classes of both drawn with the shares p."""
    spread = (p * (1 - p) * 2 / n).sqrt()
    return float(spread.sum() / 2) * math.sqrt(2 / math.pi)


def long_chains(subject: Subject, sets: Sets, *, chains: int, times: int) -> Section:
    """Energies of all sets, and chains that go on for many times the length that they were trained with."""
    run, energy = subject.run, energy_of(subject.run)
    trained = run.recipe.chain.steps if run.recipe is not None else sets.steps
    # Never so short that nothing is seen of what comes after a sample is taken.
    steps = max(times * trained, 2 * sets.steps)
    predict = judges_of({"model": run}, sets.test[:1])[0].get("model") if len(run.labels) else None
    watch = Watch(ages_of(steps, also=(sets.steps,)), run.bounds, energy, predict)
    n = min(chains, len(sets.test))
    given = sets.samples_y[:n] if run.model.normalizer == "conditional" else None
    run.sample(n if given is None else len(given), given, steps=steps, frames=watch, seed=subject.seed + 1)
    course = watch.course()
    known = {"fresh samples": energy(sets.samples, sets.samples_y), "test rows": energy(sets.test, sets.test_y)}
    if sets.buffer is not None:
        rows = some(torch.arange(len(sets.buffer.x)), len(sets.test), torch.Generator().manual_seed(subject.seed))
        known["persistent chains"] = energy(sets.buffer.x[rows], sets.buffer.y[rows])
    # Starts have no labels of their own.
    labels = sets.samples_y if len(sets.samples_y) == len(sets.starts) else sets.test_y
    known["starts of chains"] = energy(sets.starts, labels[: len(sets.starts)])
    known["uniform noise"] = energy(sets.noise, sets.test_y)
    bounds = {"data": sets.test, "samples": sets.samples}
    metrics: dict[str, float | None] = {
        f"at_bounds.{name}": float(at_bounds(x, run.bounds)) for name, x in bounds.items() if len(x)
    }
    metrics["at_bounds.old_chains"] = course.at_bounds[-1]
    medians = {"data": known["test rows"], "samples": known["fresh samples"], "old_chains": course.energy[-1]}
    metrics |= {f"energy_nats.{name}": _median(e) for name, e in medians.items()}
    drawn = [
        draw_energies(
            known,
            "Energies of real rows, samples and noise. In a healthy run samples lie where real rows do, and noise far "
            "to the right; values beyond an edge are counted there.",
        ),
        draw_course(
            course,
            known["test rows"],
            float(at_bounds(sets.test, run.bounds)),
            sets.steps,
            f"{len(course.energy[0])} fresh chains on their way to {steps:,} steps ({steps / trained:g} times the "
            f"{trained} of {'training' if run.recipe is not None else 'a sample'}): energy and the share of values at "
            f"the bounds, beside those of real rows. Dotted: the {sets.steps} steps at which samples are taken.",
        ),
    ]
    says = [
        f"{len(course.energy[0])} chains went on to {steps:,} steps: their median energy is "
        f"{_told(metrics['energy_nats.old_chains'])}, that of test rows {_told(metrics['energy_nats.data'])}, and "
        f"{course.at_bounds[-1]:.1%} of their values lie at the bounds, {metrics['at_bounds.data'] or 0.0:.1%} in test "
        "rows."
    ]
    if course.labels is not None:
        found = _classes(run, sets, course, predict)
        return Section("old", "", (*says, *found.says), {**metrics, **found.metrics}, (), (*drawn, *found.pictures))
    says.append("The class of long chains is not shown: this model's labels cannot be compared.")
    return Section("old", "", tuple(says), metrics, (), tuple(drawn))


def _classes(run: Run, sets: Sets, course: Course, predict: Judge | None) -> Section:
    """Which class chains show as they grow old, of fresh ones and of those of training (JEM, appendix G.2)."""
    assert course.labels is not None
    assert predict is not None
    metrics: dict[str, float | None] = {
        "class_kept.start": float(kept(course.labels)[-1]),
        "class_kept.sample": float(kept(course.labels, course.ages.index(sets.steps))[-1]),
    }
    names, says, groups = run.labels.values[0], [], []
    says.append(
        f"{metrics['class_kept.start']:.0%} of fresh chains still have the class of their start at step "
        f"{course.ages[-1]:,}, {metrics['class_kept.sample']:.0%} the class of step {sets.steps}."
    )
    if sets.buffer is not None and len(sets.buffer.x) >= GROUPS:
        groups = by_age(sets.buffer.age.cpu(), predict(sets.buffer.x)[:, 0].cpu(), len(names))
        young, old = groups[0], groups[-1]
        distance = apart(young.shares, old.shares)
        chance = apart_by_chance((young.shares + old.shares) / 2, min(young.n, old.n))
        metrics["class_by_age"] = distance
        says.append(
            f"Among persistent chains, the classes of the youngest and the oldest quarter differ by {distance:.0%} (by "
            f"chance: about {chance:.0%}). A large difference means that classes depend on the age of a chain."
        )
    of = "" if len(run.labels) == 1 else f" of {run.labels.names[0]!r}, the first of the labels,"
    drawn: tuple[Picture, ...] = ()
    if len(names) <= MOST_CLASSES:
        caption = (
            "Left: share of chains that keep their initial class. Then the classes" + of + " of fresh chains at "
            "some ages and of persistent chains, if any."
        )
        drawn = (draw_classes(course, names, groups, sets.steps, caption),)
    return Section("classes", "", tuple(says), metrics, (), drawn)


def _median(energy: Tensor) -> float | None:
    finite = energy[energy.isfinite()].double()
    return float(finite.median()) if len(finite) else None


def _told(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1f} nats"


def draw_energies(sets: Mapping[str, Tensor], caption: str) -> Picture:
    """Histograms of the energies of sets on one axis; what lies far outside is counted at the edges."""
    values = {name: e.double().cpu().numpy() for name, e in sets.items() if bool(e.isfinite().any())}
    ends = [np.quantile(v[np.isfinite(v)], (0.002, 0.998)) for v in values.values()]
    low, high = min(e[0] for e in ends), max(e[1] for e in ends)
    bins = np.linspace(low, high + 1e-6 * (1 + abs(high)), BINS + 1)
    with drawing(7.0, 3.6) as figure:
        axes = figure.add_subplot(xlabel="energy, minus log p(x) up to a constant (nats)", ylabel="share of rows")
        for k, (name, v) in enumerate(values.items()):
            color = COLORS[k % len(COLORS)]
            counts, _ = np.histogram(np.clip(v[np.isfinite(v)], low, high), bins=bins)
            share = counts / max(1, len(v))
            filled = k < 2
            axes.stairs(share, bins, label=name, color=color, fill=filled, alpha=0.45 if filled else 1)
            if filled:
                axes.stairs(share, bins, color=color)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return picture("energies", caption, figure)


def draw_course(course: Course, data: Tensor, data_at_bounds: float, length: int, caption: str) -> Picture:
    """Energy and values at the bounds of chains against their age, beside those of data; `length` is a sample's."""
    ages = [max(a, 0.7) for a in course.ages]  # a logarithm has no 0
    with drawing(9.0, 3.4) as figure:
        left = figure.add_subplot(1, 2, 1, xlabel="age of the chains (steps)", ylabel="energy (nats)")
        low, middle, high = (torch.quantile(data.double().cpu(), q).item() for q in (0.05, 0.5, 0.95))
        left.axhspan(low, high, color=COLORS[1], alpha=0.25, label="5 to 95 % of test rows")
        left.axhline(middle, color=COLORS[1])
        quantiles = torch.tensor((0.05, 0.5, 0.95), dtype=torch.float64)
        band = torch.quantile(course.energy.double(), quantiles, dim=1).numpy()
        left.fill_between(ages, band[0], band[2], color=COLORS[0], alpha=0.25, label="5 to 95 % of chains")
        left.plot(ages, band[1], color=COLORS[0])
        right = figure.add_subplot(1, 2, 2, xlabel="age of the chains (steps)", ylabel="values at the bounds")
        right.axhline(data_at_bounds, color=COLORS[1], label="test rows")
        right.plot(ages, course.at_bounds, color=COLORS[0], label="chains")
        right.yaxis.set_major_formatter(PercentFormatter(1.0))
        right.set_ylim(bottom=0.0)
        for axes in (left, right):
            _by_age(axes, course, length)
            axes.legend()
        return picture("chains-grow-old", caption, figure)


def draw_classes(
    course: Course, names: Sequence[str], groups: Sequence[AgeGroup], length: int, caption: str
) -> Picture:
    """How often each class is among fresh chains by age and among persistent ones by age, and who keeps its class."""
    assert course.labels is not None
    wide = 3 if groups else 2
    with drawing(4.2 * wide, 3.8) as figure:
        axes = figure.add_subplot(1, wide, 1, xlabel="age of the chains (steps)", ylabel="share in the same class")
        ages = [max(a, 0.7) for a in course.ages]
        axes.plot(ages, kept(course.labels), color=COLORS[0], label="since the start")
        since = course.ages.index(length)
        if since < len(ages) - 1:
            label = f"since step {length}, the sampling length"
            axes.plot(ages[since:], kept(course.labels, since), color=COLORS[3], ls="--", label=label)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylim(0.0, 1.03)
        _by_age(axes, course, length)
        axes.legend(fontsize=8)
        fresh = shares(course.labels[:, :, 0], len(names))
        looks = sorted({round(i * (len(ages) - 1) / 5) for i in range(6)})
        most = max(float(fresh[looks].max()), *(float(g.shares.max()) for g in groups), 1e-6)
        _heat(figure.add_subplot(1, wide, 2), fresh[looks], [str(course.ages[i]) for i in looks], names, most)
        figure.axes[-1].set(title="fresh chains", xlabel="age (steps)")
        if groups:
            axes = figure.add_subplot(1, wide, 3)
            spans = [_span(g) for g in groups]
            _heat(axes, torch.stack([g.shares for g in groups]), spans, names, most)
            axes.set(title="persistent chains", xlabel="age (steps), four equal groups")
        return picture("classes-by-age", caption, figure)


def _heat(axes: Axes, share: Tensor, columns: Sequence[str], names: Sequence[str], most: float) -> None:
    axes.imshow(share.T.double().cpu().numpy(), aspect="auto", cmap="Blues", vmin=0.0, vmax=most)
    axes.grid(False)
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(names)), [n[:14] for n in names], fontsize=8)
    for i, row in enumerate(share.tolist()):
        for j, value in enumerate(row):
            dark = value > 0.6 * most
            axes.text(i, j, f"{value:.0%}", ha="center", va="center", fontsize=7, color="white" if dark else "black")


def _span(group: AgeGroup) -> str:
    return f"{_short(group.youngest)}\nto {_short(group.oldest)}"


def _short(n: int) -> str:
    return f"{n:,}" if n < 10_000 else f"{n / 1000:.0f}k" if n < 1_000_000 else f"{n / 1_000_000:.1f}M"


def _by_age(axes: Axes, course: Course, length: int) -> None:
    axes.set_xscale("log")
    marks = [(0.7, "0"), *((10**k, f"{10**k:,}") for k in range(1 + int(math.log10(max(course.ages[-1], 1)))))]
    axes.set_xticks([m[0] for m in marks], [m[1] for m in marks])
    axes.minorticks_off()
    axes.axvline(length, color="0.6", lw=0.8, ls=":")
